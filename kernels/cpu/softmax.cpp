#include "tapestry/kernels/ops/softmax.h"

#include <cmath>

#include "tapestry/kernels/cpu/rows.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void softmax_kernel(const LaunchContext&, const SoftmaxArgs& a) {
  using C = Compute<T>;
  const SoftmaxShape& s = a.shape;
  for_each_row<T, 1>(
      s.outer, s.n, s.inner, {a.x.as<T>()}, a.y.as<T>(), 4, [n = s.n](std::int64_t, const auto& in, C* out) {
        const auto x = in[0];
        const C max = row_max(x, n);
        const C scale =
            1 / row_sum<C>(n, [x, out, max](std::int64_t i) { return out[i] = exp_of_negative(x[i] - max); });
        for (std::int64_t i = 0; i < n; ++i) out[i] *= scale;
      });
}

template <class T>
void log_softmax_kernel(const LaunchContext&, const SoftmaxArgs& a) {
  using C = Compute<T>;
  const SoftmaxShape& s = a.shape;
  for_each_row<T, 1>(
      s.outer, s.n, s.inner, {a.x.as<T>()}, a.y.as<T>(), 4, [n = s.n](std::int64_t, const auto& in, C* out) {
        const auto x = in[0];
        const C max = row_max(x, n);
        const C log_sum =
            std::log(row_sum<C>(n, [x, max](std::int64_t i) { return exp_of_negative(x[i] - max); }));
        for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] - max) - log_sum;
      });
}

template <class T>
void softmax_backward_kernel(const LaunchContext&, const SoftmaxBackwardArgs& a) {
  using C = Compute<T>;
  const SoftmaxShape& s = a.shape;
  for_each_row<T, 2>(s.outer, s.n, s.inner, {a.y.as<T>(), a.dy.as<T>()}, a.dx.as<T>(), 2,
                     [n = s.n](std::int64_t, const auto& in, C* out) {
                       const auto y = in[0];
                       const auto g = in[1];
                       const C dot = row_sum<C>(n, [y, g](std::int64_t i) { return y[i] * g[i]; });
                       for (std::int64_t i = 0; i < n; ++i) out[i] = y[i] * (g[i] - dot);
                     });
}

template <class T>
void log_softmax_backward_kernel(const LaunchContext&, const SoftmaxBackwardArgs& a) {
  using C = Compute<T>;
  const SoftmaxShape& s = a.shape;
  for_each_row<T, 2>(s.outer, s.n, s.inner, {a.y.as<T>(), a.dy.as<T>()}, a.dx.as<T>(), 4,
                     [n = s.n](std::int64_t, const auto& in, C* out) {
                       const auto y = in[0];
                       const auto g = in[1];
                       const C sum = row_sum<C>(n, [g](std::int64_t i) { return g[i]; });
                       for (std::int64_t i = 0; i < n; ++i) out[i] = g[i] - fast_exp(y[i]) * sum;
                     });
}

const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  softmax.set(DeviceType::cpu, dtype_of<T>, &softmax_kernel<T>);
  log_softmax.set(DeviceType::cpu, dtype_of<T>, &log_softmax_kernel<T>);
  softmax_backward.set(DeviceType::cpu, dtype_of<T>, &softmax_backward_kernel<T>);
  log_softmax_backward.set(DeviceType::cpu, dtype_of<T>, &log_softmax_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
