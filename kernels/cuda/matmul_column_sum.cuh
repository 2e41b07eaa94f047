#pragma once
// Column sums of a dense (rows, cols) matrix. A block sums part of the rows for 32 packs of columns. If the
// rows are split, the partial sums form a smaller matrix, which a second launch of the same kernel sums.
#include <algorithm>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/matmul.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kSumRows = 8;  // rows that a block reads per iteration
inline constexpr std::int64_t kOneLaunchRows = 256;

/// Sums one part of the rows for each column. Block (32, kSumRows), grid (column tiles, parts of the rows).
/// Row blockIdx.y of y receives the sums of that part.
template <class In, class Out, int V>
__global__ void __launch_bounds__(32 * kSumRows)
    column_sums(const In* x, Out* y, std::int64_t rows, std::int64_t cols, std::int64_t rows_per_part) {
  __shared__ float parts[kSumRows][32 * V + 1];
  const int lane = static_cast<int>(threadIdx.x), own = static_cast<int>(threadIdx.y);
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * (32 * V);
  const std::int64_t column = first_column + lane * V;
  const std::int64_t begin = blockIdx.y * rows_per_part, end = std::min(rows, begin + rows_per_part);
  float sums[V] = {};
  const auto add = [&]<int kRows>(std::int64_t row) {  // issues all kRows loads before the first addition
    Pack<In, V> packs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      packs[r] = *reinterpret_cast<const Pack<In, V>*>(x + (row + r * kSumRows) * cols + column);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] += load(packs[r].v[i]);
  };
  if (column < cols) {
    std::int64_t row = begin + own;
    for (; row + 3 * kSumRows < end; row += 4 * kSumRows) add.template operator()<4>(row);
    for (; row < end; row += kSumRows) add.template operator()<1>(row);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) parts[own][lane * V + i] = sums[i];
  __syncthreads();
  const int thread = own * 32 + lane;
  if (thread >= 32 * V || first_column + thread >= cols) return;
  float sum = parts[0][thread];
#pragma unroll
  for (int i = 1; i < kSumRows; ++i) sum += parts[i][thread];
  y[blockIdx.y * cols + first_column + thread] = store<Out>(sum);
}

template <class In, class Out>
void launch_column_sums(const In* x, Out* y, std::int64_t rows, std::int64_t cols, std::int64_t rows_per_part,
                        cudaStream_t stream) {
  constexpr int V = 16 / sizeof(In);
  const auto with = [&](auto kernel, std::int64_t columns) {
    launch(kernel,
           {static_cast<unsigned>((cols + columns - 1) / columns),
            static_cast<unsigned>(std::max<std::int64_t>((rows + rows_per_part - 1) / rows_per_part, 1))},
           {32, kSumRows}, 0, stream, x, y, rows, cols, rows_per_part);
  };
  if (cols % V == 0 && aligned<In, V>(x)) with(&column_sums<In, Out, V>, 32 * V);
  else with(&column_sums<In, Out, 1>, 32);
}

/// y[j] = sum over i of x[i, j] for x of shape (rows, cols).
template <class T>
void launch_column_sum(const LaunchContext& context, const ColumnSumArgs& a) {
  const std::int64_t rows = a.rows, cols = a.cols;
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  const cudaStream_t stream = stream_of(context);
  if (cols == 0) return;
  // The rows are split so that there are at most four blocks per SM on 132 SMs, and at least eight rows per
  // thread. The split is the same on every GPU, so the results have the same bits too.
  const std::int64_t columns = cols % (16 / sizeof(T)) == 0 ? 32 * (16 / sizeof(T)) : 32;
  const std::int64_t most = std::max<std::int64_t>(528 / ((cols + columns - 1) / columns), 1);
  const std::int64_t rows_per_part = std::max<std::int64_t>((rows + most - 1) / most, 8 * kSumRows);
  // A second launch would take longer than what it saves.
  if (rows <= kOneLaunchRows)
    return launch_column_sums<T, T>(x, y, rows, cols, std::max<std::int64_t>(rows, 1), stream);
  const std::int64_t parts = (rows + rows_per_part - 1) / rows_per_part;
  if (parts <= 1) return launch_column_sums<T, T>(x, y, rows, cols, rows_per_part, stream);
  const Scratch<float> partial(context.device, parts * cols);
  launch_column_sums<T, float>(x, partial.data(), rows, cols, rows_per_part, stream);
  launch_column_sums<float, T>(partial.data(), y, parts, cols, parts, stream);
}

}  // namespace tapestry::kernels::cuda
