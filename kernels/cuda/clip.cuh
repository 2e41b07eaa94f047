#pragma once
// Clips the gradients of many parameters at once (multi-tensor apply). A block computes kGradientBlock
// elements of one gradient, which it finds by its number in a table. The table is a kernel argument if the
// gradients are few: unlike a copy from pinned memory, CUDA graphs capture it.
#include <algorithm>
#include <limits>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/clip.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kClipThreads = 256;

struct GradientTable {
  const GradientItem* items;  // null if they are in `own`
  int count;
  GradientItem own[kGradientsInArguments];

  explicit GradientTable(const GradientItems& g)
      : items(g.count > kGradientsInArguments ? g.on_device : nullptr), count(static_cast<int>(g.count)) {
    if (!items) std::copy_n(g.items, g.count, own);
  }
};

/// The elements of a block.
struct GradientPart {
  void* data;  // of the gradient
  std::int64_t begin, end;
  DType dtype;

  /// Binary search for the last gradient whose first block is not after this one.
  __device__ explicit GradientPart(const GradientTable& table) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    int low = 0, high = table.count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if ((table.items ? table.items[middle].first : table.own[middle].first) <= block) low = middle;
      else high = middle - 1;
    }
    const GradientItem item = table.items ? table.items[low] : table.own[low];
    data = item.data;
    dtype = item.dtype;
    begin = (block - item.first) * kGradientBlock;
    end = begin + kGradientBlock < item.numel ? begin + kGradientBlock : item.numel;
  }

  /// Calls f(pack, address) for the elements of this thread, in packs of 16 bytes if the gradient is aligned
  /// to that, and one at a time after the last pack. Without `kPacks`, all elements come one at a time.
  template <bool kPacks, class T, class F>
  __device__ __forceinline__ void each_as(F& f) const {
    constexpr int V = kPacks ? static_cast<int>(16 / sizeof(T)) : 1;
    T* const x = static_cast<T*>(data);
    const auto thread = static_cast<std::int64_t>(threadIdx.x);
    const bool packs = kPacks && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    const std::int64_t body = packs ? begin + (end - begin) / V * V : begin;
    if constexpr (kPacks)
      for (std::int64_t i = begin + thread * V; i < body; i += kClipThreads * V)
        f(*reinterpret_cast<const Pack<T, V>*>(x + i), x + i);
    for (std::int64_t i = body + thread; i < end; i += kClipThreads)
      f(*reinterpret_cast<const Pack<T, 1>*>(x + i), x + i);
  }
  template <bool kPacks = true, class F>
  __device__ __forceinline__ void each(F& f) const {
    if (dtype == DType::f32) each_as<kPacks, float>(f);
    else if (dtype == DType::bf16) each_as<kPacks, BFloat16>(f);
    else each_as<kPacks, Half>(f);
  }
};

// ---- the norm

enum class NormKind { largest, one, two, any };

/// What is added, or compared, and the way back to the norm.
struct NormRule {
  NormKind kind;
  double order;

  explicit NormRule(double p)
      : kind(p == std::numeric_limits<double>::infinity() ? NormKind::largest
             : p == 1                                     ? NormKind::one
             : p == 2                                     ? NormKind::two
                                                          : NormKind::any),
        order(p) {}
  /// The squares of f32 numbers do not overflow in f64, and few terms lose digits.
  template <bool kAny>
  __device__ __forceinline__ double term(float x) const {
    const double value = x;
    if constexpr (kAny) return pow(fabs(value), order);
    else return kind == NormKind::two ? value * value : fabs(value);
  }
  __device__ __forceinline__ double join(double a, double b) const {
    if (kind != NormKind::largest) return a + b;
    return a < b || b != b ? b : a;
  }
  __device__ double root(double sum) const {
    if (kind == NormKind::two) return sqrt(sum);
    return kind == NormKind::any ? pow(sum, 1 / order) : sum;
  }
};

/// Joins the values of all threads, in a fixed order.
__device__ __forceinline__ double join_block(const NormRule& rule, double value, double* shared) {
  const unsigned thread = threadIdx.x;
  shared[thread] = value;
  for (unsigned half = kClipThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] = rule.join(shared[thread], shared[thread + half]);
  }
  // nvcc turns a read by thread 0 alone into a read by all threads, so all wait for what thread 0 has written.
  __syncthreads();
  return shared[0];
}

