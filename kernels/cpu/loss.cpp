#include "tapestry/kernels/ops/loss.h"

#include <cmath>

#include "tapestry/kernels/cpu/first_bad.h"
#include "tapestry/kernels/cpu/pointwise.h"
#include "tapestry/kernels/cpu/rows.h"

namespace tapestry::kernels::cpu {
namespace {

template <class C>
C weight_of(const ClassRowsArgs& a, std::int64_t c) {
  return a.weight ? static_cast<const C*>(a.weight.address())[c] : C(1);
}

// The kind of a row's target: a valid class, ignore_index, or a class out of range.
enum class Target { good, ignored, bad };
Target kind_of(const ClassRowsArgs& a, std::int64_t target) {
  if (target == a.ignore_index) return Target::ignored;
  return target >= 0 && target < a.classes ? Target::good : Target::bad;
}

template <class C>
C row_grad(const LossGrad& g, std::int64_t row) {
  const C grad = g.grad ? static_cast<const C*>(g.grad.address())[g.each_row ? row : 0] : C(1);
  if (!g.divisor) return grad;
  const C divisor = *static_cast<const C*>(g.divisor.address());
  return divisor == 0 ? C(0) : grad / divisor;
}

template <class T>
void cross_entropy_kernel(const LaunchContext&, const ClassLossArgs& args) {
  using C = Compute<T>;
  const ClassRowsArgs& a = args.rows;
  FirstBad bad(args.first_bad);
  const std::int64_t n = a.classes;
  const C smooth = static_cast<C>(a.smoothing), rest = static_cast<C>(1 - a.smoothing),
          each = smooth / static_cast<C>(n);
  C* const stats = a.stats.as<C>();
  C* const loss = args.losses.as<C>();
  C* const used = args.weights.as<C>();
  const auto shifted = [&](std::int64_t row, const C* x) {
    const C max = row_max(x, n);
    const C log_sum =
        std::log(row_sum<C>(n, [x, max](std::int64_t i) { return exp_of_negative(x[i] - max); }));
    stats[2 * row] = max;
    stats[2 * row + 1] = log_sum;
    return [x, max, log_sum](std::int64_t c) { return log_sum - (x[c] - max); };  // -log(p_c)
  };
  if (!a.target) {
    for_each_row<T, 2>(a.outer, n, a.inner, {a.x.as<T>(), a.probabilities.as<T>()}, nullptr, 6,
                       [&](std::int64_t row, const C* const(&in)[2], C*) {
                         const auto cost = shifted(row, in[0]);
                         const C* const t = in[1];
                         loss[row] = row_sum<C>(n, [&](std::int64_t c) {
                           return weight_of<C>(a, c) * (rest * t[c] + each) * cost(c);
                         });
                         used[row] = 1;
                       });
    return;
  }
  for_each_row<T, 1>(
      a.outer, n, a.inner, {a.x.as<T>()}, nullptr, 4, [&](std::int64_t row, const C* const(&in)[1], C*) {
        const auto cost = shifted(row, in[0]);
        const std::int64_t target = a.target[row];
        const Target kind = kind_of(a, target);
        loss[row] = used[row] = 0;
        if (kind == Target::bad) bad.report(row);
        if (kind != Target::good) return;
        used[row] = weight_of<C>(a, target);
        loss[row] = rest * used[row] * cost(target);
        if (smooth != 0)
          loss[row] += each * row_sum<C>(n, [&](std::int64_t c) { return weight_of<C>(a, c) * cost(c); });
      });
}

template <class T>
void cross_entropy_backward_kernel(const LaunchContext&, const ClassLossBackwardArgs& args) {
  using C = Compute<T>;
  const ClassRowsArgs& a = args.rows;
  const LossGrad& g = args.grad;
  T* const dx = args.dx.as<T>();
  const std::int64_t n = a.classes;
  const C smooth = static_cast<C>(a.smoothing), rest = static_cast<C>(1 - a.smoothing),
          each = smooth / static_cast<C>(n);
  const C* const stats = a.stats.as<C>();
  const C all =
      a.weight ? row_sum<C>(n, [&](std::int64_t c) { return weight_of<C>(a, c); }) : static_cast<C>(n);
  const auto probability = [&](std::int64_t row, const C* x) {
    return [x, max = stats[2 * row], log_sum = stats[2 * row + 1]](std::int64_t c) {
      return exp_of_negative((x[c] - max) - log_sum);
    };
  };
  if (!a.target) {
    for_each_row<T, 2>(a.outer, n, a.inner, {a.x.as<T>(), a.probabilities.as<T>()}, dx, 6,
                       [&](std::int64_t row, const C* const(&in)[2], C* out) {
                         const auto p = probability(row, in[0]);
                         const C* const t = in[1];
                         const C grad = row_grad<C>(g, row);
                         // With and without weights, so that both loops are vectorised.
                         const auto run = [&](const auto& wq) {
                           const C sum = row_sum<C>(n, wq);
                           for (std::int64_t c = 0; c < n; ++c) out[c] = grad * (p(c) * sum - wq(c));
                         };
                         if (a.weight)
                           run([t, rest, each, w = static_cast<const C*>(a.weight.address())](
                                   std::int64_t c) { return w[c] * (rest * t[c] + each); });
                         else run([t, rest, each](std::int64_t c) { return rest * t[c] + each; });
                       });
    return;
  }
  for_each_row<T, 1>(a.outer, n, a.inner, {a.x.as<T>()}, dx, 4,
                     [&](std::int64_t row, const C* const(&in)[1], C* out) {
                       const std::int64_t target = a.target[row];
                       if (kind_of(a, target) != Target::good) {
                         std::fill_n(out, n, C(0));
                         return;
                       }
                       const auto p = probability(row, in[0]);
                       const C grad = row_grad<C>(g, row), hit = rest * weight_of<C>(a, target);
                       const C scale = grad * (hit + each * all);
                       for (std::int64_t c = 0; c < n; ++c) out[c] = scale * p(c);
                       if (smooth != 0)
                         for (std::int64_t c = 0; c < n; ++c) out[c] -= grad * each * weight_of<C>(a, c);
                       out[target] -= grad * hit;
                     });
}

template <class T>
void cross_entropy_target_backward_kernel(const LaunchContext&, const ClassLossBackwardArgs& args) {
  using C = Compute<T>;
  const ClassRowsArgs& a = args.rows;
  const LossGrad& g = args.grad;
  T* const dtarget = args.dx.as<T>();
  const C rest = static_cast<C>(1 - a.smoothing);
  const C* const stats = a.stats.as<C>();
  for_each_row<T, 1>(a.outer, a.classes, a.inner, {a.x.as<T>()}, dtarget, 2,
                     [&](std::int64_t row, const C* const(&in)[1], C* out) {
                       const C* const x = in[0];
                       const C grad = row_grad<C>(g, row) * rest, max = stats[2 * row],
                               log_sum = stats[2 * row + 1];
                       for (std::int64_t c = 0; c < a.classes; ++c)
                         out[c] = grad * weight_of<C>(a, c) * (log_sum - (x[c] - max));
                     });
}

template <class T>
void nll_loss_kernel(const LaunchContext&, const ClassLossArgs& args) {
  using C = Compute<T>;
  const ClassRowsArgs& a = args.rows;
  FirstBad bad(args.first_bad);
  const T* const x = a.x.as<T>();
  C *const losses = args.losses.as<C>(), *const weights = args.weights.as<C>();
  parallel_for(a.outer * a.inner, kGrain / 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t target = a.target[row];
      C loss = 0, weight = 0;
      const Target kind = kind_of(a, target);
      if (kind == Target::good) {
        const std::int64_t o = row / a.inner, i = row - o * a.inner;
        weight = weight_of<C>(a, target);
        loss = -weight * static_cast<C>(x[(o * a.classes + target) * a.inner + i]);
      } else if (kind == Target::bad) {
        bad.report(row);
      }
      losses[row] = loss;
      weights[row] = weight;
    }
  });
}

