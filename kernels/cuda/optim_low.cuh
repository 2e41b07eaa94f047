#pragma once
// Optimizer steps for f16 and bf16 parameters, with f32 states. They have the launches and the rules of
// optim.cuh, and differ in what they read and write: the parameter in its dtype or as its f32 master, and the
// gradient in the parameter's dtype. A kernel serves f16 and bf16, and converts as the table entry says: the
// arithmetic hides behind the memory accesses, and nvcc compiles half as many kernels.
#include <type_traits>

#include "tapestry/kernels/cuda/optim.cuh"
#include "tapestry/kernels/stochastic_rounding.h"

namespace tapestry::kernels::cuda {

inline constexpr int kLowStepBatch = 40;  // parameters whose addresses fit into the kernel arguments

/// The bits of an f16 (`half`) or bf16 number as f32, and the nearest such number of an f32.
__device__ inline float widened(std::uint16_t bits, bool half) {
  return half ? load(Half::from_bits(bits)) : load(BFloat16::from_bits(bits));
}
__device__ inline std::uint16_t narrowed(float x, bool half) {
  return half ? store<Half>(x).bits : store<BFloat16>(x).bits;
}

/// The table entry of a parameter.
template <class Rule>
struct LowStepEntry {
  std::uint16_t* param;
  const std::uint16_t* grad;
  float* master;  // may be null
  float* states[Rule::kState > 0 ? Rule::kState : 1];
  std::int64_t numel, offset;
  std::uint64_t number, step;
  int first;        // index of its first chunk
  bool packs;       // all arrays are aligned for packs of 4 elements
  bool stochastic;  // how the parameter is rounded
  typename Rule::Numbers numbers;
};
struct LowStepBatch {
  StepItem items[kLowStepBatch];
  LowPrecisionItem low[kLowStepBatch];
  int first[kLowStepBatch];
};

/// As begin_step.
template <class Rule>
__global__ void __launch_bounds__(kStepThreads)
    begin_low_step(LowStepBatch batch, int base, StepNumbers numbers, bool stochastic, Rule rule,
                   LowStepEntry<Rule>* entries, int* owners) {
  const int number = static_cast<int>(blockIdx.x);
  const StepItem& item = batch.items[number];
  const LowPrecisionItem& low = batch.low[number];
  const int first = batch.first[number];
  const int chunks = static_cast<int>((item.numel + kStepChunk - 1) / kStepChunk);
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += kStepThreads)
    owners[first + i] = base + number;
  if (threadIdx.x != 0) return;
  LowStepEntry<Rule> entry{};
  entry.first = first;
  if (numbers.skips()) {
    entries[base + number] = entry;
    return;
  }
  rule.advance(item.step);
  entry.param = static_cast<std::uint16_t*>(item.param);
  entry.grad = static_cast<const std::uint16_t*>(item.grad);
  entry.master = low.master;
  std::uintptr_t wide = reinterpret_cast<std::uintptr_t>(low.master);
#pragma unroll
  for (int k = 0; k < Rule::kState; ++k) {
    entry.states[k] = static_cast<float*>(item.state[k]);
    wide |= reinterpret_cast<std::uintptr_t>(item.state[k]);
  }
  const std::uintptr_t narrow =
      reinterpret_cast<std::uintptr_t>(item.param) | reinterpret_cast<std::uintptr_t>(item.grad);
  entry.numel = item.numel;
  entry.offset = low.offset;
  entry.number = low.number;
  entry.step = item.step ? static_cast<std::uint64_t>(*item.step) : 0;
  entry.packs = wide % 16 == 0 && narrow % 8 == 0;
  entry.stochastic = stochastic && !low.master;
  entry.numbers = rule.numbers(item.step, numbers.read());
  entries[base + number] = entry;
}

/// Rounds successive elements of a parameter. The random words of a group are kept until the next group.
class LowRounding {
 public:
  __device__ LowRounding(std::uint64_t number, std::uint64_t step, bool stochastic, bool half)
      : number_(number), step_(step), stochastic_(stochastic), half_(half) {}
  __device__ std::uint16_t operator()(float x, std::int64_t element) {
    if (!stochastic_) return narrowed(x, half_);
    const std::int64_t group = element / kRoundingGroup;
    if (group != group_) {
      words_ = rounding_words(number_, step_, static_cast<std::uint64_t>(group));
      group_ = group;
    }
    const std::uint32_t random = rounding_bits(words_, element);
    return half_ ? round_stochastically<Half>(x, random).bits
                 : round_stochastically<BFloat16>(x, random).bits;
  }

 private:
  std::uint64_t number_, step_;
  std::int64_t group_ = -1;
  Philox4 words_{};
  bool stochastic_, half_;
};

