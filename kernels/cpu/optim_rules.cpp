// The steps of the optimizers in kernels/ops/optim_rules.h.
#include "tapestry/kernels/ops/optim_rules.h"

#include <utility>

#include "tapestry/kernels/cpu/math.h"
#include "tapestry/kernels/cpu/optim.h"

namespace tapestry::kernels::cpu {
namespace {

// Runs the rule on n elements. Array k has the elements of the parameter, the gradient or state k - 2.
template <class Rule, class T, std::size_t... k>
void run_rule(const typename Rule::template Numbers<T>& numbers, T* const (&arrays)[sizeof...(k)],
              std::int64_t n, std::index_sequence<k...>) {
  T* const p[] = {arrays[k]...};
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    T x[] = {p[k][i]...};
    Rule::template apply<Math>(numbers, x);
    ((k == 1 ? void() : void(p[k][i] = x[k])), ...);
  }
}

// Updates n elements from element `begin` on. T is the type in which they are computed.
template <class T, class Rule>
void rule_block(const typename Rule::template Numbers<T>& numbers, const StepItem& item, std::int64_t begin,
                std::int64_t count) {
  constexpr std::size_t kArrays = 2 + Rule::kState;
  T unused[kStepPiece];  // stands for the states that this step does not use
  for (std::int64_t at = begin; at < begin + count; at += kStepPiece) {
    const std::int64_t n = std::min(kStepPiece, begin + count - at);
    T* arrays[kArrays] = {static_cast<T*>(item.param) + at,
                          const_cast<T*>(static_cast<const T*>(item.grad)) + at};
    for (std::size_t k = 2; k < kArrays; ++k) {
      T* const state = static_cast<T*>(item.state[k - 2]);
      arrays[k] = state ? state + at : unused;
      if (!state) std::fill_n(unused, n, T(0));
    }
    run_rule<Rule, T>(numbers, arrays, n, std::make_index_sequence<kArrays>());
  }
}

template <class T, class Rule>
void step_rule(const LaunchContext&, const Rule& args) {
  Rule a = args;
  StepScalars own;
  if (!begin_scaled_step(a.tensors, own)) return;
  for (std::int64_t i = 0; i < a.tensors.count; ++i) Rule::advance(a, a.tensors.items[i].step);
  for_blocks(a.tensors, [&](std::int64_t index, std::int64_t begin, std::int64_t count) {
    using C = Compute<T>;
    const auto numbers = Rule::template numbers<C>(a, a.tensors.items[index].step, *a.tensors.scalars);
    step_block<T>(a.tensors, index, begin, count, [&](const StepItem& item, std::int64_t at, std::int64_t n) {
      rule_block<C, Rule>(numbers, item, at, n);
    });
  });
}

const bool filled = for_step_rules([]<class Rule>(Slot<Rule>& slot) {
  for_types<float, double, Half, BFloat16>(
      [&]<class T> { slot.set(DeviceType::cpu, dtype_of<T>, &step_rule<T, Rule>); });
});

}  // namespace
}  // namespace tapestry::kernels::cpu
