// CPU kernels for the largest and the smallest element, and for its index.
#include <limits>

#include "tapestry/kernels/cpu/reduction.h"

namespace tapestry::kernels::cpu {
namespace {

template <class L, bool largest>
struct Best {
  using Lane = L;
  using Total = L;
  Lane start() const {
    using Limits = std::numeric_limits<L>;
    if constexpr (Limits::has_infinity) return largest ? -Limits::infinity() : Limits::infinity();
    else return largest ? Limits::lowest() : Limits::max();
  }
  Lane step(Lane lane, Lane x, Lane) const { return fold(lane, x); }
  // Keeps NaN: the condition is true if b is NaN, and false if only a is NaN, because no comparison with NaN
  // is true.
  Lane fold(Lane a, Lane b) const { return ((largest ? b > a : b < a) | (b != b)) ? b : a; }
  Total begin() const { return start(); }
  Total merge(Total total, Lane lane) const { return fold(total, lane); }
  Total join(Total a, Total b) const { return fold(a, b); }
};

// The position of the first element that equals `value` among r.count elements. If `value` is NaN, the
// position of the first NaN.
template <class T>
std::int64_t find(const T* x, std::int64_t count, std::int64_t stride, Compute<T> value) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<Compute<T>>(x[i * stride]);
    if (element == value || (value != value && element != element)) return i;
  }
  return 0;
}

template <class T, bool largest>
void extreme_kernel(const LaunchContext&, const ExtremeArgs& a) {
  using C = Compute<T>;
  const Reduction& r = a.reduction;
  std::int64_t* const indices = a.indices;
  const T* const x = r.x.as<T>();
  const ReductionWriter<T> out(r);
  reduce<T>(r, Best<C, largest>(), nullptr, [&](std::int64_t i, C value) {
    if (indices) {
      const std::int64_t at = reduction::offset_of(i, r.kept_ndim, r.kept_sizes, r.kept_strides);
      indices[i] = find(x + at, r.count, r.reduced_strides[0], value);
    }
    if (r.out) out(i, value);
  });
}

const bool filled =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T> {
      max.set(DeviceType::cpu, dtype_of<T>, &extreme_kernel<T, true>);
      min.set(DeviceType::cpu, dtype_of<T>, &extreme_kernel<T, false>);
    });

}  // namespace
}  // namespace tapestry::kernels::cpu
