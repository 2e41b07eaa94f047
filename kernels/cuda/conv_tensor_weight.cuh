#pragma once
// The weight gradient in bf16 and f16 as an implicit GEMM on tensor cores. GEMM rows are channels of y, GEMM
// columns are (tap, channel of x), and k runs over the pixels of dy. There are many pixels but few outputs,
// so k is split to fill the GPU: each split writes a partial gradient in f32, and sum_parts() adds them in a
// fixed order.
#include "tapestry/kernels/cuda/conv_tensor_layout.cuh"
#include "tapestry/kernels/cuda/matmul_column_sum.cuh"

namespace tapestry::kernels::cuda::conv::tensor_cores {

/// Loads tiles of A: chunks of 8 channels of dy. A thread loads the same channels of every kStep-th pixel.
template <class T, class Tile>
class OutputChunks {
 public:
  __device__ OutputChunks(const WeightPlan& p, const T* dy, unsigned first_row, unsigned first_step) {
    const unsigned own_row = threadIdx.x % kAcross * kChunk, own_pixel = threadIdx.x / kAcross;
    const unsigned row = first_row + own_row, pixel = first_step * kDepth + own_pixel;
    to_ = chunk_at<Tile::kRows, false>(static_cast<int>(own_row), static_cast<int>(own_pixel));
    pitch_ = p.out.w;
    from_ = dy + pixel * pitch_ + row;
    left_ = row < p.rows ? static_cast<int>(p.pixels - pixel) : 0;
  }
  __device__ __forceinline__ void load(T* tile) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      ptx::cp_async16(tile + to_ + i * (kStep * Tile::kRows), from_ + i * kStep * pitch_, i * kStep < left_);
    from_ += kDepth * pitch_;
    left_ -= kDepth;
  }

 private:
  static constexpr int kAcross = Tile::kRows / kChunk, kStep = Tile::kThreads / kAcross;
  static constexpr int kCount = kDepth / kStep;
  static_assert(kStep % 8 == 0, "the swizzle has this period");
  const T* from_;
  std::int64_t pitch_;
  int to_, left_;  // left_: pixels that remain
};

/// Loads tiles of B: the chunk of x that one (tap, 8 channels) selects, for every kStep-th pixel of dy.
template <class T, class Tile>
class InputChunks {
 public:
  __device__ InputChunks(const WeightPlan& p, const T* x, unsigned first_column, unsigned first_step)
      : p_(p), pixel_(first_step * kDepth + threadIdx.x / kAcross) {
    const unsigned own_column = threadIdx.x % kAcross * kChunk;
    const ColumnEntry column = ColumnEntry::of(p, first_column + own_column, kChunk);
    to_ = chunk_at<Tile::kCols, false>(static_cast<int>(own_column), static_cast<int>(threadIdx.x) / kAcross);
    from_ = x + column.at;
    h_ = column.h;
    w_ = column.w;
  }
  __device__ __forceinline__ void load(T* tile) {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {  // unrolled, it takes too many registers
      const unsigned pixel = pixel_ + i * kStep;
      bool inside = pixel < p_.pixels;
      std::int64_t at = pixel * p_.in.w;
      if (!p_.plain) {
        const PixelInX place(p_, pixel);
        inside = inside & (place.h + h_ < p_.in_h) & (place.w + w_ < p_.in_w);
        at = place.at;
      }
      ptx::cp_async16(tile + to_ + i * (kStep * Tile::kCols), from_ + at, inside);
    }
    pixel_ += kDepth;
  }

 private:
  static constexpr int kAcross = Tile::kCols / kChunk, kStep = Tile::kThreads / kAcross;
  static constexpr int kCount = kDepth / kStep;
  static_assert(kStep % 8 == 0, "the swizzle has this period");
  const WeightPlan& p_;
  const T* from_;
  int to_;
  unsigned pixel_, h_, w_;
};

/// Computes the partial weight gradients of all splits. Grid (row tiles x groups x column tiles, 1, splits).
/// The output `parts` is (split; channel of y; tap, channel of x). p.rows, the channels of x per group, and
/// therefore p.cols, are multiples of 8.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv2d_tensor_weight(WeightPlan p, const T* dy, const T* x, float* parts) {
  __shared__ WeightBlock blocks[1];
  WeightBlock& block = blocks[0];
  if (threadIdx.x == 0) {
    const unsigned rest = p.col_tiles.divide(blockIdx.x), row_tile = p.groups.divide(rest);
    block = {rest - row_tile * p.groups.value, row_tile * Tile::kRows,
             (blockIdx.x - rest * p.col_tiles.value) * Tile::kCols};
  }
  __syncthreads();
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const ring = reinterpret_cast<T*>(dynamic_shared);
  Sums<Tile> sums;
  {
    const StepRange steps(p.pixels, blockIdx.z, gridDim.z);
    OutputChunks<T, Tile> a(p, dy + static_cast<std::int64_t>(block.group) * p.rows, block.first_row,
                            steps.first);
    InputChunks<T, Tile> b(p, x + static_cast<std::int64_t>(block.group) * p.channels.value, block.first_col,
                           steps.first);
    multiply<Tile, false>(a, b, steps.count, ring, sums);
  }
  const unsigned column = block.first_col + static_cast<unsigned>(slice_column<Tile>());
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.z) * p.groups.value + block.group) * p.rows;
  for_rows<Tile>(sums, reinterpret_cast<float*>(ring), [&](int tile_row, const Pack<float, 4>(&v)[2]) {
    const unsigned row = block.first_row + static_cast<unsigned>(tile_row);
    if (row >= p.rows || column >= p.cols) return;
    float* const to = parts + (first + row) * p.cols + column;
#pragma unroll
    for (int u = 0; u < 2; ++u) reinterpret_cast<Pack<float, 4>*>(to)[u] = v[u];
  });
}

