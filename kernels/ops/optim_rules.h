#pragma once
// Contracts and formulas of optimizer steps that are computed element by element. Each struct is the argument
// of a slot, and also a "rule": it has the formula of one element, which CPU and GPU share. The loops around
// the formulas are in kernels/cpu/optim_rules.cpp and kernels/cuda/optim.cuh.
//
// A rule has these static functions:
//   advance(args, step)                increments step[0], the step count of a parameter
//   numbers<C>(args, step, scalars)    computes the coefficients of a parameter's step, in f64
//   apply<M>(numbers, x)               updates one element: x holds the parameter, its gradient and its
//   states
// C is the type of the elements. M has the elementary functions, as in pointwise.h. States that a step does
// not use are null in StepItem. apply() then gets 0 for them, and the loop drops their new values.
//
// In the formulas, t is the step count, and g = grad_scale * grad, negated by `maximize`. Unless a rule says
// otherwise, weight decay adds weight_decay * p to g.
#include <cmath>

#include "tapestry/kernels/ops/optim.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// The options and formulas that all rules share.
struct StepRule {
  StepItems tensors;
  double weight_decay = 0;
  bool maximize = false;

  TAPESTRY_FORMULA void advance(const StepRule&, double* step) { step[0] += 1; }

  /// The signed factor of the gradient.
  TAPESTRY_FORMULA double gradient_factor(const StepRule& a, const StepScalars& s) {
    return a.maximize ? -s.grad_scale : s.grad_scale;
  }
  /// 1 - beta^t, which corrects the bias of a moving average that started at 0.
  TAPESTRY_FORMULA double bias_correction(double beta, double t) { return 1 - ::pow(beta, t); }
};

/// RMSprop (Hinton, "Neural networks for machine learning", lecture 6e, 2012). v = alpha v + (1 - alpha) g^2.
/// With `centered`, the square of the mean gradient m is subtracted (Graves, "Generating sequences with
/// recurrent neural networks", 2013). d = g / (sqrt(v - m^2) + eps), b = momentum b + d, and p -= lr b. The
/// states are v, m (only with `centered`) and b (only with momentum).
struct RmspropArgs : StepRule {
  double alpha = 0.99, eps = 1e-8, momentum = 0;
  bool centered = false;

  static constexpr int kState = 3;
  template <class C>
  struct Numbers {
    C scale, decay, alpha, take, eps, momentum, lr;
    bool centered;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const RmspropArgs& a, const double*, const StepScalars& s) {
    return {static_cast<C>(gradient_factor(a, s)),
            static_cast<C>(a.weight_decay),
            static_cast<C>(a.alpha),
            static_cast<C>(1 - a.alpha),
            static_cast<C>(a.eps),
            static_cast<C>(a.momentum),
            static_cast<C>(s.lr),
            a.centered};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    C variance = x[2] = c.alpha * x[2] + c.take * g * g;
    if (c.centered) {
      x[3] += c.take * (g - x[3]);
      variance -= x[3] * x[3];
    }
    x[4] = c.momentum * x[4] + g / (M::sqrt(variance) + c.eps);
    x[0] -= c.lr * x[4];
  }
};
inline constinit Slot<RmspropArgs> rmsprop_step{"rmsprop_step"};

/// Adagrad (Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011). v += g^2, and
/// p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(v) + eps). The state is v.
struct AdagradArgs : StepRule {
  double lr_decay = 0, eps = 1e-10;

  static constexpr int kState = 1;
  template <class C>
  struct Numbers {
    C scale, decay, lr, eps;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const AdagradArgs& a, const double* step, const StepScalars& s) {
    return {static_cast<C>(gradient_factor(a, s)), static_cast<C>(a.weight_decay),
            static_cast<C>(s.lr / (1 + (step[0] - 1) * a.lr_decay)), static_cast<C>(a.eps)};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    x[2] += g * g;
    x[0] -= c.lr * g / (M::sqrt(x[2]) + c.eps);
  }
};
inline constinit Slot<AdagradArgs> adagrad_step{"adagrad_step"};

/// Adadelta (Zeiler, "ADADELTA", 2012). v = rho v + (1 - rho) g^2, d = g sqrt(u + eps) / sqrt(v + eps), u =
/// rho u + (1 - rho) d^2, and p -= lr d. The states are v and u.
struct AdadeltaArgs : StepRule {
  double rho = 0.9, eps = 1e-6;

