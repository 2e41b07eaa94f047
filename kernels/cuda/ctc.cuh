#pragma once
// The CTC loss by the forward-backward algorithm in log space (Graves et al. 2006). The steps of a sample
// depend on each other, so one block computes a sample: its threads divide the extended labels ("states") of
// a step among them, and a barrier separates the steps.
#include <algorithm>
#include <limits>

#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/sums.cuh"
#include "tapestry/kernels/ops/ctc.h"

namespace tapestry::kernels::cuda {

inline constexpr int kCtcThreads = 256;
inline constexpr float kCtcImpossible = -std::numeric_limits<float>::infinity();

/// log(e^a + e^b + e^c)
__device__ __forceinline__ float log_sum_exp(float a, float b, float c) {
  const float above = b < c ? c : b, largest = a < above ? above : a;
  if (largest == kCtcImpossible) return largest;
  return largest + logf(expf(a - largest) + expf(b - largest) + expf(c - largest));
}

/// The CtcArgs that the kernels use.
struct CtcPlan {
  std::int64_t steps, batch, classes, blank, states;
  const float* log_probs;
  const std::int64_t *targets, *starts, *input_lengths, *target_lengths;

  explicit CtcPlan(const CtcArgs& a)
      : steps(a.steps),
        batch(a.batch),
        classes(a.classes),
        blank(a.blank),
        states(a.states),
        log_probs(a.log_probs.as<float>()),
        targets(a.targets),
        starts(a.target_starts),
        input_lengths(a.input_lengths),
        target_lengths(a.target_lengths) {}

  /// The threads of a block: one per state, in whole warps.
  unsigned threads() const {
    return static_cast<unsigned>(std::min<std::int64_t>((states + 31) / 32 * 32, kCtcThreads));
  }
};

/// One sample: its lengths, its labels, and its log-probabilities.
struct CtcSample {
  std::int64_t steps, states, blank, row_stride;
  const std::int64_t* labels;
  const float* rows;

  __device__ CtcSample(const CtcPlan& p, std::int64_t n)
      : steps(p.input_lengths[n]),
        states(2 * p.target_lengths[n] + 1),
        blank(p.blank),
        row_stride(p.batch * p.classes),
        labels(p.targets + p.starts[n]),
        rows(p.log_probs + n * p.classes) {}

  __device__ std::int64_t label(std::int64_t s) const { return s % 2 == 0 ? blank : labels[s / 2]; }
  /// True if a path may go from state s - 2 to state s: it may skip a blank between two different labels.
  __device__ bool may_skip(std::int64_t s) const {
    if (s < 2 || s >= states || s % 2 == 0) return false;
    const std::int64_t own = labels[s / 2];
    return own != blank && own != labels[s / 2 - 1];
  }
  __device__ const float* row(std::int64_t t) const { return rows + t * row_stride; }
};

template <class = void>
__global__ void __launch_bounds__(kCtcThreads) ctc_forward(CtcPlan p, float* all_alpha, float* losses) {
  const std::int64_t n = blockIdx.x;
  const CtcSample sample(p, n);
  float* const alpha = all_alpha + n * p.steps * p.states;
  const auto thread = static_cast<std::int64_t>(threadIdx.x), threads = static_cast<std::int64_t>(blockDim.x);
  for (std::int64_t t = 0; t < sample.steps; ++t) {
    const float* const row = sample.row(t);
    float* const now = alpha + t * p.states;
    const float* const before = now - p.states;
    for (std::int64_t s = thread; s < sample.states; s += threads) {
      float path = s < 2 ? 0.0f : kCtcImpossible;
      if (t > 0)
        path = log_sum_exp(before[s], s >= 1 ? before[s - 1] : kCtcImpossible,
                           sample.may_skip(s) ? before[s - 2] : kCtcImpossible);
      now[s] = path + row[sample.label(s)];
    }
    __syncthreads();
  }
  if (thread != 0) return;
  if (sample.steps == 0) {
    losses[n] = sample.states == 1 ? 0.0f : -kCtcImpossible;
    return;
  }
  // A path ends in the last label or in the blank after it.
  const float* const last = alpha + (sample.steps - 1) * p.states + sample.states - 1;
  losses[n] = -log_sum_exp(last[0], sample.states > 1 ? last[-1] : kCtcImpossible, kCtcImpossible);
}

template <class = void>
void launch_ctc_loss(const LaunchContext& context, const CtcLossArgs& a) {
  const CtcPlan plan(a.problem);
  if (plan.batch == 0) return;
  launch(&ctc_forward<>, static_cast<unsigned>(plan.batch), plan.threads(), 0, stream_of(context), plan,
         a.alpha.as<float>(), a.losses.as<float>());
}

// ---- backward
//
// First ctc_unlabelled() writes dx as if no path went through any class. Then ctc_backward() writes the
// classes that are labels of the sample, and the blank.

/// dx = grad (exp(log_probs) - 0), and 0 for steps beyond the sample's length. Every class of an impossible
/// sample gets NaN, as on the CPU.
template <class = void>
__global__ void __launch_bounds__(kCtcThreads)
    ctc_unlabelled(CtcPlan p, WideDivisor classes, WideDivisor batch, std::int64_t total, const float* losses,
                   const float* grad, bool zero_infinity, float* dx) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kCtcThreads + threadIdx.x;
  if (at >= total) return;
  const std::uint64_t row = classes.divide(static_cast<std::uint64_t>(at)), t = batch.divide(row);
  const std::uint64_t n = row - t * batch.value;
  const float loss = losses[n];
  float result = 0;
  if (static_cast<std::int64_t>(t) < p.input_lengths[n] && !(zero_infinity && loss == -kCtcImpossible))
    result = grad[n] * (expf(p.log_probs[at]) - expf(kCtcImpossible + loss));
  dx[at] = result;
}

