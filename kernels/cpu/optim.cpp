// The steps of SGD and Adam.
#include "tapestry/kernels/cpu/optim.h"

#include <cmath>

namespace tapestry::kernels {
namespace {

using cpu::Compute, cpu::begin_scaled_step, cpu::for_blocks, cpu::step_block;

template <class T, bool kMomentum, bool kNesterov>
void sgd_block(const SgdArgs& a, const StepItem& item, std::int64_t at, std::int64_t n) {
  T* __restrict p = static_cast<T*>(item.param) + at;
  const T* __restrict grad = static_cast<const T*>(item.grad) + at;
  T* __restrict buffer = kMomentum ? static_cast<T*>(item.state[0]) + at : nullptr;
  const T scale = static_cast<T>(a.maximize ? -a.tensors.scalars->grad_scale : a.tensors.scalars->grad_scale);
  const T lr = static_cast<T>(a.tensors.scalars->lr), decay = static_cast<T>(a.weight_decay);
  const bool is_first = kMomentum && *item.step == 1;
  const T momentum = static_cast<T>(a.momentum);
  const T keep = is_first ? T(0) : momentum, take = is_first ? T(1) : static_cast<T>(1 - a.dampening);
  for (std::int64_t i = 0; i < n; ++i) {
    T g = scale * grad[i] + decay * p[i];
    if constexpr (kMomentum) {
      const T b = keep * buffer[i] + take * g;
      buffer[i] = b;
      g = kNesterov ? g + momentum * b : b;
    }
    p[i] -= lr * g;
  }
}

template <class T>
void sgd(const LaunchContext&, const SgdArgs& args) {
  SgdArgs a = args;
  StepScalars own;
  if (!begin_scaled_step(a.tensors, own)) return;
  const bool momentum = a.momentum != 0;
  for (std::int64_t i = 0; i < a.tensors.count; ++i)
    if (double* const step = a.tensors.items[i].step) *step += 1;
  using C = Compute<T>;
  const auto block = !momentum ? &sgd_block<C, false, false>
                               : (a.nesterov ? &sgd_block<C, true, true> : &sgd_block<C, true, false>);
  for_blocks(a.tensors, [&](std::int64_t index, std::int64_t begin, std::int64_t count) {
    step_block<T>(a.tensors, index, begin, count,
                  [&](const StepItem& item, std::int64_t at, std::int64_t n) { block(a, item, at, n); });
  });
}

template <class T, bool kAmsgrad>
void adam_block(const AdamArgs& a, const StepItem& item, std::int64_t at, std::int64_t n) {
  T* __restrict p = static_cast<T*>(item.param) + at;
  const T* __restrict grad = static_cast<const T*>(item.grad) + at;
  T* __restrict m = static_cast<T*>(item.state[0]) + at;
  T* __restrict v = static_cast<T*>(item.state[1]) + at;
  T* __restrict largest = kAmsgrad ? static_cast<T*>(item.state[2]) + at : nullptr;
  const double step = *item.step, lr = a.tensors.scalars->lr;
  const T scale = static_cast<T>(a.maximize ? -a.tensors.scalars->grad_scale : a.tensors.scalars->grad_scale);
  const T decay = static_cast<T>(a.decoupled ? 0 : a.weight_decay);
  const T shrink = static_cast<T>(a.decoupled ? 1 - lr * a.weight_decay : 1);
  const T take1 = static_cast<T>(1 - a.beta1), beta2 = static_cast<T>(a.beta2),
          take2 = static_cast<T>(1 - a.beta2);
  const T step_size = static_cast<T>(lr / (1 - std::pow(a.beta1, step)));
  const T root_scale = static_cast<T>(std::sqrt(1 - std::pow(a.beta2, step)));
  const T eps = static_cast<T>(a.eps);
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = scale * grad[i] + decay * p[i];
    const T mi = m[i] + take1 * (g - m[i]);
    T vi = beta2 * v[i] + take2 * g * g;
    m[i] = mi;
    v[i] = vi;
    if constexpr (kAmsgrad) largest[i] = vi = largest[i] > vi ? largest[i] : vi;  // keeps NaN
    p[i] = shrink * p[i] - step_size * mi / (std::sqrt(vi) / root_scale + eps);
  }
}

template <class T>
void adam(const LaunchContext&, const AdamArgs& args) {
  AdamArgs a = args;
  StepScalars own;
  if (!begin_scaled_step(a.tensors, own)) return;
  for (std::int64_t i = 0; i < a.tensors.count; ++i) *a.tensors.items[i].step += 1;
  const auto block = a.amsgrad ? &adam_block<Compute<T>, true> : &adam_block<Compute<T>, false>;
  for_blocks(a.tensors, [&](std::int64_t index, std::int64_t begin, std::int64_t count) {
    step_block<T>(a.tensors, index, begin, count,
                  [&](const StepItem& item, std::int64_t at, std::int64_t n) { block(a, item, at, n); });
  });
}

const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  sgd_step.set(DeviceType::cpu, dtype_of<T>, &sgd<T>);
  adam_step.set(DeviceType::cpu, dtype_of<T>, &adam<T>);
});

}  // namespace
}  // namespace tapestry::kernels
