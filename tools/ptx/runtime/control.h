#pragma once
// Controls of the stand-in CUDA runtime for tests: they read what was recorded, and inject errors. README.md
// describes the runtime itself.
//
// A program that links the runtime can call these functions. After reset(), launches are only recorded. After
// execute() or set_executor(), the kernels also run.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tapestry/tools/ptx/counter_table.h"
#include "tapestry/tools/ptx/runtime/callers.h"

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
  /// Blocks of a cluster; zeros without clusters.
  std::array<unsigned, 3> cluster = {};
  bool cooperative = false;
  std::size_t shared_bytes = 0;
  int gpu = 0;
  void* stream = nullptr;
  /// A copy of the kernel's arguments at the time of the launch. Empty if their layout is unknown.
  std::vector<std::byte> arguments = {};
  Callers called_from = {};
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
/// How often the host has waited since reset(): calls that return when work of a GPU has ended, or that may.
std::int64_t host_waits();
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

struct Settings;
/// From now on, until reset(), the PTX machine runs the kernels.
void execute();
void execute(const Settings& settings);
/// What the machine has run since execute(), by the kernels' symbols.
struct Executed {
  std::uint64_t launches = 0, warp_instructions = 0, thread_instructions = 0;
  double seconds = 0;  // of CPU time, if Settings::speed is set
  std::set<unsigned> block_sizes = {};
};
std::map<std::string, Executed> executed();
/// What kernels did since execute() with counters: a row for each.
std::vector<tapestry::ptx::KernelRow> counters();

/// Returns the host memory behind an address of GPU or page-locked memory, for executors and tests. Null if
/// [address, address + bytes) is not inside one live allocation.
std::byte* memory_at(const void* address, std::size_t bytes);

/// For libraries that stand in for NVIDIA's. A stream calls work(argument) until it returns nonzero, and
/// holds back its later work.
void enqueue(void* stream, int (*work)(void*), void* argument);
/// The work that runs now reads or writes these bytes. Returns where the host finds them; null if they are
/// not inside one live allocation.
std::byte* touch(const void* address, std::size_t bytes, bool write);

/// Live memory of a GPU, or page-locked memory (`gpu` is -1).
struct Memory {
  std::uintptr_t address;
  std::byte* data;  // the host memory behind the address
  std::size_t bytes;
  int gpu;
};
std::vector<Memory> memory();
}  // namespace stand_in
