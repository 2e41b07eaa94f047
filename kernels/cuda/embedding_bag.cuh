#pragma once
// Sums, means and maxima of rows of an embedding. One thread computes one column of a bag, so adjacent
// threads read adjacent elements, and no two threads write to one element.
#include "tapestry/kernels/cuda/index.cuh"
#include "tapestry/kernels/embedding_bag.h"
#include "tapestry/kernels/ops/embedding_bag.h"

namespace tapestry::kernels::cuda {

struct BagPlan {
  std::int64_t total;  // threads: bags x columns
  WideDivisor columns;
  Bags bags;
  BagMode mode;
  std::int64_t rows, row_stride, column_stride, padding;
  const std::int64_t* indices;
  std::int64_t *bag_of, *sizes, *chosen;
  BadIndexCell first_bad, first_bad_offset;
};

template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    reduce_bags(BagPlan p, const T* weight, const T* scales, T* out) {
  const std::int64_t thread = index_thread();
  if (thread >= p.total) return;
  std::int64_t column;
  const std::int64_t bag = split(thread, p.columns, column);
  const Bags::Range range = p.bags.range(bag);
  const bool first_column = column == 0;
  if (first_column && range.bad >= 0) report_bad(p.first_bad_offset, range.bad);
  float result = 0;
  std::int64_t size = 0, row = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t index = p.indices[i];
    // Bags of invalid offsets, which are reported, may overlap. The exchange keeps their writes from being a
    // data race.
    if (first_column && p.bag_of)
      atomicExch(reinterpret_cast<unsigned long long*>(&p.bag_of[i]), static_cast<unsigned long long>(bag));
    if (index < 0 || index >= p.rows) {
      if (first_column) report_bad(p.first_bad, i);
      continue;
    }
    if (index == p.padding) continue;
    const float value = load(weight[index * p.row_stride + column * p.column_stride]);
    if (p.mode != BagMode::max) result += scales ? load(scales[i]) * value : value;
    else if (size == 0 || value > result) result = value, row = index;
    ++size;
  }
  if (p.mode == BagMode::mean && size > 0) result /= static_cast<float>(size);
  out[thread] = store<T>(result);
  if (p.chosen) p.chosen[thread] = row;
  if (first_column && p.sizes) p.sizes[bag] = size;
}

template <class T>
void launch_embedding_bag(const LaunchContext& context, const EmbeddingBagArgs& a) {
  const BagPlan plan{a.bags * a.columns,
                     WideDivisor(std::max<std::int64_t>(a.columns, 1)),
                     Bags{a.offsets.as<std::int64_t>(), a.count, a.bags, a.per_bag, a.has_end},
                     a.mode,
                     a.rows,
                     a.row_stride,
                     a.column_stride,
                     a.padding,
                     a.indices.as<std::int64_t>(),
                     a.bag_of.as<std::int64_t>(),
                     a.sizes.as<std::int64_t>(),
                     a.chosen.as<std::int64_t>(),
                     a.first_bad,
                     a.first_bad_offset};
  if (plan.total == 0) return;
  launch(&reduce_bags<T>, index_blocks(plan.total), kIndexThreads, 0, stream_of(context), plan,
         a.weight.as<T>(), a.scales.as<T>(), a.out.as<T>());
}

}  // namespace tapestry::kernels::cuda
