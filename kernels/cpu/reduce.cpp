// CPU kernels for sums, and for reductions that are based on sums: variance, logsumexp.
#include "tapestry/kernels/ops/reduce.h"

#include <cmath>

#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/reduction_sum.h"

namespace tapestry::kernels::cpu {
namespace {

struct Itself {
  template <class X>
  X operator()(X x, X) const {
    return x;
  }
};
// The reduction Op for the sum of the elements.
template <class L>
struct PlainSum : Sum<L, Itself> {
  static constexpr bool kAddsElements = true;
};

template <class T>
void sum_kernel(const LaunchContext&, const SumArgs& a) {
  const Reduction& r = a.reduction;
  const PlainSum<SumLane<T>> op;
  if constexpr (std::is_floating_point_v<Compute<T>>) {
    reduce<T>(r, op, nullptr, [out = ReductionWriter<T>(r), divisor = a.divisor](std::int64_t i, double sum) {
      out(i, sum / divisor);
    });
  } else {
    std::int64_t* const out = r.out.as<std::int64_t>();
    reduce<T>(r, op, nullptr, [out](std::int64_t i, std::int64_t sum) { out[i] = sum; });
  }
}

template <class T>
void nansum_kernel(const LaunchContext&, const Reduction& r) {
  using Lane = Compute<T>;
  sum_of<T>(
      r, nullptr, [](Lane x, Lane) { return x == x ? x : Lane(0); },
      [out = ReductionWriter<T>(r)](std::int64_t i, double sum) { out(i, sum); });
}

// The lanes are as wide as the total: a product of 32 elements may exceed the range of f32, although the
// whole product does not.
template <class T>
struct Product {
  using Lane = Wide<T>;
  using Total = Lane;
  Lane start() const { return 1; }
  Lane step(Lane lane, Lane x, Lane) const { return fold(lane, x); }
  Lane fold(Lane a, Lane b) const {
    if constexpr (std::is_integral_v<Lane>)
      return static_cast<Lane>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    else return a * b;
  }
  Total begin() const { return 1; }
  Total merge(Total total, Lane lane) const { return fold(total, lane); }
  Total join(Total a, Total b) const { return fold(a, b); }
};
template <class T>
void prod_kernel(const LaunchContext&, const Reduction& r) {
  reduce<T>(r, Product<Compute<T>>(), nullptr,
            [out = ReductionWriter<T>(r)](std::int64_t i, auto product) { out(i, product); });
}

template <class T>
void variance_kernel(const LaunchContext&, const VarianceArgs& a) {
  const Reduction& r = a.reduction;
  const auto f = [](auto x, auto center) { return (x - center) * (x - center); };
  sum_of<T>(r, a.mean, f, [out = ReductionWriter<T>(r), divisor = a.divisor](std::int64_t i, double sum) {
    out(i, sum / divisor);
  });
}

template <class T>
void logsumexp_kernel(const LaunchContext&, const LogsumexpArgs& a) {
  const Reduction& r = a.reduction;
  using Lane = Compute<T>;
  // Shifting by an infinite maximum would give NaN.
  const auto shift = [](Lane m) { return std::isinf(m) ? Lane(0) : m; };
  const auto f = [shift](Lane x, Lane m) { return fast_exp(x - shift(m)); };
  sum_of<T>(
      r, a.max, f,
      [out = ReductionWriter<T>(r), shift, max = a.max.as<Lane>()](std::int64_t i, double sum) {
        out(i, std::log(sum) + shift(max[i]));
      },
      4);
}

const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
                      sum.set(DeviceType::cpu, dtype_of<T>, &sum_kernel<T>);
                      nansum.set(DeviceType::cpu, dtype_of<T>, &nansum_kernel<T>);
                      variance.set(DeviceType::cpu, dtype_of<T>, &variance_kernel<T>);
                      logsumexp.set(DeviceType::cpu, dtype_of<T>, &logsumexp_kernel<T>);
                    }) &&
                    for_types<std::int64_t, std::int32_t, std::uint8_t, bool>(
                        []<class T> { sum.set(DeviceType::cpu, dtype_of<T>, &sum_kernel<T>); }) &&
                    for_types<float, double, std::int64_t>(
                        []<class T> { prod.set(DeviceType::cpu, dtype_of<T>, &prod_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
