#pragma once
// Weight gradient (f32) as an implicit GEMM. GEMM rows are channels of y, GEMM columns are (tap, channel of
// x), and k runs over the pixels of dy. There are many pixels but few outputs, so k is split to fill the GPU:
// each split writes a partial gradient to the workspace, and sum_parts() adds them in a fixed order.
//
//   channels-last   16-byte loads of 4 channels: DenseSteps loads dy, InputQuads loads x
//   otherwise       4-byte loads: a warp loads 8 pixels, contiguous in a row-major image, by 4 lines
#include "tapestry/kernels/cuda/conv_plan.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::conv {

/// Loads tiles of B (the elements of x under the window of each pixel of dy) if the channels of x are
/// contiguous and their number per group is a multiple of 4. A thread loads the same 4 columns of every
/// kStep-th pixel.
template <int kLines, int kThreads>
class InputQuads {
 public:
  __device__ InputQuads(const WeightPlan& p, const float* x, unsigned first_column, unsigned first_step)
      : p_(p), pixel_(first_step * kDepth + threadIdx.x / kQuads) {
    const ColumnEntry column = ColumnEntry::of(p, first_column + threadIdx.x % kQuads * 4, 4);
    from_ = x + column.at;
    h_ = column.h;
    w_ = column.w;
  }
  __device__ void load(float* tile) {
#pragma unroll
    for (unsigned i = 0; i < kDepth; i += kStep) {
      const unsigned pixel = pixel_ + i;
      bool inside = pixel < p_.pixels;
      std::int64_t at = pixel * p_.in.w;
      if (!p_.plain) {
        const PixelInX place(p_, pixel);
        inside = inside & (place.h + h_ < p_.in_h) & (place.w + w_ < p_.in_w);
        at = place.at;
      }
      ptx::cp_async16(tile + (threadIdx.x / kQuads + i) * (kLines + 4) + threadIdx.x % kQuads * 4, from_ + at,
                      inside);
    }
    ptx::cp_async_commit();
    pixel_ += kDepth;
  }
  __device__ void store(float*) const { ptx::cp_async_wait<0>(); }

 private:
  static constexpr unsigned kQuads = kLines / 4, kStep = kThreads / kQuads;
  static_assert(kDepth % kStep == 0);
  const WeightPlan& p_;
  const float* from_;
  unsigned pixel_, h_, w_;
};

/// Loads tiles of B (the elements of x under the window of each pixel of dy) from x in any layout. In each k
/// step, a thread loads kCount columns of one pixel.
template <int kLines, int kThreads>
class InputSingles {
 public:
  __device__ InputSingles(const WeightPlan& p, const float* x, unsigned first_column, unsigned first_step)
      : p_(p), x_(x), pixel_(first_step * kDepth + threadIdx.x % kDepth) {
    __shared__ ColumnEntry columns[kLines];
    columns_ = columns;
    for (unsigned line = threadIdx.x; line < kLines; line += kThreads)
      columns[line] = ColumnEntry::of(p, first_column + line, 1);
    __syncthreads();
  }
  __device__ void load(float* tile) {
    const bool some = pixel_ < p_.pixels;
    const PixelInX pixel(p_, pixel_);
    float* const to = tile + threadIdx.x % kDepth * (kLines + 4) + threadIdx.x / kDepth;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const ColumnEntry& column = columns_[threadIdx.x / kDepth + i * (kThreads / kDepth)];
      const bool inside = some & (pixel.h + column.h < p_.in_h) & (pixel.w + column.w < p_.in_w);
      ptx::cp_async4(to + i * (kThreads / kDepth), x_ + pixel.at + column.at, inside);
    }
    ptx::cp_async_commit();
    pixel_ += kDepth;
  }
  __device__ void store(float*) const { ptx::cp_async_wait<0>(); }

 private:
  static constexpr int kCount = kDepth * kLines / kThreads;
  const WeightPlan& p_;
  const float* x_;
  const ColumnEntry* columns_;
  unsigned pixel_;
};

/// Loads tiles of A, which is dy, in any layout. Threads are mapped as in InputSingles.
template <int kLines, int kThreads>
class OutputSingles {
 public:
  __device__ OutputSingles(const WeightPlan& p, const float* dy, unsigned first_row, unsigned first_step)
      : p_(p),
        dy_(dy + (first_row + threadIdx.x / kDepth) * p.out.c),
        left_(static_cast<int>(p.rows - first_row - threadIdx.x / kDepth)),
        pixel_(first_step * kDepth + threadIdx.x % kDepth) {}
  __device__ void load(float* tile) {
    const unsigned n = p_.image.divide(pixel_);
    const float* const from = dy_ + n * p_.out.n + (pixel_ - n * p_.image.value) * p_.out.w;
    float* const to = tile + threadIdx.x % kDepth * (kLines + 4) + threadIdx.x / kDepth;
    const int left = pixel_ < p_.pixels ? left_ : 0;
#pragma unroll
    for (int i = 0; i < kLines; i += kStep) ptx::cp_async4(to + i, from + i * p_.out.c, i < left);
    ptx::cp_async_commit();
    pixel_ += kDepth;
  }
  __device__ void store(float*) const { ptx::cp_async_wait<0>(); }

 private:
  static constexpr int kStep = kThreads / kDepth;
  const WeightPlan& p_;
  const float* dy_;
  int left_;  // rows that remain
  unsigned pixel_;
};

template <class Output>
__device__ __forceinline__ Output output_loader(const WeightPlan& p, const float* dy, unsigned group,
                                                unsigned first_row, unsigned first_step) {
  const float* const from = dy + static_cast<std::int64_t>(group) * p.rows * p.out.c;
  if constexpr (std::is_constructible_v<Output, const DenseMatrix&, unsigned, unsigned>)
    return Output(DenseMatrix{from, static_cast<unsigned>(p.out.w), p.rows, p.pixels}, first_row, first_step);
  else return Output(p, from, first_row, first_step);
}

