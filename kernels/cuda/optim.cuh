#pragma once
// Optimizer steps for all parameters (foreach / multi-tensor apply) by two kinds of launches.
//
//   begin_step    increments the step counters, computes the coefficients of each parameter, and writes
//                 addresses and coefficients to a table in GPU memory. Addresses are passed as kernel
//                 arguments, kStepBatch parameters per launch. Unlike a copy from pinned memory, arguments
//                 need no host buffer that outlives the call, and CUDA graphs capture them.
//   step_chunks   one launch for the elements of all parameters, one block per chunk
#include <algorithm>
#include <cmath>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/cuda/math.cuh"
#include "tapestry/kernels/ops/optim.h"
#include "tapestry/kernels/ops/optim_rules.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kStepThreads = 256;
inline constexpr int kStepChunk = 4096;  // elements per block
inline constexpr int kStepBatch = 64;    // parameters whose addresses fit into the kernel arguments

// A rule has the number of states kState, which may be null if kOptionalStates is set, and three functions.
// advance() increments the step count. numbers() computes the coefficients of a parameter. step() updates one
// element: x holds the parameter, the gradient and the states.

template <bool momentum, bool nesterov>
struct SgdRule {
  static constexpr int kState = momentum ? 1 : 0;
  static constexpr bool kOptionalStates = false;
  double momentum_factor, dampening, weight_decay;
  bool maximize;

  struct Numbers {
    float scale, decay, lr, keep, take, momentum_factor;
  };
  __device__ void advance(double* step) const {
    if (step) *step += 1;
  }
  __device__ Numbers numbers(const double* step, const StepScalars& s) const {
    const bool first = momentum && *step == 1;
    const double factor = s.momentum < 0 ? momentum_factor : s.momentum;
    return {static_cast<float>(maximize ? -s.grad_scale : s.grad_scale),
            static_cast<float>(weight_decay),
            static_cast<float>(s.lr),
            first ? 0.0f : static_cast<float>(factor),
            first ? 1.0f : static_cast<float>(1 - dampening),
            static_cast<float>(factor)};
  }
  __device__ static void step(const Numbers& c, float (&x)[2 + kState]) {
    float g = c.scale * x[1] + c.decay * x[0];
    if constexpr (momentum) {
      const float b = c.keep * x[2] + c.take * g;
      x[2] = b;
      g = nesterov ? g + c.momentum_factor * b : b;
    }
    x[0] -= c.lr * g;
  }
};

template <bool amsgrad>
struct AdamRule {
  static constexpr int kState = amsgrad ? 3 : 2;
  static constexpr bool kOptionalStates = false;
  double beta1, beta2, eps, weight_decay;
  bool decoupled, maximize;

  struct Numbers {
    float scale, decay, shrink, take1, beta2, take2, step_size, root_scale, eps;
  };
  __device__ void advance(double* step) const { *step += 1; }
  __device__ Numbers numbers(const double* step, const StepScalars& s) const {
    const double rate = s.momentum < 0 ? beta1 : s.momentum;
    return {static_cast<float>(maximize ? -s.grad_scale : s.grad_scale),
            static_cast<float>(decoupled ? 0.0 : weight_decay),
            static_cast<float>(decoupled ? 1 - s.lr * weight_decay : 1.0),
            static_cast<float>(1 - rate),
            static_cast<float>(beta2),
            static_cast<float>(1 - beta2),
            static_cast<float>(s.lr / (1 - pow(rate, *step))),
            static_cast<float>(sqrt(1 - pow(beta2, *step))),
            static_cast<float>(eps)};
  }
  __device__ static void step(const Numbers& c, float (&x)[2 + kState]) {
    const float g = c.scale * x[1] + c.decay * x[0];
    const float m = x[2] + c.take1 * (g - x[2]);
    float v = c.beta2 * x[3] + c.take2 * g * g;
    x[2] = m;
    x[3] = v;
    if constexpr (amsgrad) x[4] = v = x[4] > v ? x[4] : v;  // NaN passes through
    x[0] = c.shrink * x[0] - c.step_size * m / (sqrtf(v) / c.root_scale + c.eps);
  }
};

/// The rule of a struct in kernels/ops/optim_rules.h.
template <class Args>
struct SharedRule {
  static constexpr int kState = Args::kState;
  static constexpr bool kOptionalStates = true;
  Args args;

  using Numbers = typename Args::template Numbers<float>;
  __device__ void advance(double* step) const { Args::advance(args, step); }
  __device__ Numbers numbers(const double* step, const StepScalars& s) const {
    Args now = args;
    if (s.momentum >= 0) {
      if constexpr (requires { now.beta1; }) now.beta1 = s.momentum;
      else if constexpr (requires { now.momentum; }) now.momentum = s.momentum;
    }
    return Args::template numbers<float>(now, step, s);
  }
  __device__ static void step(const Numbers& c, float (&x)[2 + kState]) {
    Args::template apply<Math<float>>(c, x);
  }
};

/// The table entry of a parameter.
template <class Rule>
struct StepEntry {
  float* arrays[2 + Rule::kState];  // parameter, gradient, states
  std::int64_t numel;
  int first;   // index of its first chunk
  bool packs;  // all arrays are 16-byte aligned
  typename Rule::Numbers numbers;
};
struct StepBatch {
  StepItem items[kStepBatch];
  int first[kStepBatch];
};

/// The addresses of a step's numbers in device memory.
struct StepNumbers {
  const StepScalars* scalars;
  const float *loss_scale, *found_inf;  // may be null

  explicit StepNumbers(const StepItems& t)
      : scalars(t.scalars), loss_scale(t.loss_scale), found_inf(t.found_inf) {}
  __device__ bool skips() const { return found_inf && *found_inf != 0; }
  __device__ StepScalars read() const {
    StepScalars s = *scalars;
    if (loss_scale) s.grad_scale /= static_cast<double>(*loss_scale);
    return s;
  }
};

/// Writes the table entries of a batch of parameters, one block per parameter. Sets owners[chunk] to the
/// index of the parameter that the chunk belongs to. If the step is skipped, the entries have no elements, so
/// that step_chunks does nothing.
template <class Rule>
__global__ void __launch_bounds__(kStepThreads) begin_step(StepBatch batch, int base, StepNumbers numbers,
                                                           Rule rule, StepEntry<Rule>* entries, int* owners) {
  const int number = static_cast<int>(blockIdx.x);
  const StepItem& item = batch.items[number];
  const int first = batch.first[number];
  const int chunks = static_cast<int>((item.numel + kStepChunk - 1) / kStepChunk);
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += kStepThreads)
    owners[first + i] = base + number;
  if (threadIdx.x != 0) return;
  StepEntry<Rule> entry{};
  entry.first = first;
  if (numbers.skips()) {
    entries[base + number] = entry;
    return;
  }
  rule.advance(item.step);
  entry.arrays[0] = static_cast<float*>(item.param);
  entry.arrays[1] = static_cast<float*>(const_cast<void*>(item.grad));
#pragma unroll
  for (int k = 0; k < Rule::kState; ++k) entry.arrays[2 + k] = static_cast<float*>(item.state[k]);
  std::uintptr_t addresses = 0;
#pragma unroll
  for (int k = 0; k < 2 + Rule::kState; ++k) addresses |= reinterpret_cast<std::uintptr_t>(entry.arrays[k]);
  entry.numel = item.numel;
  entry.packs = addresses % 16 == 0;
  entry.numbers = rule.numbers(item.step, numbers.read());
  entries[base + number] = entry;
}

/// Updates the elements of one chunk per block. The launch bounds allow 64 registers and 4 blocks per SM. A
/// thread has two packs of each array in flight (128 bytes for Adam), which is more than enough to hide the
/// memory latency.
template <class Rule>
__global__ void __launch_bounds__(kStepThreads, 4)
    step_chunks(const StepEntry<Rule>* entries, const int* owners) {
  constexpr int kArrays = 2 + Rule::kState, V = 4, kDepth = 2;
  const StepEntry<Rule>& entry = entries[owners[blockIdx.x]];
  const typename Rule::Numbers numbers = entry.numbers;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - entry.first) * kStepChunk;
  const int n = static_cast<int>(std::min<std::int64_t>(entry.numel - begin, kStepChunk));
  const int thread = static_cast<int>(threadIdx.x), packs = entry.packs ? n / V : 0;
  float* x[kArrays];
  bool used[kArrays];  // all true unless states are optional, so that the compiler drops the branches
#pragma unroll
  for (int k = 0; k < kArrays; ++k) {
    used[k] = !Rule::kOptionalStates || entry.arrays[k];
    x[k] = used[k] ? entry.arrays[k] + begin : nullptr;
  }
  for (int first = thread; first < packs; first += kDepth * kStepThreads) {
    Pack<float, V> values[kDepth][kArrays];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int at = first + d * kStepThreads;
      if (at < packs)
#pragma unroll
        for (int k = 0; k < kArrays; ++k)
          values[d][k] = used[k] ? reinterpret_cast<const Pack<float, V>*>(x[k])[at] : Pack<float, V>{};
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int at = first + d * kStepThreads;
      if (at >= packs) break;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        float element[kArrays];
#pragma unroll
        for (int k = 0; k < kArrays; ++k) element[k] = values[d][k].v[i];
        Rule::step(numbers, element);
#pragma unroll
        for (int k = 0; k < kArrays; ++k) values[d][k].v[i] = element[k];
      }
#pragma unroll
      for (int k = 0; k < kArrays; ++k)
        if (k != 1 && used[k]) reinterpret_cast<Pack<float, V>*>(x[k])[at] = values[d][k];
    }
  }
  for (int at = packs * V + thread; at < n; at += kStepThreads) {
    float element[kArrays];
#pragma unroll
    for (int k = 0; k < kArrays; ++k) element[k] = used[k] ? x[k][at] : 0.0f;
    Rule::step(numbers, element);
#pragma unroll
    for (int k = 0; k < kArrays; ++k)
      if (k != 1 && used[k]) x[k][at] = element[k];
  }
}

template <class Rule>
void launch_step(const StepItems& tensors, const Rule& rule, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  if (tensors.count == 0) return;
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < tensors.count; ++i)
    total += (tensors.items[i].numel + kStepChunk - 1) / kStepChunk;
  const Scratch<StepEntry<Rule>> entries(context.device, tensors.count);
  const Scratch<int> owners(context.device, total);
  std::int64_t chunk = 0;
  for (std::int64_t base = 0; base < tensors.count; base += kStepBatch) {
    StepBatch batch{};
    const std::int64_t count = std::min<std::int64_t>(kStepBatch, tensors.count - base);
    for (std::int64_t i = 0; i < count; ++i) {
      batch.items[i] = tensors.items[base + i];
      batch.first[i] = static_cast<int>(chunk);
      chunk += (batch.items[i].numel + kStepChunk - 1) / kStepChunk;
    }
    launch(&begin_step<Rule>, static_cast<unsigned>(count), kStepThreads, 0, stream, batch,
           static_cast<int>(base), StepNumbers(tensors), rule, entries.data(), owners.data());
  }
  if (total > 0)
    launch(&step_chunks<Rule>, static_cast<unsigned>(total), kStepThreads, 0, stream, entries.data(),
           owners.data());
}

/// Calls launch(rule) with the rule of these options.
template <class F>
void for_sgd_rule(const SgdArgs& a, const F& launch) {
  const auto call = [&]<bool momentum, bool nesterov>() {
    launch(SgdRule<momentum, nesterov>{a.momentum, a.dampening, a.weight_decay, a.maximize});
  };
  if (a.momentum == 0) call.template operator()<false, false>();
  else if (a.nesterov) call.template operator()<true, true>();
  else call.template operator()<true, false>();
}
template <class F>
void for_adam_rule(const AdamArgs& a, const F& launch) {
  const auto call = [&]<bool amsgrad>() {
    launch(AdamRule<amsgrad>{a.beta1, a.beta2, a.eps, a.weight_decay, a.decoupled, a.maximize});
  };
  if (a.amsgrad) call.template operator()<true>();
  else call.template operator()<false>();
}

template <class = void>
void launch_sgd(const LaunchContext& context, const SgdArgs& a) {
  for_sgd_rule(a, [&](const auto& rule) { launch_step(a.tensors, rule, context); });
}
template <class = void>
void launch_adam(const LaunchContext& context, const AdamArgs& a) {
  for_adam_rule(a, [&](const auto& rule) { launch_step(a.tensors, rule, context); });
}

template <class Args>
void launch_rule(const LaunchContext& context, const Args& a) {
  Args rule = a;
  rule.tensors = {};  // addresses of the host, which are no use to a kernel
  launch_step(a.tensors, SharedRule<Args>{rule}, context);
}

}  // namespace tapestry::kernels::cuda