/// Joins the terms of a thread's elements. With kAny, the order is any number: then pow() is inlined for one
/// element at a time, because the compiler would call it, with a stack frame, from the loops over packs.
template <bool kAny>
struct JoinTerms {
  const NormRule rule;
  double sum = 0;
  template <class T, int V>
  __device__ __forceinline__ void operator()(const Pack<T, V>& pack, T*) {
#pragma unroll
    for (int v = 0; v < V; ++v) sum = rule.join(sum, rule.term<kAny>(load(pack.v[v])));
  }
};

template <bool kAny>
__global__ void __launch_bounds__(kClipThreads)
    norm_of_parts(GradientTable table, NormRule rule, double* parts) {
  __shared__ double shared[kClipThreads];
  JoinTerms<kAny> join{rule};
  GradientPart(table).each<!kAny>(join);
  const double sum = join_block(rule, join.sum, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class = void>
__global__ void __launch_bounds__(kClipThreads)
    finish_norm(int count, NormRule rule, float max_norm, const double* parts, float* total, float* factor) {
  __shared__ double shared[kClipThreads];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kClipThreads) sum = rule.join(sum, parts[i]);
  sum = join_block(rule, sum, shared);
  if (threadIdx.x != 0) return;
  const auto norm = static_cast<float>(rule.root(sum));
  const float scale = max_norm / (norm + 1e-6f);
  *total = norm;
  *factor = scale > 1 ? 1.0f : scale;  // NaN stays
}

template <class = void>
void launch_gradient_norm(const LaunchContext& context, const GradientNormArgs& a) {
  const cudaStream_t stream = stream_of(context);
  const NormRule rule(a.order);
  const Scratch<double> parts(context.device, a.gradients.blocks);
  launch(rule.kind == NormKind::any ? &norm_of_parts<true> : &norm_of_parts<false>,
         static_cast<unsigned>(a.gradients.blocks), kClipThreads, 0, stream, GradientTable(a.gradients), rule,
         parts.data());
  launch(&finish_norm<>, 1, kClipThreads, 0, stream, static_cast<int>(a.gradients.blocks), rule,
         static_cast<float>(a.max_norm), parts.data(), a.total.as<float>(), a.factor.as<float>());
}

// ---- changes in place

template <class F>
struct Change {
  const F f;
  template <class T, int V>
  __device__ __forceinline__ void operator()(Pack<T, V> pack, T* to) const {
#pragma unroll
    for (int v = 0; v < V; ++v) pack.v[v] = store<T>(f(load(pack.v[v])));
    *reinterpret_cast<Pack<T, V>*>(to) = pack;
  }
};
template <class F>
__device__ __forceinline__ void change_part(const GradientTable& table, const F& f) {
  const Change<F> change{f};
  GradientPart(table).each(change);
}

template <class = void>
__global__ void __launch_bounds__(kClipThreads) scale_parts(GradientTable table, const float* factor) {
  const float scale = *factor;
  if (scale != 1) change_part(table, [=](float x) { return x * scale; });
}

template <class = void>
__global__ void __launch_bounds__(kClipThreads) clamp_parts(GradientTable table, float limit) {
  change_part(table, [=](float x) { return x > limit ? limit : x < -limit ? -limit : x; });
}

template <class = void>
void launch_scale_gradients(const LaunchContext& context, const ScaleGradientsArgs& a) {
  launch(&scale_parts<>, static_cast<unsigned>(a.gradients.blocks), kClipThreads, 0, stream_of(context),
         GradientTable(a.gradients), a.factor.as<float>());
}

template <class = void>
void launch_clamp_gradients(const LaunchContext& context, const ClampGradientsArgs& a) {
  launch(&clamp_parts<>, static_cast<unsigned>(a.gradients.blocks), kClipThreads, 0, stream_of(context),
         GradientTable(a.gradients), static_cast<float>(a.limit));
}

}  // namespace tapestry::kernels::cuda
