#pragma once
// Copies between layouts whose contiguous dimensions differ, such as x.transpose(0, 1).contiguous() and
// conversions to channels-last. One element after another, either the reads or the writes of a warp would
// touch 32 lines of memory. Instead a block reads a tile of 32 x 32 elements along the input's contiguous
// dimension into shared memory, and writes it along the output's.
#include <utility>

#include "tapestry/kernels/cuda/map.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kTransposeTile = 32, kTransposeRows = 8;

/// The tiles of a transposing copy. Dimension `in` has stride 1 in the input, dimension `out` in the output;
/// the sizes and strides of these two are in `pair`. All other dimensions are in `rest`.
struct TransposePlan {
  int in_size, out_size;
  std::int64_t in_stride;   // of the input, along the dimension that is contiguous in the output
  std::int64_t out_stride;  // of the output, along the dimension that is contiguous in the input
  Divisor in_tiles, out_tiles;
  MapPlan<2> rest;
};

/// A block copies one tile. A row of the tile has 33 elements, so that neither the writes along rows nor the
/// reads along columns meet in a bank: 33 i mod 32 differs for the 32 lanes i of words. Lanes i of 8 bytes
/// are served 16 at a time, from banks 66 i mod 32. Four lanes of 1 byte, 4 a + b, read the words 8 b + a
/// (mod 32), and two of 2 bytes the words 16 b + a.
template <class T, bool kWaits = true>
__global__ void __launch_bounds__(kTransposeTile* kTransposeRows)
    copy_transposed(TransposePlan p, T* out, const T* in) {
  constexpr int kTile = kTransposeTile, kStep = kTransposeRows;
  __shared__ T tile[kTile][kTile + 1];
  const unsigned by_in = p.in_tiles.divide(blockIdx.x), in_tile = blockIdx.x - by_in * p.in_tiles.value;
  const unsigned matrix = p.out_tiles.divide(by_in), out_tile = by_in - matrix * p.out_tiles.value;
  std::int64_t at[2];
  p.rest.offsets(matrix, at);
  const int lane = static_cast<int>(threadIdx.x), row = static_cast<int>(threadIdx.y);
  const int in_first = static_cast<int>(in_tile) * kTile, out_first = static_cast<int>(out_tile) * kTile;

  const T* from = in + (at[1] + (out_first + row) * p.in_stride + (in_first + lane));
#pragma unroll
  for (int i = 0; i < kTile; i += kStep) {
    if (in_first + lane < p.in_size && out_first + row + i < p.out_size) tile[row + i][lane] = *from;
    from += kStep * p.in_stride;
  }
  if (kWaits) __syncthreads();
  T* to = out + (at[0] + (in_first + row) * p.out_stride + (out_first + lane));
#pragma unroll
  for (int i = 0; i < kTile; i += kStep) {
    if (out_first + lane < p.out_size && in_first + row + i < p.in_size) *to = tile[lane][row + i];
    to += kStep * p.out_stride;
  }
}

/// The dimensions that are contiguous in the input and in the output, if a copy by tiles pays: they differ,
/// and each has at least a quarter of a tile.
struct TransposeDims {
  int in = -1, out = -1;
  explicit operator bool() const { return in >= 0 && out >= 0 && in != out; }
};
inline TransposeDims transpose_dims(const Elementwise<2>& e) {
  TransposeDims dims;
  for (int d = e.ndim - 1; d >= 0; --d) {
    if (e.sizes[d] < kTransposeTile / 4) continue;
    if (dims.out < 0 && e.strides[0][d] == 1) dims.out = d;
    if (dims.in < 0 && e.strides[1][d] == 1) dims.in = d;
  }
  // An input that is broadcast along the output's contiguous dimension is read once per warp as it is.
  if (dims.out >= 0 && e.strides[1][dims.out] == 0) return {};
  return dims;
}

/// Copies at most 2^31 - 1 elements by tiles.
template <class T, bool kWaits = true>
void launch_copy_transposed(const Elementwise<2>& e, const TransposeDims& dims, cudaStream_t stream) {
  TransposePlan plan{};
  plan.in_size = static_cast<int>(e.sizes[dims.in]), plan.out_size = static_cast<int>(e.sizes[dims.out]);
  plan.in_stride = e.strides[1][dims.out], plan.out_stride = e.strides[0][dims.in];
  const auto tiles = [](int size) {
    return static_cast<unsigned>((size + kTransposeTile - 1) / kTransposeTile);
  };
  plan.in_tiles = Divisor(tiles(plan.in_size)), plan.out_tiles = Divisor(tiles(plan.out_size));
  unsigned matrices = 1;
  MapPlan<2>& rest = plan.rest;
  for (int d = 0; d < e.ndim; ++d) {
    if (d == dims.in || d == dims.out) continue;
    rest.sizes[rest.ndim] = Divisor(static_cast<unsigned>(e.sizes[d]));
    for (int n = 0; n < 2; ++n) rest.strides[n][rest.ndim] = e.strides[n][d];
    matrices *= rest.sizes[rest.ndim++].value;
  }
  if (rest.ndim == 0) rest.ndim = 1;
  launch(&copy_transposed<T, kWaits>, plan.in_tiles.value * plan.out_tiles.value * matrices,
         {kTransposeTile, kTransposeRows}, 0, stream, plan, static_cast<T*>(e.out),
         static_cast<const T*>(e.in[0]));
}

}  // namespace tapestry::kernels::cuda
