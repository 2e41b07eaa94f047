#pragma once
// Reads the resources of compiled kernels from the device code in a program or library. These are the numbers
// that `cuobjdump -res-usage` prints. Some toolkits have no cuobjdump.
#include <filesystem>
#include <string>
#include <vector>

namespace device_code {

namespace fs = std::filesystem;

/// A kernel that was compiled for one GPU architecture.
struct Kernel {
  std::string symbol;
  int arch = 0;       // 90: sm_90
  int registers = 0;  // per thread
  int stack = 0;      // bytes per thread, including spilled registers
  int shared = 0;     // bytes per block: static, reserved by the GPU, and dynamic if add_launches() knows it
  int threads = 0;    // from __launch_bounds__(threads, blocks); 0 if it has none
  int max_registers = 0;  // limit from the launch bounds or the GPU (255)

  int block = 0;  // threads of the largest launched block; 0 if unknown

  /// The demangled name without parameters.
  std::string name() const;
  /// `blocks` of its launch bounds; 1 if they do not give it.
  int blocks() const;
  /// The number of blocks of `threads` threads that fit on a multiprocessor, and the fraction of its warps
  /// that they use.
  int resident() const;
  double occupancy() const;
};

/// All kernels in an ELF file, sorted by symbol, then arch; empty if it has no device code. Throws
/// std::runtime_error if the file is malformed or its device code is compressed.
std::vector<Kernel> read_kernels(const fs::path& file);

/// Adds launch configurations from the files that the tests machine.* wrote into `folder`. Returns the number of
/// kernels whose launches are known.
int add_launches(std::vector<Kernel>& kernels, const fs::path& folder);

/// The program or library file that contains the code at this address.
fs::path file_of(const void* address);

/// Exempts a kernel from a rule. `kernel` is its name without namespace and template arguments.
struct Exception {
  std::string kernel, reason;
};
/// Returns a line, with the remedy, for each kernel that has a stack frame or spilled registers, that has no
/// launch bounds, that is launched with larger blocks or more shared memory than its bounds allow, or that is
/// missing for one of the architectures. Kernels in `on_stack` may have a stack frame. An exception that is
/// not needed is reported too.
std::vector<std::string> faults(const std::vector<Kernel>& kernels, const std::vector<Exception>& on_stack);

}  // namespace device_code
