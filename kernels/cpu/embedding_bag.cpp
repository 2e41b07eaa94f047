// Sums, means and maxima of rows of an embedding.
#include "tapestry/kernels/ops/embedding_bag.h"

#include <algorithm>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"
#include "tapestry/kernels/embedding_bag.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void embedding_bag_kernel(const LaunchContext&, const EmbeddingBagArgs& a) {
  using C = Compute<T>;
  const T *const weight = a.weight.as<T>(), *const scales = a.scales.as<T>();
  const std::int64_t* const indices = a.indices.as<std::int64_t>();
  std::int64_t *const bag_of = a.bag_of.as<std::int64_t>(), *const sizes = a.sizes.as<std::int64_t>(),
                      *const chosen = a.chosen.as<std::int64_t>();
  T* const out = a.out.as<T>();
  const Bags bags{a.offsets.as<std::int64_t>(), a.count, a.bags, a.per_bag, a.has_end};
  FirstBad bad(a.first_bad), bad_offset(a.first_bad_offset);
  const std::int64_t work = (a.count / std::max<std::int64_t>(a.bags, 1) + 1) * a.columns;
  parallel_for(a.bags, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    std::vector<C> result(static_cast<std::size_t>(a.columns));
    for (std::int64_t b = begin; b < end; ++b) {
      const Bags::Range range = bags.range(b);
      if (range.bad >= 0) bad_offset.report(range.bad);
      std::fill(result.begin(), result.end(), C(0));
      std::int64_t* const rows = chosen ? chosen + b * a.columns : nullptr;
      if (rows) std::fill_n(rows, a.columns, std::int64_t{0});
      std::int64_t size = 0;
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        if (bag_of) bag_of[i] = b;
        const std::int64_t index = indices[i];
        if (index < 0 || index >= a.rows) {
          bad.report(i);
          continue;
        }
        if (index == a.padding) continue;
        const T* const row = weight + index * a.row_stride;
        C* const to = result.data();
        if (a.mode == BagMode::max) {
          for (std::int64_t c = 0; c < a.columns; ++c) {
            const C v = load(row[c * a.column_stride]);
            if (size > 0 && !(v > to[c])) continue;
            to[c] = v;
            if (rows) rows[c] = index;
          }
        } else {
          const C scale = scales ? load(scales[i]) : C(1);
          if (a.column_stride == 1)
            for (std::int64_t c = 0; c < a.columns; ++c) to[c] += scale * load(row[c]);
          else
            for (std::int64_t c = 0; c < a.columns; ++c) to[c] += scale * load(row[c * a.column_stride]);
        }
        ++size;
      }
      if (sizes) sizes[b] = size;
      const C divisor = a.mode == BagMode::mean && size > 0 ? static_cast<C>(size) : C(1);
      for (std::int64_t c = 0; c < a.columns; ++c)
        out[b * a.columns + c] = T(result[static_cast<std::size_t>(c)] / divisor);
    }
  });
}

const bool filled = for_types<float, double, Half, BFloat16>(
    []<class T> { embedding_bag.set(DeviceType::cpu, dtype_of<T>, &embedding_bag_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
