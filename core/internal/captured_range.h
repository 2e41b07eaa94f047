#pragma once
// Random numbers in CUDA graphs. A graph is replayed with the kernel arguments of its capture, but each
// replay must continue the random stream. In a capture, Generator::take() therefore returns a range that
// refers to a cell in device memory, which the host writes before each replay (PyTorch's philox_cuda_state
// does the same).
#include "tapestry/core/generator.h"
#include "tapestry/core/philox.h"

namespace tapestry {

/// Set in `offset` if `seed` is the address of a cell with the seed and the offset at which the replay began,
/// and the rest of `offset` is relative to that. A launch outside of captures refuses such
/// offsets, which a generator has only if set_state() was given one.
inline constexpr std::uint64_t kCapturedRange = std::uint64_t{1} << 63;

/// What `range` means now. CUDA kernels call it before they compute numbers.
TAPESTRY_HOST_DEVICE inline PhiloxRange current_range(PhiloxRange range) {
  if ((range.offset & kCapturedRange) == 0) return range;
  const auto* const cell = reinterpret_cast<const PhiloxRange*>(range.seed);
  return {cell->seed, cell->offset + (range.offset & ~kCapturedRange)};
}

}  // namespace tapestry
