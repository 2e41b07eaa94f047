#pragma once
// Controls of the stand-in CUDA runtime: a shared library with the name of the real libcudart, for tests
// without a GPU.
//
// If a program is linked with the stand-in, all modules of the program use it, because the dynamic linker
// loads only one library of each name. Other programs use it if LD_LIBRARY_PATH names its folder. The memory
// of its GPUs is host memory that the host cannot access: a stray access by the host is a segmentation fault.
// Work in streams runs as late as CUDA allows: when the host waits for it, or step by step while the host
// polls. Every call checks its arguments. Kernels are recorded and do nothing, unless an Executor runs them.
//
// At first there are 2 GPUs of 1 GiB; TAPESTRY_STAND_IN_GPUS=n makes n of them. When the program ends, leaks
// and misuse are printed and the exit status becomes 70; TAPESTRY_STAND_IN_EXIT=ignore turns that off.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stand_in {

/// The position of a kernel's parameter in its parameter space.
struct Parameter {
  std::size_t offset, bytes;
};

/// A kernel that some module has registered.
struct Kernel {
  std::string symbol;
  /// The fat binary that nvcc embedded in the module: a fatbin header, then PTX and machine code.
  const void* fat_binary = nullptr;
  /// Positions of the parameters, read from the kernel's PTX. Empty if the fat binary has no uncompressed PTX
  /// of the kernel.
  std::optional<std::vector<Parameter>> parameters;
  /// The maximal number of threads per block from __launch_bounds__; 0 if there are none.
  unsigned max_threads = 0;
};

struct Launch {
  Kernel kernel;
  std::array<unsigned, 3> grid, block;
  std::size_t shared_bytes;
  int gpu;
  void* stream;
  /// A copy of the kernel's arguments at the time of the launch. Empty if their layout is unknown.
  std::vector<std::byte> arguments;
};

/// Forgets every object, record and injected error, and starts with new GPUs of `memory` bytes each.
void reset(int gpus = 2, std::size_t memory = std::size_t{256} << 20);

/// Makes the `nth` call of `function` from now on (1: the next) return the cudaError_t `error` instead of
/// doing its work. If CUDA documents the error as leaving the process in an inconsistent state, all later
/// calls return it too.
void fail(const std::string& function, int nth, int error);
/// Makes the next kernel that runs end with `error`. The next call with which the host waits returns this
/// error.
void fail_next_kernel(int error);

/// How often each function was called since reset().
std::map<std::string, int> calls();
/// Kernel launches since reset(), in the order of the calls.
std::vector<Launch> launches();
/// All registered kernels, of all modules.
std::vector<Kernel> kernels();
/// The GPUs on which the process has created a context.
std::vector<int> contexts();
/// Returns descriptions of invalid calls since reset(): calls with arguments that a correct program never
/// passes.
std::vector<std::string> misuse();
/// Memory, streams and events that have not been released, one line per object.
std::vector<std::string> leaks();

/// A function that runs a kernel when its stream reaches it. An exception ends the kernel with
/// cudaErrorLaunchFailure.
using Executor = std::function<void(const Launch&)>;
void set_executor(Executor executor);
/// Returns the host memory behind an address of GPU or page-locked memory, for executors and tests. Null if
/// [address, address + bytes) is not inside one live allocation.
std::byte* memory_at(const void* address, std::size_t bytes);

/// Live memory of a GPU, or page-locked memory (`gpu` is -1).
struct Memory {
  std::uintptr_t address;
  std::byte* data;  // the host memory behind the address
  std::size_t bytes;
  int gpu;
};
std::vector<Memory> memory();
/// The uncompressed PTX texts in the fat binary of the kernel's module.
std::vector<std::string> ptx_texts(const Kernel& kernel);

}  // namespace stand_in
