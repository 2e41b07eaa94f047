// The forward-backward algorithm of the CTC loss in log space. Each sample is computed by one thread.
#include "tapestry/kernels/ops/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapestry/core/parallel.h"

namespace tapestry::kernels {
namespace {

template <class T>
constexpr T kImpossible = -std::numeric_limits<T>::infinity();

// log(e^a + e^b + e^c)
template <class T>
T log_sum(T a, T b, T c = kImpossible<T>) {
  const T largest = std::max(a, std::max(b, c));
  if (largest == kImpossible<T>) return largest;
  return largest + std::log(std::exp(a - largest) + std::exp(b - largest) + std::exp(c - largest));
}

// One sample: its lengths, its extended labels, and its log-probabilities.
template <class T>
struct Sample {
  const CtcArgs& a;
  const std::int64_t n, steps, states;
  const std::int64_t* const labels;

  Sample(const CtcArgs& args, std::int64_t index)
      : a(args),
        n(index),
        steps(args.input_lengths[index]),
        states(2 * args.target_lengths[index] + 1),
        labels(args.targets + args.target_starts[index]) {}

  std::int64_t label(std::int64_t s) const { return s % 2 == 0 ? a.blank : labels[s / 2]; }
  // True if a path may go from state s - 2 to state s: it may skip a blank between two different labels.
  bool may_skip(std::int64_t s) const { return s >= 2 && label(s) != a.blank && label(s) != label(s - 2); }
  const T* row(std::int64_t t) const { return a.log_probs.as<T>() + (t * a.batch + n) * a.classes; }
};

template <class T>
void forward(const Sample<T>& sample, T* alpha, T* loss) {
  const std::int64_t width = sample.a.states;
  if (sample.steps == 0) {
    *loss = sample.states == 1 ? T(0) : -kImpossible<T>;
    return;
  }
  for (std::int64_t s = 0; s < sample.states; ++s)
    alpha[s] = s < 2 ? sample.row(0)[sample.label(s)] : kImpossible<T>;
  for (std::int64_t t = 1; t < sample.steps; ++t) {
    const T* const before = alpha + (t - 1) * width;
    T* const now = alpha + t * width;
    for (std::int64_t s = 0; s < sample.states; ++s)
      now[s] = log_sum(before[s], s >= 1 ? before[s - 1] : kImpossible<T>,
                       sample.may_skip(s) ? before[s - 2] : kImpossible<T>) +
               sample.row(t)[sample.label(s)];
  }
  // A path ends in the last label or in the blank after it.
  const T* const last = alpha + (sample.steps - 1) * width + sample.states - 1;
  *loss = -log_sum(last[0], sample.states > 1 ? last[-1] : kImpossible<T>);
}

// beta[s] is the log of the probability of all paths from step t in state s to the end, without the
// probability of step t itself.
template <class T>
void backward(const Sample<T>& sample, const T* alpha, T loss, T grad, T* dx) {
  const std::int64_t classes = sample.a.classes, stride = sample.a.batch * classes;
  std::vector<T> beta(static_cast<std::size_t>(sample.states), kImpossible<T>), next(beta);
  std::vector<T> total(static_cast<std::size_t>(classes));
  for (std::int64_t t = sample.steps; t-- > 0;) {
    const T* const row = sample.row(t);
    if (t == sample.steps - 1) {
      beta[static_cast<std::size_t>(sample.states - 1)] = 0;
      if (sample.states > 1) beta[static_cast<std::size_t>(sample.states - 2)] = 0;
    } else {
      // next[s] includes the probability of step t + 1.
      const T* const after = sample.row(t + 1);
      for (std::int64_t s = 0; s < sample.states; ++s)
        next[static_cast<std::size_t>(s)] = beta[static_cast<std::size_t>(s)] + after[sample.label(s)];
      const auto at = [&](std::int64_t s) {
        return s < sample.states ? next[static_cast<std::size_t>(s)] : kImpossible<T>;
      };
      for (std::int64_t s = 0; s < sample.states; ++s)
        beta[static_cast<std::size_t>(s)] = log_sum(
            at(s), at(s + 1), s + 2 < sample.states && sample.may_skip(s + 2) ? at(s + 2) : kImpossible<T>);
    }
    // The paths through a class are those through all states with this label.
    std::fill(total.begin(), total.end(), kImpossible<T>);
    const T* const before = alpha + t * sample.a.states;
    for (std::int64_t s = 0; s < sample.states; ++s) {
      T& sum = total[static_cast<std::size_t>(sample.label(s))];
      sum = log_sum(sum, before[s] + beta[static_cast<std::size_t>(s)]);
    }
    for (std::int64_t c = 0; c < classes; ++c)
      dx[t * stride + c] = grad * (std::exp(row[c]) - std::exp(total[static_cast<std::size_t>(c)] + loss));
  }
}

template <class T>
void ctc_loss_kernel(const LaunchContext&, const CtcLossArgs& a) {
  const CtcArgs& p = a.problem;
  parallel_for(p.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      forward(Sample<T>(p, n), a.alpha.as<T>() + n * p.steps * p.states, a.losses.as<T>() + n);
  });
}

template <class T>
void ctc_loss_backward_kernel(const LaunchContext&, const CtcLossBackwardArgs& a) {
  const CtcArgs& p = a.problem;
  parallel_for(p.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      Sample<T> sample(p, n);
      T* const dx = a.dx.as<T>() + n * p.classes;
      const T loss = a.losses.as<T>()[n];
      const bool skipped = a.zero_infinity && loss == -kImpossible<T>;
      for (std::int64_t t = skipped ? 0 : sample.steps; t < p.steps; ++t)
        std::fill_n(dx + t * p.batch * p.classes, p.classes, T(0));
      if (!skipped) backward(sample, a.alpha.as<T>() + n * p.steps * p.states, loss, a.grad.as<T>()[n], dx);
    }
  });
}

const bool filled = for_types<float, double>([]<class T> {
  ctc_loss.set(DeviceType::cpu, dtype_of<T>, &ctc_loss_kernel<T>);
  ctc_loss_backward.set(DeviceType::cpu, dtype_of<T>, &ctc_loss_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels
