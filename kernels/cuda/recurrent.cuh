#pragma once
// The pointwise part of a recurrent step. A thread computes all gates of one element of a state, so that each
// array is read and written once. Threads of a warp have adjacent elements. A step has too few elements for
// the memory's bandwidth to matter (8192 for 32 sequences and 256 state elements); its time is that of the
// launch and of one dependent chain of loads.
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/cuda/math.cuh"
#include "tapestry/kernels/ops/recurrent.h"

namespace tapestry::kernels::cuda {

inline constexpr int kRecurrentThreads = 128;

/// The arrays of a step. kernels/ops/recurrent.h documents them.
template <class T>
struct RecurrentStep {
  RecurrentCell cell;
  std::int64_t elements;  // rows * hidden
  std::int64_t hidden;
  WideDivisor divide;  // by hidden
  T* gates;
  const T* hidden_part;
  T *h, *c, *y, *h_before, *c_before, *candidate;
};

template <class T>
struct RecurrentStepBackward {
  RecurrentCell cell;
  std::int64_t elements;
  std::int64_t hidden;
  WideDivisor divide;
  const T *gates, *before, *candidate, *dy;
  T *dh, *dc, *dgates, *dhidden_part;
};

/// The index of an element in an array of k gates, where `at` is its index in a state.
template <class Step>
__device__ __forceinline__ std::int64_t first_gate(const Step& a, std::int64_t at, int k) {
  const auto row = static_cast<std::int64_t>(a.divide.divide(static_cast<std::uint64_t>(at)));
  return at + row * (k - 1) * a.hidden;
}

template <class T>
__global__ void __launch_bounds__(kRecurrentThreads) recurrent_forward(RecurrentStep<T> a) {
  using M = Math<>;
  const std::int64_t at = std::int64_t{blockIdx.x} * kRecurrentThreads + threadIdx.x;
  if (at >= a.elements) return;
  const T old = a.h[at];
  if (a.h_before) a.h_before[at] = old;
  T out;
  if (a.cell == RecurrentCell::lstm) {
    T* const g = a.gates + first_gate(a, at, 4);
    const T old_c = a.c[at];
    if (a.c_before) a.c_before[at] = old_c;
    const float i = M::sigmoid(load(g[0])), f = M::sigmoid(load(g[a.hidden]));
    const float m = M::tanh(load(g[2 * a.hidden])), o = M::sigmoid(load(g[3 * a.hidden]));
    const float next = f * load(old_c) + i * m;
    g[0] = store<T>(i), g[a.hidden] = store<T>(f);
    g[2 * a.hidden] = store<T>(m), g[3 * a.hidden] = store<T>(o);
    a.c[at] = store<T>(next);
    out = store<T>(o * M::tanh(next));
  } else if (a.cell == RecurrentCell::gru) {
    const std::int64_t first = first_gate(a, at, 3);
    T* const g = a.gates + first;
    const T* const part = a.hidden_part + first;
    const T b = part[2 * a.hidden];
    if (a.candidate) a.candidate[at] = b;
    const float r = M::sigmoid(load(g[0]) + load(part[0]));
    const float z = M::sigmoid(load(g[a.hidden]) + load(part[a.hidden]));
    const float n = M::tanh(load(g[2 * a.hidden]) + r * load(b));
    g[0] = store<T>(r), g[a.hidden] = store<T>(z), g[2 * a.hidden] = store<T>(n);
    out = store<T>(n + z * (load(old) - n));
  } else {
    const float x = load(a.gates[at]);
    out = store<T>(a.cell == RecurrentCell::tanh ? M::tanh(x) : x < 0 ? 0.0f : x);  // relu keeps NaN
    a.gates[at] = out;
  }
  a.h[at] = out;
  if (a.y) a.y[at] = out;
}

template <class T>
__global__ void __launch_bounds__(kRecurrentThreads) recurrent_backward(RecurrentStepBackward<T> a) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kRecurrentThreads + threadIdx.x;
  if (at >= a.elements) return;
  const float d = load(a.dh[at]) + (a.dy ? load(a.dy[at]) : 0.0f);
  if (a.cell == RecurrentCell::lstm) {
    const std::int64_t first = first_gate(a, at, 4);
    const T* const g = a.gates + first;
    T* const dg = a.dgates + first;
    const float i = load(g[0]), f = load(g[a.hidden]), m = load(g[2 * a.hidden]), o = load(g[3 * a.hidden]);
    const float old = load(a.before[at]), t = Math<>::tanh(f * old + i * m);
    const float next = load(a.dc[at]) + d * o * (1 - t * t);
    dg[0] = store<T>(next * m * i * (1 - i));
    dg[a.hidden] = store<T>(next * old * f * (1 - f));
    dg[2 * a.hidden] = store<T>(next * i * (1 - m * m));
    dg[3 * a.hidden] = store<T>(d * t * o * (1 - o));
    a.dc[at] = store<T>(next * f);
  } else if (a.cell == RecurrentCell::gru) {
    const std::int64_t first = first_gate(a, at, 3);
    const T* const g = a.gates + first;
    T *const dg = a.dgates + first, *const part = a.dhidden_part + first;
    const float r = load(g[0]), z = load(g[a.hidden]), n = load(g[2 * a.hidden]);
    const float inner = d * (1 - z) * (1 - n * n);  // the gradient of the argument of tanh
    const T reset = store<T>(inner * load(a.candidate[at]) * r * (1 - r));
    const T update = store<T>(d * (load(a.before[at]) - n) * z * (1 - z));
    dg[0] = reset, dg[a.hidden] = update, dg[2 * a.hidden] = store<T>(inner);
    part[0] = reset, part[a.hidden] = update, part[2 * a.hidden] = store<T>(inner * r);
    a.dh[at] = store<T>(d * z);
  } else {
    const float y = load(a.gates[at]);
    a.dgates[at] = store<T>(a.cell == RecurrentCell::tanh ? d * (1 - y * y) : y <= 0 ? 0.0f : d);
  }
}