/// Computes the partial weight gradients of all splits. Grid (row tiles x groups x column tiles, 1, splits).
/// The output `parts` is (split; channel of y; tap, channel of x).
template <class Tile, template <int, int> class Output, template <int, int> class Input>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv2d_weight_parts(WeightPlan p, const float* dy, const float* x, float* parts) {
  __shared__ WeightBlock blocks[1];
  WeightBlock& block = blocks[0];
  if (threadIdx.x == 0) {
    const unsigned rest = p.col_tiles.divide(blockIdx.x), row_tile = p.groups.divide(rest);
    block = {rest - row_tile * p.groups.value, row_tile * Tile::kRows,
             (blockIdx.x - rest * p.col_tiles.value) * Tile::kCols};
  }
  __syncthreads();
  const Steps steps(p.pixels, blockIdx.z, gridDim.z);
  auto a =
      output_loader<Output<Tile::kRows, Tile::kThreads>>(p, dy, block.group, block.first_row, steps.first);
  Input<Tile::kCols, Tile::kThreads> b(p,
                                       x + static_cast<std::int64_t>(block.group) * p.channels.value * p.in.c,
                                       block.first_col, steps.first);
  float sum[Tile::kThreadRows][Tile::kThreadCols];
  multiply<Tile>(a, b, steps.count, sum);

  using At = ThreadPlace<Tile>;
  const unsigned row = block.first_row + static_cast<unsigned>(At::row());
  const unsigned col = block.first_col + static_cast<unsigned>(At::col());
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.z) * p.groups.value + block.group) * p.rows;
#pragma unroll
  for (int i = 0; i < Tile::kThreadRows; ++i) {
    if (row + At::row_at(i) >= p.rows) continue;
    float* const to = parts + (first + row + At::row_at(i)) * p.cols + col;
#pragma unroll
    for (int j = 0; j < Tile::kThreadCols; j += 4) {
      if (p.cols % 4 == 0) {
        Quad quad;
#pragma unroll
        for (int u = 0; u < 4; ++u) quad.v[u] = sum[i][j + u];
        if (col + At::col_at(j) < p.cols) *reinterpret_cast<Quad*>(to + At::col_at(j)) = quad;
      } else {
#pragma unroll
        for (int u = 0; u < 4; ++u)
          if (col + At::col_at(j + u) < p.cols) to[At::col_at(j + u)] = sum[i][j + u];
      }
    }
  }
}

/// Transposes `parts` (channel of y; tap, channel of x) into the weight's (channel of y, channel of x, tap).
/// Writes are coalesced; the strided reads hit in L1.
struct WeightTarget {
  float* weight;
  Divisor channels, area;
  __device__ unsigned from(unsigned i) const {
    const unsigned line = area.divide(i), tap = i - line * area.value;
    const unsigned row = channels.divide(line), channel = line - row * channels.value;
    return (row * area.value + tap) * channels.value + channel;
  }
  __device__ void operator()(unsigned i, float sum) const { weight[i] = sum; }
};

inline void launch_weight_tiles(const Conv2dShape& s, const float* dy, const float* x, float* dweight,
                                Tuning tuning, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  WeightPlan p = weight_plan(s);
  const std::int64_t image = s.p * s.q, size = s.k * p.cols;
  const auto blocks = [&](const TileCost& tile) {
    return ceil_div(p.rows, tile.rows) * ceil_div(p.cols, tile.cols) * s.groups;
  };
  if (tuning.parts == 0) {
    const std::int64_t most = tuning.max_pixels;
    tuning = choose_tuning(2, 4, blocks, static_cast<double>(ceil_div(s.n * image, kDepth)),
                           static_cast<double>(size));
    tuning.max_pixels = most;
  }
  std::int64_t launches = 0;
  for_images(s.n, image, tuning.max_pixels, [&](std::int64_t, std::int64_t) { ++launches; });
  const Scratch<float> parts(context.device, launches * tuning.parts * size);
  const bool quads = s.channels_last && p.rows % 4 == 0 && aligned<float, 4>(dy);
  const bool input_quads = quads && p.channels.value % 4 == 0 && aligned<float, 4>(x);
  float* to = parts.data();
  for_images(s.n, image, tuning.max_pixels, [&](std::int64_t first, std::int64_t images) {
    p.pixels = static_cast<unsigned>(images * image);
    const auto go = [&]<class Tile>() {
      const std::int64_t col_tiles = ceil_div(p.cols, Tile::kCols);
      p.col_tiles = divisor(col_tiles);
      const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, Tile::kRows) * col_tiles * s.groups), 1,
                      static_cast<unsigned>(tuning.parts));
      const auto run = [&](auto kernel) {
        launch(kernel, grid, Tile::kThreads, 0, stream, p, dy + first * p.out.n, x + first * p.in.n, to);
      };
      if (input_quads) run(&conv2d_weight_parts<Tile, DenseSteps, InputQuads>);
      else if (quads) run(&conv2d_weight_parts<Tile, DenseSteps, InputSingles>);
      else run(&conv2d_weight_parts<Tile, OutputSingles, InputSingles>);
    };
    if (tuning.tile == TileKind::wide) go.template operator()<WideTile>();
    else go.template operator()<SmallTile>();
    to += tuning.parts * size;
  });
  launch_sum_parts(parts.data(), launches * tuning.parts, size,
                   WeightTarget{dweight, p.channels, divisor(s.r * s.s)}, stream);
}

}  // namespace tapestry::kernels::cuda::conv
