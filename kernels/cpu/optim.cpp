// Optimizer steps. They are limited by memory bandwidth, so each block of elements is read and written once.
// All parameters share one parallel loop, so that small parameters do not each start a parallel region.
#include "tapestry/kernels/ops/optim.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tapestry/core/parallel.h"

namespace tapestry::kernels {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kGrain = 4;  // least number of blocks per thread

// Calls f(index of item, first element, number of elements) for every block of every item. Blocks begin at
// fixed places, so results do not depend on the number of threads.
template <class F>
void for_blocks(const StepItems& tensors, const F& f) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(tensors.count) + 1,
                                  0);  // first block of each item
  for (std::int64_t i = 0; i < tensors.count; ++i)
    first[static_cast<std::size_t>(i) + 1] =
        first[static_cast<std::size_t>(i)] + (tensors.items[i].numel + kBlock - 1) / kBlock;
  parallel_for(first.back(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    auto item = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (std::int64_t block = begin; block < end; ++block) {
      while (block >= first[static_cast<std::size_t>(item) + 1]) ++item;
      const std::int64_t at = (block - first[static_cast<std::size_t>(item)]) * kBlock;
      f(item, at, std::min(kBlock, tensors.items[item].numel - at));
    }
  });
}

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
void sgd(const LaunchContext&, const SgdArgs& a) {
  const bool momentum = a.momentum != 0;
  if (momentum)
    for (std::int64_t i = 0; i < a.tensors.count; ++i) *a.tensors.items[i].step += 1;
  const auto block = !momentum ? &sgd_block<T, false, false>
                               : (a.nesterov ? &sgd_block<T, true, true> : &sgd_block<T, true, false>);
  for_blocks(a.tensors,
             [&](std::int64_t i, std::int64_t at, std::int64_t n) { block(a, a.tensors.items[i], at, n); });
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
void adam(const LaunchContext&, const AdamArgs& a) {
  for (std::int64_t i = 0; i < a.tensors.count; ++i) *a.tensors.items[i].step += 1;
  const auto block = a.amsgrad ? &adam_block<T, true> : &adam_block<T, false>;
  for_blocks(a.tensors,
             [&](std::int64_t i, std::int64_t at, std::int64_t n) { block(a, a.tensors.items[i], at, n); });
}

const bool filled = for_types<float, double>([]<class T> {
  sgd_step.set(DeviceType::cpu, dtype_of<T>, &sgd<T>);
  adam_step.set(DeviceType::cpu, dtype_of<T>, &adam<T>);
});

}  // namespace
}  // namespace tapestry::kernels