/// As step_chunks. A thread reads four elements of each array at a time: 8 bytes of the parameter and of its
/// gradient, and 16 bytes of each f32 array.
template <class Rule>
__global__ void __launch_bounds__(kStepThreads, 4)
    low_step_chunks(const LowStepEntry<Rule>* entries, const int* owners, bool half) {
  constexpr int kState = Rule::kState, V = 4;
  using Bits = std::uint16_t;
  const LowStepEntry<Rule>& entry = entries[owners[blockIdx.x]];
  if (entry.numel == 0) return;  // a skipped step
  const typename Rule::Numbers numbers = entry.numbers;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - entry.first) * kStepChunk;
  const int n = static_cast<int>(std::min<std::int64_t>(entry.numel - begin, kStepChunk));
  const int thread = static_cast<int>(threadIdx.x), packs = entry.packs ? n / V : 0;
  const std::int64_t first_element = entry.offset + begin;
  LowRounding rounded(entry.number, entry.step, entry.stochastic, half);
  Bits* const param = entry.param + begin;
  const Bits* const grad = entry.grad + begin;
  float* const master = entry.master ? entry.master + begin : nullptr;
  float* states[kState > 0 ? kState : 1];
  bool used[kState > 0 ? kState : 1];
#pragma unroll
  for (int k = 0; k < kState; ++k) {
    used[k] = !Rule::kOptionalStates || entry.states[k];
    states[k] = used[k] ? entry.states[k] + begin : nullptr;
  }
  for (int at = thread; at < packs; at += kStepThreads) {
    Pack<float, V> p, s[kState > 0 ? kState : 1];
    const auto g = reinterpret_cast<const Pack<Bits, V>*>(grad)[at];
    if (master) {
      p = reinterpret_cast<const Pack<float, V>*>(master)[at];
    } else {
      const auto own = reinterpret_cast<const Pack<Bits, V>*>(param)[at];
#pragma unroll
      for (int i = 0; i < V; ++i) p.v[i] = widened(own.v[i], half);
    }
#pragma unroll
    for (int k = 0; k < kState; ++k)
      s[k] = used[k] ? reinterpret_cast<const Pack<float, V>*>(states[k])[at] : Pack<float, V>{};
    Pack<Bits, V> low;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float element[2 + kState];
      element[0] = p.v[i];
      element[1] = widened(g.v[i], half);
#pragma unroll
      for (int k = 0; k < kState; ++k) element[2 + k] = s[k].v[i];
      Rule::step(numbers, element);
      p.v[i] = element[0];
#pragma unroll
      for (int k = 0; k < kState; ++k) s[k].v[i] = element[2 + k];
      low.v[i] = rounded(element[0], first_element + at * V + i);
    }
    if (master) reinterpret_cast<Pack<float, V>*>(master)[at] = p;
    reinterpret_cast<Pack<Bits, V>*>(param)[at] = low;
#pragma unroll
    for (int k = 0; k < kState; ++k)
      if (used[k]) reinterpret_cast<Pack<float, V>*>(states[k])[at] = s[k];
  }
  for (int at = packs * V + thread; at < n; at += kStepThreads) {
    float element[2 + kState];
    element[0] = master ? master[at] : widened(param[at], half);
    element[1] = widened(grad[at], half);
#pragma unroll
    for (int k = 0; k < kState; ++k) element[2 + k] = used[k] ? states[k][at] : 0.0f;
    Rule::step(numbers, element);
    if (master) master[at] = element[0];
    param[at] = rounded(element[0], first_element + at);
#pragma unroll
    for (int k = 0; k < kState; ++k)
      if (used[k]) states[k][at] = element[2 + k];
  }
}

template <class T, class Rule>
void launch_low_step(const StepItems& tensors, const Rule& rule, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  if (tensors.count == 0) return;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < tensors.count; ++i)
    total += (tensors.items[i].numel + kStepChunk - 1) / kStepChunk;
  const Scratch<LowStepEntry<Rule>> entries(context.device, tensors.count);
  const Scratch<int> owners(context.device, total);
  std::int64_t chunk = 0;
  for (std::int64_t base = 0; base < tensors.count; base += kLowStepBatch) {
    LowStepBatch batch{};
    const std::int64_t count = std::min<std::int64_t>(kLowStepBatch, tensors.count - base);
    for (std::int64_t i = 0; i < count; ++i) {
      batch.items[i] = tensors.items[base + i];
      batch.low[i] = tensors.low[base + i];
      batch.first[i] = static_cast<int>(chunk);
      chunk += (batch.items[i].numel + kStepChunk - 1) / kStepChunk;
    }
    launch(&begin_low_step<Rule>, static_cast<unsigned>(count), kStepThreads, 0, stream, batch,
           static_cast<int>(base), StepNumbers(tensors), tensors.stochastic, rule, entries.data(),
           owners.data());
  }
  if (total > 0)
    launch(&low_step_chunks<Rule>, static_cast<unsigned>(total), kStepThreads, 0, stream, entries.data(),
           owners.data(), std::is_same_v<T, Half>);
}

template <class T>
void launch_low_sgd(const LaunchContext& context, const SgdArgs& a) {
  for_sgd_rule(a, [&](const auto& rule) { launch_low_step<T>(a.tensors, rule, context); });
}
template <class T>
void launch_low_adam(const LaunchContext& context, const AdamArgs& a) {
  for_adam_rule(a, [&](const auto& rule) { launch_low_step<T>(a.tensors, rule, context); });
}
template <class T, class Args>
void launch_low_rule(const LaunchContext& context, const Args& a) {
  Args rule = a;
  rule.tensors = {};  // as in launch_rule()
  launch_low_step<T>(a.tensors, SharedRule<Args>{rule}, context);
}

}  // namespace tapestry::kernels::cuda