  static constexpr int kState = 2;
  template <class C>
  struct Numbers {
    C scale, decay, rho, take, eps, lr;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const AdadeltaArgs& a, const double*, const StepScalars& s) {
    return {static_cast<C>(gradient_factor(a, s)),
            static_cast<C>(a.weight_decay),
            static_cast<C>(a.rho),
            static_cast<C>(1 - a.rho),
            static_cast<C>(a.eps),
            static_cast<C>(s.lr)};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    x[2] = c.rho * x[2] + c.take * g * g;
    const C d = M::sqrt(x[3] + c.eps) / M::sqrt(x[2] + c.eps) * g;
    x[3] = c.rho * x[3] + c.take * d * d;
    x[0] -= c.lr * d;
  }
};
inline constinit Slot<AdadeltaArgs> adadelta_step{"adadelta_step"};

/// Adamax (Kingma and Ba, "Adam", 2015, section 7.1). m = beta1 m + (1 - beta1) g, u = max(beta2 u, |g| +
/// eps), and p -= lr / (1 - beta1^t) * m / u. The states are m and u. A NaN in g or u stays.
struct AdamaxArgs : StepRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  static constexpr int kState = 2;
  template <class C>
  struct Numbers {
    C scale, decay, take1, beta2, eps, lr;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const AdamaxArgs& a, const double* step, const StepScalars& s) {
    return {static_cast<C>(gradient_factor(a, s)),
            static_cast<C>(a.weight_decay),
            static_cast<C>(1 - a.beta1),
            static_cast<C>(a.beta2),
            static_cast<C>(a.eps),
            static_cast<C>(s.lr / bias_correction(a.beta1, step[0]))};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    x[2] += c.take1 * (g - x[2]);
    const C old = c.beta2 * x[3], now = M::abs(g) + c.eps;
    x[3] = old > now || old != old ? old : now;
    x[0] -= c.lr * x[2] / x[3];
  }
};
inline constinit Slot<AdamaxArgs> adamax_step{"adamax_step"};

/// NAdam (Dozat, "Incorporating Nesterov momentum into Adam", 2016). m and v are Adam's averages. With
/// mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2) and the product P = mu(1) ... mu(t), it computes
/// d = sqrt(v / (1 - beta2^t)) + eps and
/// p -= lr (1 - mu(t)) / (1 - P) * g / d + lr mu(t + 1) / (1 - P mu(t + 1)) * m / d.
/// `decoupled` multiplies p by 1 - lr * weight_decay first, instead of adding to g. step[1] is P.
struct NAdamArgs : StepRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum_decay = 4e-3;
  bool decoupled = false;

  static constexpr int kState = 2;
  template <class C>
  struct Numbers {
    C scale, decay, shrink, take1, beta2, take2, correction, eps, lr_g, lr_m;
  };
  TAPESTRY_FORMULA double mu(const NAdamArgs& a, double t) {
    return a.beta1 * (1 - 0.5 * ::pow(0.96, t * a.momentum_decay));
  }
  TAPESTRY_FORMULA void advance(const NAdamArgs& a, double* step) {
    step[0] += 1;
    step[1] *= mu(a, step[0]);
  }
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const NAdamArgs& a, const double* step, const StepScalars& s) {
    const double now = mu(a, step[0]), next = mu(a, step[0] + 1);
    return {static_cast<C>(gradient_factor(a, s)),
            static_cast<C>(a.decoupled ? 0.0 : a.weight_decay),
            static_cast<C>(a.decoupled ? 1 - s.lr * a.weight_decay : 1.0),
            static_cast<C>(1 - a.beta1),
            static_cast<C>(a.beta2),
            static_cast<C>(1 - a.beta2),
            static_cast<C>(bias_correction(a.beta2, step[0])),
            static_cast<C>(a.eps),
            static_cast<C>(s.lr * (1 - now) / (1 - step[1])),
            static_cast<C>(s.lr * next / (1 - step[1] * next))};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    x[2] += c.take1 * (g - x[2]);
    x[3] = c.beta2 * x[3] + c.take2 * g * g;
    x[0] = c.shrink * x[0] - (c.lr_g * g + c.lr_m * x[2]) / (M::sqrt(x[3] / c.correction) + c.eps);
  }
};
inline constinit Slot<NAdamArgs> nadam_step{"nadam_step"};