/// The memory of a sample in backward. Rows are used in turn: a step writes one and reads the other.
struct CtcScratch {
  float* rows;          // (N, 2, 2, states): log-probabilities of the paths from a state on, and posteriors
  std::int32_t* links;  // (N, 2, labels): the next label of the same class or -1, and 1 at the first of them
};

/// `from` is the log of the probability of all paths from a state at step t to the end, step t included. A
/// class's sum goes along its labels in their order, and the sum over blanks along threads and then warps, so
/// results are deterministic.
template <class = void>
__global__ void __launch_bounds__(kCtcThreads)
    ctc_backward(CtcPlan p, CtcScratch scratch, const float* all_alpha, const float* losses,
                 const float* all_grad, bool zero_infinity, float* all_dx) {
  __shared__ float warps[2][kCtcThreads / 32];
  const std::int64_t n = blockIdx.x;
  const CtcSample sample(p, n);
  const float loss = losses[n], grad = all_grad[n];
  if (sample.steps == 0 || (zero_infinity && loss == -kCtcImpossible)) return;
  const auto thread = static_cast<std::int64_t>(threadIdx.x), threads = static_cast<std::int64_t>(blockDim.x);
  const std::int64_t labels = sample.states / 2, room = p.states / 2;
  float* const rows = scratch.rows + n * 4 * p.states;
  std::int32_t* const next = scratch.links + n * 2 * room;
  std::int32_t* const first = next + room;
  // A thread reads only the links that it writes here and the `next` of other threads, after the first
  // barrier.
  for (std::int64_t i = thread; i < labels; i += threads) {
    const std::int64_t own = sample.labels[i];
    std::int64_t before = 0, after = i + 1;
    while (before < i && sample.labels[before] != own) ++before;
    while (after < labels && sample.labels[after] != own) ++after;
    next[i] = after < labels ? static_cast<std::int32_t>(after) : -1;
    first[i] = before == i && own != sample.blank;
  }
  for (std::int64_t t = sample.steps - 1; t >= 0; --t) {
    const std::int64_t turn = t % 2;
    const float* const row = sample.row(t);
    const float* const alpha = all_alpha + (n * p.steps + t) * p.states;
    const float* const after = rows + (1 - turn) * 2 * p.states;
    float* const from = rows + turn * 2 * p.states;
    float* const posterior = from + p.states;
    float blanks[1] = {0};
    for (std::int64_t s = thread; s < sample.states; s += threads) {
      // A path ends in the last label or in the blank after it.
      float beta = s + 2 >= sample.states ? 0.0f : kCtcImpossible;
      if (t < sample.steps - 1)
        beta = log_sum_exp(after[s], s + 1 < sample.states ? after[s + 1] : kCtcImpossible,
                           sample.may_skip(s + 2) ? after[s + 2] : kCtcImpossible);
      const std::int64_t label = sample.label(s);
      from[s] = beta + row[label];
      const float share = expf(alpha[s] + beta + loss);
      posterior[s] = share;
      if (label == sample.blank) blanks[0] += share;
    }
    sum_warp(blanks);
    if (thread % 32 == 0) warps[turn][thread / 32] = blanks[0];
    // One barrier per step suffices: this step's rows are written again after the barrier of the next step.
    __syncthreads();
    float* const dx = all_dx + (t * p.batch + n) * p.classes;
    for (std::int64_t i = thread; i < labels; i += threads) {
      if (!first[i]) continue;
      float share = 0;
      for (std::int64_t j = i; j >= 0; j = next[j]) share += posterior[2 * j + 1];
      const std::int64_t label = sample.labels[i];
      dx[label] = grad * (expf(row[label]) - share);
    }
    if (thread != 0) continue;
    float share = 0;
    for (std::int64_t warp = 0; warp < threads / 32; ++warp) share += warps[turn][warp];
    dx[sample.blank] = grad * (expf(row[sample.blank]) - share);
  }
}

template <class = void>
void launch_ctc_loss_backward(const LaunchContext& context, const CtcLossBackwardArgs& a) {
  const CtcPlan plan(a.problem);
  const std::int64_t total = plan.steps * plan.batch * plan.classes;
  if (total == 0) return;
  const cudaStream_t stream = stream_of(context);
  launch(&ctc_unlabelled<>, static_cast<unsigned>((total + kCtcThreads - 1) / kCtcThreads), kCtcThreads, 0,
         stream, plan, WideDivisor(plan.classes), WideDivisor(plan.batch), total, a.losses.as<float>(),
         a.grad.as<float>(), a.zero_infinity, a.dx.as<float>());
  const Scratch<float> rows(context.device, plan.batch * 4 * plan.states);
  const Scratch<std::int32_t> links(context.device, plan.batch * 2 * (plan.states / 2));
  launch(&ctc_backward<>, static_cast<unsigned>(plan.batch), plan.threads(), 0, stream, plan,
         CtcScratch{rows.data(), links.data()}, a.alpha.as<float>(), a.losses.as<float>(), a.grad.as<float>(),
         a.zero_infinity, a.dx.as<float>());
}

}  // namespace tapestry::kernels::cuda
