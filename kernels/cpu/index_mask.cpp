// CPU kernels that find the true elements of a mask, in two passes: blocks are counted, then their elements
// are written behind those of the blocks before them.
#include <algorithm>
#include <utility>

#include "tapestry/core/parallel.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kBlocksPerThread = 32;

// A bool is a byte of 0 or 1.
void mask_starts_kernel(const LaunchContext&, const MaskStartsArgs& a) {
  const std::uint8_t* const mask = a.mask.as<std::uint8_t>();
  std::int64_t* const starts = a.starts.as<std::int64_t>();
  const std::int64_t blocks = (a.n + kMaskBlock - 1) / kMaskBlock;
  parallel_for(blocks, kBlocksPerThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * kMaskBlock, last = std::min(first + kMaskBlock, a.n);
      unsigned count = 0;
      for (std::int64_t i = first; i < last; ++i) count += mask[i];
      starts[b] = count;
    }
  });
  std::int64_t total = 0;
  for (std::int64_t b = 0; b < blocks; ++b) total += std::exchange(starts[b], total);
  starts[blocks] = total;
}

void mask_coordinates_kernel(const LaunchContext&, const MaskCoordinatesArgs& a) {
  const std::uint8_t* const mask = a.mask.as<std::uint8_t>();
  const std::int64_t* const starts = a.starts.as<std::int64_t>();
  std::int64_t* const out = a.coordinates.as<std::int64_t>();
  const std::int64_t blocks = (a.n + kMaskBlock - 1) / kMaskBlock;
  parallel_for(blocks, kBlocksPerThread, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t found[kMaskBlock];
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * kMaskBlock, last = std::min(first + kMaskBlock, a.n);
      std::int64_t count = 0;
      for (std::int64_t i = first; i < last; ++i) {  // without a branch, which would often be mispredicted
        found[count] = i;
        count += mask[i];
      }
      std::int64_t* to = out + starts[b] * a.element_stride;
      for (std::int64_t j = 0; j < count; ++j, to += a.element_stride) {
        std::int64_t rest = found[j];
        for (int d = a.ndim - 1; d > 0; --d) {
          to[d * a.dim_stride] = rest % a.sizes[d];
          rest /= a.sizes[d];
        }
        to[0] = rest;
      }
    }
  });
}

const bool filled = [] {
  mask_starts.set(DeviceType::cpu, DType::boolean, &mask_starts_kernel);
  mask_coordinates.set(DeviceType::cpu, DType::boolean, &mask_coordinates_kernel);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