template <class T>
void nll_loss_backward_kernel(const LaunchContext&, const ClassLossBackwardArgs& args) {
  using C = Compute<T>;
  const ClassRowsArgs& a = args.rows;
  const LossGrad& g = args.grad;
  T* const out = args.dx.as<T>();
  const std::int64_t size = a.classes * a.inner;
  parallel_for(a.outer, grain_of(size), [&](std::int64_t begin, std::int64_t end) {
    std::fill(out + begin * size, out + end * size, T());
    for (std::int64_t o = begin; o < end; ++o)
      for (std::int64_t i = 0; i < a.inner; ++i) {
        const std::int64_t row = o * a.inner + i, target = a.target[row];
        if (kind_of(a, target) == Target::good)
          out[o * size + target * a.inner + i] = T(-weight_of<C>(a, target) * row_grad<C>(g, row));
      }
  });
}

// The sum of get(i), computed in blocks of a fixed size that are joined in order, so that it does not depend
// on the number of threads.
template <class C, class Get>
double blocked_sum(std::int64_t n, const Get& get) {
  static constexpr std::int64_t block = 16384;
  if (n <= block) return static_cast<double>(row_sum<C>(n, get));
  const std::int64_t blocks = (n + block - 1) / block;
  const auto partial = std::make_unique_for_overwrite<double[]>(static_cast<std::size_t>(blocks));
  parallel_for(blocks, kGrain / block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b)
      partial[b] = static_cast<double>(row_sum<C>(std::min(block, n - b * block),
                                                  [&get, b](std::int64_t i) { return get(b * block + i); }));
  });
  double total = 0;
  for (std::int64_t b = 0; b < blocks; ++b) total += partial[b];
  return total;
}

