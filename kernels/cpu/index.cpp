// CPU kernels that gather and add rows by index.
#include "tapestry/kernels/ops/index.h"

#include <algorithm>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void index_select_kernel(const LaunchContext&, const IndexSelectArgs& r) {
  const T* const in = r.x.as<T>();
  T* const out = r.y.as<T>();
  const std::int64_t* const index = r.index.as<std::int64_t>();
  FirstBad bad(r.first_bad);
  parallel_for(r.outer * r.count, grain_of(r.inner), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t outer = row / r.count, i = row - outer * r.count, at = index[i];
      if (at < 0 || at >= r.rows) {
        bad.report(i);
        continue;
      }
      std::copy_n(in + (outer * r.rows + at) * r.inner, r.inner, out + row * r.inner);
    }
  });
}

// Several indices may be equal. Therefore the other dimensions are divided among the threads, and each thread
// processes all indices in order.
template <class T>
void index_add_kernel(const LaunchContext&, const IndexAddArgs& r) {
  using Sum = Compute<T>;
  const T* const in = r.dy.as<T>();
  Sum* const out = r.dx.as<Sum>();
  const std::int64_t* const index = r.index.as<std::int64_t>();
  FirstBad bad(r.first_bad);
  const auto add = [&](std::int64_t outer, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < r.count; ++i) {
      if (index[i] < 0 || index[i] >= r.rows) {
        if (outer == 0 && begin == 0) bad.report(i);
        continue;
      }
      Sum* const to = out + (outer * r.rows + index[i]) * r.inner;
      const T* const from = in + (outer * r.count + i) * r.inner;
      for (std::int64_t j = begin; j < end; ++j) to[j] += load(from[j]);
    }
  };
  const std::int64_t work = std::max<std::int64_t>(r.count, 1);
  if (r.outer > 1) {
    parallel_for(r.outer, grain_of(work * r.inner), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t outer = begin; outer < end; ++outer) add(outer, 0, r.inner);
    });
  } else if (r.outer == 1) {
    parallel_for(r.inner, std::max<std::int64_t>(kGrain / work, 16),
                 [&](std::int64_t begin, std::int64_t end) { add(0, begin, end); });
  }
}

template <class T>
void scatter_kernel(const LaunchContext&, const ScatterArgs& s) {
  const T* const in = s.g.as<T>();
  T* const out = s.dx.as<T>();
  const std::int64_t* const index = s.index.as<std::int64_t>();
  const std::int64_t size = s.n * s.inner;
  parallel_for(s.outer, grain_of(size), [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin * size, out + end * size, T());
    for (std::int64_t o = begin; o < end; ++o)
      for (std::int64_t i = 0; i < s.inner; ++i)
        out[o * size + index[o * s.inner + i] * s.inner + i] = in[o * s.inner + i];
  });
}

const bool filled =
    for_types<float, double, Half, BFloat16>([]<class T> {
      index_add.set(DeviceType::cpu, dtype_of<T>, &index_add_kernel<T>);
      scatter.set(DeviceType::cpu, dtype_of<T>, &scatter_kernel<T>);
    }) &&
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>(
        []<class T> { index_select.set(DeviceType::cpu, dtype_of<T>, &index_select_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
