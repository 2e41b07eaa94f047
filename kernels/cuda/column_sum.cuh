#pragma once
// Sums over the rows of a dense matrix. A block sums some of the rows of 32 packs of columns; where that
// takes more than one block a column, the sums of the blocks are rows of another matrix, summed likewise.
#include <algorithm>

#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kSumRows = 8;  // that a block reads at a time

/// Block (32, kSumRows), grid (columns, parts of the rows). Row `part` of y gets the sums of that part.
template <class In, class Out, int V>
__global__ void __launch_bounds__(32 * kSumRows)
    column_sums(const In* x, Out* y, std::int64_t rows, std::int64_t cols, std::int64_t rows_a_part) {
  SHARED(float, parts, [kSumRows][32 * V + 1]);
  const int lane = static_cast<int>(threadIdx.x), own = static_cast<int>(threadIdx.y);
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * (32 * V);
  const std::int64_t column = first_column + lane * V;
  const std::int64_t begin = blockIdx.y * rows_a_part, end = std::min(rows, begin + rows_a_part);
  float sums[V] = {};
  const auto add = [&]<int kRows>(std::int64_t row) {  // all are on their way before the first is added
    Pack<In, V> packs[kRows];
    UNROLL for (int r = 0; r < kRows; ++r) packs[r] =
        *reinterpret_cast<const Pack<In, V>*>(x + (row + r * kSumRows) * cols + column);
    UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int i = 0; i < V; ++i) sums[i] += load(packs[r].v[i]);
  };
  if (column < cols) {
    std::int64_t row = begin + own;
    for (; row + 3 * kSumRows < end; row += 4 * kSumRows) add.template operator()<4>(row);
    for (; row < end; row += kSumRows) add.template operator()<1>(row);
  }
  UNROLL for (int i = 0; i < V; ++i) parts[own][lane * V + i] = sums[i];
  __syncthreads();
  const int thread = own * 32 + lane;
  if (thread >= 32 * V || first_column + thread >= cols) return;
  float sum = parts[0][thread];
  UNROLL for (int i = 1; i < kSumRows; ++i) sum += parts[i][thread];
  y[blockIdx.y * cols + first_column + thread] = store<Out>(sum);
}

template <class In, class Out>
void launch_column_sums(const In* x, Out* y, std::int64_t rows, std::int64_t cols, std::int64_t rows_a_part,
                        cudaStream_t stream) {
  constexpr int V = 16 / sizeof(In);
  const auto with = [&](auto kernel, std::int64_t columns) {
    launch(kernel,
           {static_cast<unsigned>((cols + columns - 1) / columns),
            static_cast<unsigned>(std::max<std::int64_t>((rows + rows_a_part - 1) / rows_a_part, 1))},
           {32, kSumRows}, 0, stream, x, y, rows, cols, rows_a_part);
  };
  if (cols % V == 0 && aligned<In, V>(x)) with(&column_sums<In, Out, V>, 32 * V);
  else with(&column_sums<In, Out, 1>, 32);
}

/// y[j] = sum over i of x[i, j]: x (rows, cols). `device` is where the workspace comes from.
template <class T>
void launch_column_sum(std::int64_t rows, std::int64_t cols, const T* x, T* y, Device device,
                       cudaStream_t stream) {
  if (cols == 0) return;
  // Four blocks an SM of the largest GPUs, but no fewer than eight rows a thread. The same on every GPU.
  const std::int64_t columns = cols % (16 / sizeof(T)) == 0 ? 32 * (16 / sizeof(T)) : 32;
  const std::int64_t most = std::max<std::int64_t>(528 / ((cols + columns - 1) / columns), 1);
  const std::int64_t rows_a_part = std::max<std::int64_t>((rows + most - 1) / most, 8 * kSumRows);
  const std::int64_t parts = (rows + rows_a_part - 1) / rows_a_part;
  if (parts <= 1) return launch_column_sums<T, T>(x, y, rows, cols, rows_a_part, stream);
  const Scratch<float> partial(device, parts * cols);
  launch_column_sums<T, float>(x, partial.data(), rows, cols, rows_a_part, stream);
  launch_column_sums<float, T>(partial.data(), y, parts, cols, parts, stream);
}

}  // namespace tapestry::kernels::cuda
