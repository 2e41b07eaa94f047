#pragma once
// What runs a grid of CUDA threads on one CPU thread, each on a fiber, block after block. cuda_emulator.h
// puts CUDA's names on top of it.
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

/// A launch that a GPU would refuse, or for which CUDA promises nothing: a barrier that some threads never
/// reach, a warp operation with the wrong mask. Names the kernel, the thread and the line.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  /// 0: threads run in order, as do blocks. Otherwise both are shuffled by it. TAPESTRY_EMULATOR_SEED is what
  /// it is at first.
  std::uint64_t seed = 0;
};
Options& options();

/// A launch as it was made. `kernel` is the instantiation's symbol, which nvcc gives it too.
struct Launch {
  std::string kernel;
  dim3 grid, block;
  std::size_t shared_bytes;
};
/// The launches since the last call.
std::vector<Launch> take_launches();
/// The name of an instantiation, without its parameters.
std::string readable(void (*kernel)());
/// The symbols of all kernels that this process launched, sorted. With TAPESTRY_EMULATED_KERNELS=<file> the
/// process adds them to that file when it ends, one a line.
std::vector<std::string> launched_kernels();

// ---- for launch() and cuda_emulator.h

using Location = tapestry::SourceLocation;

struct ThreadIndex {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  unsigned lane;
};
/// The CUDA thread that runs.
extern const ThreadIndex* current;

/// Runs `body(argument)` once for each thread of the grid.
void run_grid(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, void (*body)(void*),
              void* argument);

/// Ends the launch with an Error that names this thread.
[[noreturn]] void fail(const char* what, const Location& where);

/// The block's shared array of this declaration, as a heap block of its own: filled with NaN (all bits set)
/// when the block begins, freed when it ends.
void* shared_array(const void* declaration, std::size_t bytes, std::size_t alignment);
/// The bytes that the launch asked for, no more.
void* dynamic_shared();

struct BarrierResult {
  int count, any, all;
};
/// All threads of the block that have not exited meet here.
BarrierResult block_barrier(int predicate, const Location& where);

struct LaneCall {
  const void* in;
  void* out;
  int argument;
};
/// What a warp operation does once all lanes of its mask are there. `bytes` is the size of the values.
using WarpOperation = void (*)(const LaneCall (&lanes)[32], unsigned mask, std::size_t bytes);
/// Only __syncwarp orders memory: a shuffle is no fence.
void warp_operation(unsigned mask, WarpOperation operation, const LaneCall& call, std::size_t bytes,
                    bool orders_memory, const Location& where);
void nothing(const LaneCall (&)[32], unsigned, std::size_t);
/// out = in of lane `argument`; all bits set if that lane is not in the mask.
void shuffle(const LaneCall (&)[32], unsigned, std::size_t);
/// out = the lanes whose argument is not 0.
void ballot(const LaneCall (&)[32], unsigned, std::size_t);

/// ThreadSanitizer: what a thread did before its fence happens before what another does after its own, later
/// one.
void fence();

/// An asynchronous copy into shared memory.
struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes;  // 4 or 16
  bool zeros;      // instead of reading
};
void begin_copy(const AsyncCopy& copy, const Location& where);
void commit_copies();
/// Takes the oldest copy that is in none of the last `keep` groups; false if there is none.
bool take_copy(int keep, AsyncCopy& copy);

}  // namespace cuda_emulator