/// RAdam (Liu et al., "On the variance of the adaptive learning rate and beyond", 2020). m and v are Adam's
/// averages. With R = 2 / (1 - beta2) - 1 and r = R - 2 t beta2^t / (1 - beta2^t): if r > 5,
/// p -= lr / (1 - beta1^t) * sqrt(((r - 4) (r - 2) R) / ((R - 4) (R - 2) r)) * sqrt(1 - beta2^t) * m /
/// (sqrt(v) + eps); otherwise p -= lr / (1 - beta1^t) * m. `decoupled` multiplies p by 1 - lr * weight_decay
/// first, instead of adding to g.
struct RAdamArgs : StepRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decoupled = false;

  static constexpr int kState = 2;
  template <class C>
  struct Numbers {
    C scale, decay, shrink, take1, beta2, take2, eps, lr;
    bool adaptive;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const RAdamArgs& a, const double* step, const StepScalars& s) {
    const double correction = bias_correction(a.beta2, step[0]), limit = 2 / (1 - a.beta2) - 1;
    const double r = limit - 2 * step[0] * ::pow(a.beta2, step[0]) / correction;
    double lr = s.lr / bias_correction(a.beta1, step[0]);
    if (r > 5) lr *= ::sqrt((r - 4) * (r - 2) * limit / ((limit - 4) * (limit - 2) * r)) * ::sqrt(correction);
    return {static_cast<C>(gradient_factor(a, s)),
            static_cast<C>(a.decoupled ? 0.0 : a.weight_decay),
            static_cast<C>(a.decoupled ? 1 - s.lr * a.weight_decay : 1.0),
            static_cast<C>(1 - a.beta1),
            static_cast<C>(a.beta2),
            static_cast<C>(1 - a.beta2),
            static_cast<C>(a.eps),
            static_cast<C>(lr),
            r > 5};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1] + c.decay * x[0];
    x[2] += c.take1 * (g - x[2]);
    x[3] = c.beta2 * x[3] + c.take2 * g * g;
    const C divisor = c.adaptive ? M::sqrt(x[3]) + c.eps : C(1);
    x[0] = c.shrink * x[0] - c.lr * x[2] / divisor;
  }
};
inline constinit Slot<RAdamArgs> radam_step{"radam_step"};

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2). It multiplies p by
/// 1 - lr * weight_decay, then p -= lr sign(beta1 m + (1 - beta1) g) and m = beta2 m + (1 - beta2) g. The
/// state is m. The sign of NaN is NaN.
struct LionArgs : StepRule {
  double beta1 = 0.9, beta2 = 0.99;

  static constexpr int kState = 1;
  template <class C>
  struct Numbers {
    C scale, shrink, take1, take2, lr;
  };
  template <class C>
  TAPESTRY_FORMULA Numbers<C> numbers(const LionArgs& a, const double*, const StepScalars& s) {
    return {static_cast<C>(gradient_factor(a, s)), static_cast<C>(1 - s.lr * a.weight_decay),
            static_cast<C>(1 - a.beta1), static_cast<C>(1 - a.beta2), static_cast<C>(s.lr)};
  }
  template <class M, class C>
  TAPESTRY_FORMULA void apply(const Numbers<C>& c, C (&x)[2 + kState]) {
    const C g = c.scale * x[1], change = x[2] + c.take1 * (g - x[2]);
    const C sign = change > 0 ? C(1) : change < 0 ? C(-1) : change;
    x[2] += c.take2 * (g - x[2]);
    x[0] = c.shrink * x[0] - c.lr * sign;
  }
};
inline constinit Slot<LionArgs> lion_step{"lion_step"};

/// Calls `f(slot)` for the slot of each rule.
template <class F>
bool for_step_rules(F&& f) {
  f(rmsprop_step), f(adagrad_step), f(adadelta_step), f(adamax_step), f(nadam_step), f(radam_step),
      f(lion_step);
  return true;
}

}  // namespace tapestry::kernels
