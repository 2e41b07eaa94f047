#pragma once
// Converts element indices to offsets with 64-bit arithmetic, for kernels whose launches may have any number
// of elements. (map.cuh instead splits its launches, so that 32 bits suffice.)
#include "tapestry/kernels/cuda/map.cuh"

namespace tapestry::kernels::cuda {

/// Divides numbers below 2^63 by an invariant divisor, by multiply-high and shift. Divisor does the same for
/// 32-bit numbers below 2^31.
struct WideDivisor {
  std::uint64_t value = 1, factor = 1;
  unsigned shift = 0;

  WideDivisor() = default;
  explicit WideDivisor(std::int64_t d) : value(static_cast<std::uint64_t>(d)) {
    using Wide = unsigned __int128;
    while ((std::uint64_t{1} << shift) < value) ++shift;
    factor = static_cast<std::uint64_t>((((Wide{1} << shift) - value) << 64) / value + 1);
  }
  __device__ std::uint64_t divide(std::uint64_t n) const {
    const auto high = static_cast<std::uint64_t>(static_cast<unsigned __int128>(n) * factor >> 64);
    return (high + n) >> shift;
  }
};

/// Sizes and strides that N operands share.
template <int N>
struct Dims {
  int ndim = 1;
  WideDivisor sizes[kMaxDims];
  std::int64_t strides[N][kMaxDims] = {};

  /// The offset of element `index` (row-major in `sizes`) in each operand, in elements.
  __device__ void offsets(std::uint64_t index, std::int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = 0;
    for (int d = ndim - 1; d > 0; --d) {
      const std::uint64_t rest = sizes[d].divide(index);
      const auto own = static_cast<std::int64_t>(index - rest * sizes[d].value);
#pragma unroll
      for (int n = 0; n < N; ++n) at[n] += own * strides[n][d];
      index = rest;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] += static_cast<std::int64_t>(index) * strides[n][0];
  }
};

}  // namespace tapestry::kernels::cuda
