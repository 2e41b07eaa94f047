#pragma once
// Binary search and counting, one thread per element.
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/ops/search.h"
#include "tapestry/kernels/search.h"

namespace tapestry::kernels::cuda {

inline constexpr int kSearchThreads = 256;

inline unsigned search_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kSearchThreads - 1) / kSearchThreads);
}
__device__ __forceinline__ std::int64_t search_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kSearchThreads + threadIdx.x;
}

struct SearchPlan {
  std::int64_t count, n;
  WideDivisor per_row;
  bool rows, right;
  const std::int64_t* sorter;
};
template <class T>
__global__ void __launch_bounds__(kSearchThreads)
    search_values(SearchPlan plan, const T* sorted, const T* values, std::int64_t* out) {
  const std::int64_t i = search_thread();
  if (i >= plan.count) return;
  const std::int64_t row =
      plan.rows ? static_cast<std::int64_t>(plan.per_row.divide(static_cast<std::uint64_t>(i))) * plan.n : 0;
  out[i] =
      position_in(sorted + row, plan.sorter ? plan.sorter + row : nullptr, plan.n, values[i], plan.right);
}
template <class T>
void launch_searchsorted(const LaunchContext& context, const SearchsortedArgs& a) {
  if (a.count == 0) return;
  const SearchPlan plan{a.count,       a.n,     WideDivisor(std::max<std::int64_t>(a.per_row, 1)),
                        a.per_row > 0, a.right, a.sorter.as<std::int64_t>()};
  launch(&search_values<T>, search_blocks(a.count), kSearchThreads, 0, stream_of(context), plan,
         a.sorted.as<T>(), a.values.as<T>(), a.out.as<std::int64_t>());
}

/// Sums of integers are exact, so atomic additions are deterministic.
template <class = void>
__global__ void __launch_bounds__(kSearchThreads)
    count_values(std::int64_t n, const std::int64_t* x, unsigned long long* out) {
  const std::int64_t i = search_thread();
  if (i < n) atomicAdd(out + x[i], 1ull);
}
template <class = void>
void launch_bincount(const LaunchContext& context, const BincountArgs& a) {
  if (a.n == 0) return;
  launch(&count_values<>, search_blocks(a.n), kSearchThreads, 0, stream_of(context), a.n,
         a.x.as<std::int64_t>(), reinterpret_cast<unsigned long long*>(a.out.as<std::int64_t>()));
}

}  // namespace tapestry::kernels::cuda
