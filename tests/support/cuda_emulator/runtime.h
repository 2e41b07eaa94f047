#pragma once
// Runs a grid of CUDA threads on one CPU thread: each CUDA thread is a fiber, blocks run one after the other.
// cuda_emulator.h adds CUDA's names.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tapestry/core/source_location.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace cuda_emulator {

/// A launch that a GPU would refuse, or undefined behaviour such as a barrier that some threads never reach
/// or a warp operation with a wrong mask. The message names the kernel, the thread and the line.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  /// The seed of the execution order. If it is 0, threads and blocks run in order. Otherwise both are
  /// shuffled with this seed. The initial value comes from the environment variable TAPESTRY_EMULATOR_SEED.
  std::uint64_t seed = 0;
  /// If true, take_launches() returns the launches, but no kernel runs.
  bool record_only = false;
};
Options& options();

/// A recorded launch. `kernel` is the mangled name of the instantiation, which is the same as nvcc's.
struct Launch {
  std::string kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
};
/// Returns the launches since the previous call.
std::vector<Launch> take_launches();
/// The demangled name of an instantiation, without its parameters.
std::string readable(void (*kernel)());
/// The symbols of all kernels that this process has launched, sorted. If TAPESTRY_EMULATED_LAUNCHES=<file> is
/// set, the process appends a line "<symbol> <threads of the largest block> <bytes of dynamic shared memory>"
/// per kernel to that file at exit.
std::vector<std::string> launched_kernels();

// ---- used by launch() and cuda_emulator.h

using Location = tapestry::SourceLocation;

struct ThreadIndex {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  unsigned lane;
};
/// The running CUDA thread.
extern const ThreadIndex* current;

/// Calls `body(argument)` once per thread of the grid.
void run_grid(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, void (*body)(void*),
              void* argument);

/// Ends the launch with an Error that names the running thread.
[[noreturn]] void fail(const char* what, const Location& where);

/// The running block's instance of a shared array, in a separate heap block: filled with NaN (all bits set)
/// when the block starts, freed when it ends.
void* shared_array(const void* declaration, std::size_t bytes, std::size_t alignment);
/// The dynamic shared memory, of exactly the size that the launch requested.
void* dynamic_shared();

struct BarrierResult {
  int count, any, all;
};
/// Implements __syncthreads(). The barrier opens when all threads of the block that have not exited have
/// arrived.
BarrierResult block_barrier(int predicate, const Location& where);

struct LaneCall {
  const void* in;
  void* out;
  int argument;
};
/// A function that computes the results of a warp operation. It is called when all lanes of the mask have
/// arrived. `bytes` is the size of the values.
using WarpOperation = void (*)(const LaneCall (&lanes)[32], unsigned mask, std::size_t bytes);
/// Executes a warp operation. Only __syncwarp orders memory; a shuffle is not a fence.
void warp_operation(unsigned mask, WarpOperation operation, const LaneCall& call, std::size_t bytes,
                    bool orders_memory, const Location& where);
void nothing(const LaneCall (&)[32], unsigned, std::size_t);
/// Computes a shuffle: each lane's `out` is the `in` of lane `argument`. All its bits are set if that lane is
/// not in the mask.
void shuffle(const LaneCall (&)[32], unsigned, std::size_t);
/// Computes a ballot: each lane's `out` is the mask of the lanes whose argument is not 0.
void ballot(const LaneCall (&)[32], unsigned, std::size_t);

/// A memory fence. For ThreadSanitizer, what a thread did before its fence happens before what another thread
/// does after a later fence.
void fence();

/// An asynchronous copy into shared memory.
struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes;  // the size of the copy: 4 or 16
  bool zeros;      // store zeros instead of reading
};
void begin_copy(const AsyncCopy& copy, const Location& where);
void commit_copies();
/// Removes the oldest asynchronous copy that is not in the last `keep` commit groups, and stores it in
/// `copy`. Returns false if there is none.
bool take_copy(int keep, AsyncCopy& copy);

}  // namespace cuda_emulator