/// Rounds a sum to the weight's element i, counted in (channel of y, channel of x, row, column of the
/// window).
template <class T>
struct WeightChunksTarget {
  T* weight;
  Divisor channels, window_h, window_w;
  unsigned cols, row_step, column_step;  // in `parts`: from one channel of y, and one tap, to the next
  __device__ unsigned from(unsigned i) const {
    const unsigned rest = window_w.divide(i), s = i - rest * window_w.value;
    const unsigned line = window_h.divide(rest), r = rest - line * window_h.value;
    const unsigned row = channels.divide(line), channel = line - row * channels.value;
    return row * cols + r * row_step + s * column_step + channel;
  }
  __device__ void operator()(unsigned i, float sum) const { weight[i] = store<T>(sum); }
};

/// Computes dweight from operands with channels last and whole, aligned chunks. `s` describes them: its c and
/// k are multiples of 8 per group. `size` is the number of elements of the weight.
template <class T>
void launch_tensor_weight(const Conv2dShape& s, const T* dy, const T* x, WeightChunksTarget<T> target,
                          std::int64_t size, Division division, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  WeightPlan p = weight_plan(s);
  target.cols = p.cols;
  const std::int64_t image = s.p * s.q, pitch = s.k * std::int64_t{p.cols};
  checked_u31("a weight", pitch);
  if (division.parts == 0) {
    division.wide = p.rows > 64;
    const auto choose = [&]<class Tile>() {
      const std::int64_t blocks = ceil_div(p.rows, Tile::kRows) * ceil_div(p.cols, Tile::kCols) * s.groups;
      return choose_parts<Tile>(blocks, ceil_div(s.n * image, kDepth), pitch, true);
    };
    division.parts =
        division.wide ? choose.template operator()<WideTile>() : choose.template operator()<FlatTile>();
  }
  std::int64_t launches = 0;
  for_images(s.n, image, division.max_pixels, [&](std::int64_t, std::int64_t) { ++launches; });
  const Scratch<float> parts(context.device, launches * division.parts * pitch);
  float* to = parts.data();
  for_images(s.n, image, division.max_pixels, [&](std::int64_t first, std::int64_t images) {
    p.pixels = static_cast<unsigned>(images * image);
    const auto go = [&]<class Tile>() {
      const std::int64_t col_tiles = ceil_div(p.cols, Tile::kCols);
      p.col_tiles = divisor(col_tiles);
      const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, Tile::kRows) * col_tiles * s.groups), 1,
                      static_cast<unsigned>(division.parts));
      launch(&conv2d_tensor_weight<T, Tile>, grid, Tile::kThreads, kSharedBytes<Tile>, stream, p,
             dy + first * p.out.n, x + first * p.in.n, to);
    };
    if (division.wide) go.template operator()<WideTile>();
    else go.template operator()<FlatTile>();
    to += division.parts * pitch;
  });
  launch_sum_parts(parts.data(), launches * division.parts, size, target, stream, pitch);
}

/// dbias[k] = sum of dy over images and pixels.
template <class T>
void launch_tensor_bias(const Conv2dShape& s, const T* dy, T* dbias, const LaunchContext& context) {
  const std::int64_t rows = s.n * s.p * s.q;
  if (s.channels_last || rows == 0)
    return launch_column_sum<T>(context, {.rows = rows, .cols = s.k, .x = dy, .y = dbias});
  const LayoutPlan layout = LayoutPlan::same(output_strides(s), s.p, s.q, s.k);
  const Chunked<T> chunks = chunked(layout, s.n, false, dy, context);
  const Scratch<T> sums(context.device, padded(s.k));
  launch_column_sum<T>(context, {.rows = rows, .cols = padded(s.k), .x = chunks.data, .y = sums.data()});
  launch_layout<false, T>(LayoutPlan::same({s.k, s.k, s.k, 1}, 1, 1, s.k), 1, nullptr, dbias, sums.data(),
                          stream_of(context));
}

}  // namespace tapestry::kernels::cuda::conv::tensor_cores
