// CPU kernels of binary search and of counting.
#include "tapestry/kernels/ops/search.h"

#include "tapestry/kernels/cpu/grain.h"
#include "tapestry/kernels/search.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void searchsorted_kernel(const LaunchContext&, const SearchsortedArgs& a) {
  const T *const sorted = a.sorted.as<T>(), *const values = a.values.as<T>();
  const std::int64_t* const sorter = a.sorter.as<std::int64_t>();
  std::int64_t* const out = a.out.as<std::int64_t>();
  parallel_for(a.count, grain_of(32), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = a.per_row > 0 ? i / a.per_row * a.n : 0;
      out[i] = position_in(sorted + row, sorter ? sorter + row : nullptr, a.n, values[i], a.right);
    }
  });
}

void bincount_kernel(const LaunchContext&, const BincountArgs& a) {
  const std::int64_t* const x = a.x.as<std::int64_t>();
  std::int64_t* const out = a.out.as<std::int64_t>();
  for (std::int64_t i = 0; i < a.n; ++i) ++out[x[i]];
}

const bool filled = for_types<float, double, std::int64_t>([]<class T> {
                      searchsorted.set(DeviceType::cpu, dtype_of<T>, &searchsorted_kernel<T>);
                    }) &&
                    (bincount.set(DeviceType::cpu, DType::i64, &bincount_kernel), true);

}  // namespace
}  // namespace tapestry::kernels::cpu