template <class T>
void launch_recurrent_step(const LaunchContext& context, const RecurrentStepArgs& a) {
  const std::int64_t elements = a.rows * a.hidden;
  if (elements == 0) return;
  const RecurrentStep<T> step{
      a.cell,      elements,    a.hidden,    WideDivisor(a.hidden), a.gates.as<T>(),    a.hidden_part.as<T>(),
      a.h.as<T>(), a.c.as<T>(), a.y.as<T>(), a.h_before.as<T>(),    a.c_before.as<T>(), a.candidate.as<T>()};
  const auto blocks = static_cast<unsigned>((elements + kRecurrentThreads - 1) / kRecurrentThreads);
  launch(&recurrent_forward<T>, blocks, kRecurrentThreads, 0, stream_of(context), step);
}

template <class T>
void launch_recurrent_step_backward(const LaunchContext& context, const RecurrentStepBackwardArgs& a) {
  const std::int64_t elements = a.rows * a.hidden;
  if (elements == 0) return;
  const RecurrentStepBackward<T> step{a.cell,
                                      elements,
                                      a.hidden,
                                      WideDivisor(a.hidden),
                                      a.gates.as<T>(),
                                      a.before.as<T>(),
                                      a.candidate.as<T>(),
                                      a.dy.as<T>(),
                                      a.dh.as<T>(),
                                      a.dc.as<T>(),
                                      a.dgates.as<T>(),
                                      a.dhidden_part.as<T>()};
  const auto blocks = static_cast<unsigned>((elements + kRecurrentThreads - 1) / kRecurrentThreads);
  launch(&recurrent_backward<T>, blocks, kRecurrentThreads, 0, stream_of(context), step);
}

}  // namespace tapestry::kernels::cuda
