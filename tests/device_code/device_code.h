#pragma once
// What the CUDA compiler made of the kernels, read from the device code inside a program or library: the
// numbers that `cuobjdump -res-usage` prints, for machines whose toolkit has no cuobjdump.
#include <filesystem>
#include <string>
#include <vector>

namespace device_code {

namespace fs = std::filesystem;

/// A kernel, compiled for one kind of GPU.
struct Kernel {
  std::string symbol;
  int arch = 0;           // 90: sm_90
  int registers = 0;      // a thread
  int stack = 0;          // bytes a thread; registers that are spilled lie here too
  int shared = 0;         // bytes a block, with what the GPU keeps, and the launch's dynamic ones where known
  int threads = 0;        // of __launch_bounds__(threads, blocks); 0: it has none
  int max_registers = 0;  // that the compiler was held to by the launch bounds, or by the GPU (255)

  int block = 0;  // threads of the largest block that it is launched with; 0: not known

  /// Demangled, without its parameters.
  std::string name() const;
  /// `blocks` of its launch bounds; 1 where they say none.
  int blocks() const;
  /// How many blocks of `threads` one multiprocessor holds, and which share of its warps they are.
  int resident() const;
  double occupancy() const;
};

/// All kernels in an ELF file, by symbol, then arch; none if it has no device code. Throws std::runtime_error
/// for a file that is broken, and for device code that is compressed.
std::vector<Kernel> read_kernels(const fs::path& file);

/// What the kernels are launched with, from the files in `folder` that emulated tests wrote; how many of them
/// are known.
int add_launches(std::vector<Kernel>& kernels, const fs::path& folder);

/// The file from which the process has the code at this address.
fs::path file_of(const void* address);

/// A kernel's name without namespace and template arguments, and why it may do what the others may not.
struct Exception {
  std::string kernel, reason;
};
/// What no kernel may have: a stack frame, spilled registers, no launch bounds, larger blocks or more shared
/// memory than these allow, code for one GPU only. A line each, with what to do. `on_stack` may have a frame;
/// one that needs none is a fault.
std::vector<std::string> faults(const std::vector<Kernel>& kernels, const std::vector<Exception>& on_stack);

}  // namespace device_code