/// Runs a kernel of losses, then computes their mean if the caller wants it.
template <class T, void (*losses_of)(const LaunchContext&, const ClassLossArgs&)>
void with_mean(const LaunchContext& context, const ClassLossArgs& a) {
  losses_of(context, a);
  if (!a.mean) return;
  using C = Compute<T>;
  const auto sum = [n = a.rows.outer * a.rows.inner](const C* x) {
    return blocked_sum<C>(n, [x](std::int64_t i) { return x[i]; });
  };
  const double weight = sum(a.weights.as<C>());
  *a.total.as<C>() = static_cast<C>(weight);
  *a.mean.as<C>() = static_cast<C>(sum(a.losses.as<C>()) / weight);
}

template <class T>
void sum_squared_error_kernel(const LaunchContext&, const SumSquaredErrorArgs& a) {
  using C = Compute<T>;
  const double sum = blocked_sum<C>(a.n, [x = a.x.as<T>(), target = a.target.as<T>()](std::int64_t i) {
    return SquaredError::value<Math>(static_cast<C>(x[i]), static_cast<C>(target[i]));
  });
  *a.out.as<T>() = convert<T>(sum / a.divisor);
}

const bool rows = for_rows_of(ErrorRows(), []<class Row>() { register_pointwise<Row>(); }) &&
                  for_kernels_of(BinaryLosses(), []<class Row>() { register_pointwise<Row>(); });
const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  cross_entropy.set(DeviceType::cpu, dtype_of<T>, &with_mean<T, &cross_entropy_kernel<T>>);
  cross_entropy_backward.set(DeviceType::cpu, dtype_of<T>, &cross_entropy_backward_kernel<T>);
  cross_entropy_target_backward.set(DeviceType::cpu, dtype_of<T>, &cross_entropy_target_backward_kernel<T>);
  nll_loss.set(DeviceType::cpu, dtype_of<T>, &with_mean<T, &nll_loss_kernel<T>>);
  nll_loss_backward.set(DeviceType::cpu, dtype_of<T>, &nll_loss_backward_kernel<T>);
  sum_squared_error.set(DeviceType::cpu, dtype_of<T>, &sum_squared_error_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
