#pragma once
// The kernels of all elementwise operations. map<Out, In...>(args, f, stream) computes out = f(in...), where
// f takes and returns Compute<> types. Operands may be strided and broadcast (kernels/view.h).
//
// map_packs      used if, along the last dimension, every operand is dense or constant; accesses 16
//                bytes at a time, and single elements after the last pack
// map_elements   used otherwise
#include <algorithm>
#include <utility>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels::cuda {

inline constexpr int kMapThreads = 256;

/// Divides numbers below 2^31 by a constant, by a multiplication (Granlund and Montgomery 1994).
struct Divisor {
  unsigned value = 1, factor = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(unsigned d) : value(d) {
    while (shift < 31 && (1u << shift) < d) ++shift;
    factor = static_cast<unsigned>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ unsigned divide(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

/// The part of an Elementwise<N> that a kernel needs. It has fewer than 2^31 elements.
template <int N>
struct MapPlan {
  int ndim;
  unsigned count;  // number of packs or of elements
  Divisor sizes[kMaxDims];
  std::int64_t strides[N][kMaxDims];

  /// Computes the offset of element `index` in each operand, in elements. `index` counts in row-major order
  /// of the sizes.
  __device__ void offsets(unsigned index, std::int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = 0;
    for (int d = ndim - 1; d > 0; --d) {
      const unsigned rest = sizes[d].divide(index), own = index - rest * sizes[d].value;
#pragma unroll
      for (int n = 0; n < N; ++n) at[n] += own * strides[n][d];
      index = rest;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] += index * strides[n][0];
  }
};

template <int V, class T>
__device__ __forceinline__ Pack<T, V> read_pack(const T* p, bool dense) {
  if (dense) return *reinterpret_cast<const Pack<T, V>*>(p);
  Pack<T, V> pack;
  const T value = *p;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.v[i] = value;
  return pack;
}

/// Computes the pack that begins at offsets `at`. An operand's last stride says whether it is dense or
/// constant there.
template <int V, class F, class Out, class... In, std::size_t... I>
__device__ __forceinline__ void compute_pack(const MapPlan<1 + int(sizeof...(In))>& plan,
                                             const std::int64_t (&at)[1 + sizeof...(In)], const F& f,
                                             Out* out, std::index_sequence<I...>, const In*... in) {
  const auto compute = [&](const Pack<Compute<In>, V>&... packs) {
    Pack<Out, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.v[i] = store<Out>(f(packs.v[i]...));
    *reinterpret_cast<Pack<Out, V>*>(out + at[0]) = result;
  };
  const int last = plan.ndim - 1;
  static_cast<void>(last);  // unused if there is no input
  compute(unpacked(read_pack<V>(in + at[I + 1], plan.strides[I + 1][last] != 0))...);
}
template <class F, class Out, class... In, std::size_t... I>
__device__ __forceinline__ void compute_element(const std::int64_t (&at)[1 + sizeof...(In)], const F& f,
                                                Out* out, std::index_sequence<I...>, const In*... in) {
  out[at[0]] = store<Out>(f(load(in[at[I + 1]])...));
}

/// Computes packs of V elements. The last size and the last strides are given in packs, so a last stride is V
/// or 0 elements. If there is a single dimension, `tail` elements after the last pack are computed one by
/// one.
template <int V, class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_packs(MapPlan<1 + int(sizeof...(In))> plan, unsigned tail, F f, Out* out, const In*... in) {
  constexpr int N = 1 + int(sizeof...(In));
  const unsigned index = blockIdx.x * kMapThreads + threadIdx.x;
  std::int64_t at[N];
  if (index < plan.count) {
    plan.offsets(index, at);
    compute_pack<V>(plan, at, f, out, std::index_sequence_for<In...>{}, in...);
  }
  if (index < tail) {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = plan.strides[n][0] ? std::int64_t{plan.count} * V + index : 0;
    compute_element(at, f, out, std::index_sequence_for<In...>{}, in...);
  }
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_elements(MapPlan<1 + int(sizeof...(In))> plan, F f, Out* out, const In*... in) {
  const unsigned index = blockIdx.x * kMapThreads + threadIdx.x;
  if (index >= plan.count) return;
  std::int64_t at[1 + sizeof...(In)];
  plan.offsets(index, at);
  compute_element(at, f, out, std::index_sequence_for<In...>{}, in...);
}

template <int N>
MapPlan<N> map_plan(const Elementwise<N>& e) {
  MapPlan<N> plan{};
  plan.ndim = e.ndim;
  plan.count = static_cast<unsigned>(e.numel);
  for (int d = 0; d < e.ndim; ++d) {
    plan.sizes[d] = Divisor(static_cast<unsigned>(e.sizes[d]));
    for (int n = 0; n < N; ++n) plan.strides[n][d] = e.strides[n][d];
  }
  return plan;
}

/// Whether layout and alignment allow packs of V elements.
template <int V, int N>
bool takes_packs(const Elementwise<N>& e) {
  const int last = e.ndim - 1;
  if (e.strides[0][last] != 1 || e.sizes[last] < V || (e.ndim > 1 && e.sizes[last] % V != 0)) return false;
  for (int n = 0; n < N; ++n) {
    if (e.strides[n][last] == 0) continue;
    if (e.strides[n][last] != 1) return false;
    if (reinterpret_cast<std::uintptr_t>(e.address(n)) % (V * dtype_size(e.dtypes[n])) != 0) return false;
    for (int d = 0; d < last; ++d)
      if (e.strides[n][d] % V != 0) return false;
  }
  return true;
}

/// Splits the operands into parts of at most `limit` elements and calls run(part) for each, so that 32-bit
/// indices suffice.
template <int N, class Run>
void for_parts(Elementwise<N> e, std::int64_t limit, const Run& run) {
  if (e.numel <= limit) return run(e);
  int d = 0;
  while (e.sizes[d] == 1) ++d;
  const std::int64_t size = e.sizes[d], half = size / 2, rest = e.numel / size;
  e.sizes[d] = half;
  e.numel = rest * half;
  for_parts(e, limit, run);
  e.sizes[d] = size - half;
  e.numel = rest * (size - half);
  for (int n = 0; n < N; ++n) e.advance(n, half * e.strides[n][d] * e.element_size(n));
  for_parts(e, limit, run);
}

template <class Out, class... In, class F, std::size_t... I>
void map_part(const Elementwise<1 + int(sizeof...(In))>& e, const F& f, cudaStream_t stream,
              std::index_sequence<I...>) {
  constexpr int V = static_cast<int>(std::min<std::size_t>(8, 16 / std::max({sizeof(Out), sizeof(In)...})));
  constexpr int N = 1 + int(sizeof...(In));
  const auto blocks = [](unsigned threads) { return (threads + kMapThreads - 1) / kMapThreads; };
  MapPlan<N> plan = map_plan(e);
  Out* const out = static_cast<Out*>(e.out);
  if (!takes_packs<V>(e))
    return launch(&map_elements<F, Out, In...>, blocks(plan.count), kMapThreads, 0, stream, plan, f, out,
                  static_cast<const In*>(e.in[I])...);
  const int last = e.ndim - 1;
  const unsigned tail = plan.count % V;
  plan.count /= V;
  plan.sizes[last] = Divisor(static_cast<unsigned>(e.sizes[last] / V));
  for (int n = 0; n < N; ++n) plan.strides[n][last] *= V;
  launch(&map_packs<V, F, Out, In...>, blocks(plan.count), kMapThreads, 0, stream, plan, tail, f, out,
         static_cast<const In*>(e.in[I])...);
}

/// Computes out = f(in...). f must be trivially copyable. The output may be the same array as an input.
template <class Out, class... In, class F>
void map(const Elementwise<1 + int(sizeof...(In))>& e, const F& f, cudaStream_t stream,
         std::int64_t part = 0x7fffffff) {
  if (e.numel == 0) return;
  for_parts(e, part,
            [&](const auto& p) { map_part<Out, In...>(p, f, stream, std::index_sequence_for<In...>{}); });
}

}  // namespace tapestry::kernels::cuda
