#pragma once
// Random numbers by Philox. A thread computes one or more counters and stores 16 bytes. kernels/random.h
// defines how the random words become numbers, so that CPU and GPU agree.
#include <algorithm>

#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/captured_range.h"
#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/sort.cuh"
#include "tapestry/kernels/ops/random.h"
#include "tapestry/kernels/random.h"

namespace tapestry::kernels::cuda {

inline constexpr int kRandomThreads = 256;

// Functors that turn the four words of one counter into kEach numbers of type T.

template <class T>
struct Uniform {
  static constexpr int kEach = 4;
  double low, range;
  __device__ void operator()(const std::uint32_t (&words)[4], T* out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = store<T>(static_cast<float>(fma(range, uniform_from<T>(words[i]), low)));
  }
};
template <class T>
struct Normal {
  static constexpr int kEach = 4;
  double mean, std;
  __device__ void operator()(const std::uint32_t (&words)[4], T* out) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const NormalPair z = normal_from(words[i], words[i + 1]);
      out[i] = store<T>(static_cast<float>(fma(std, z.first, mean)));
      out[i + 1] = store<T>(static_cast<float>(fma(std, z.second, mean)));
    }
  }
};
template <class T>
struct Randint {
  static constexpr int kEach = 2;
  std::int64_t low;
  std::uint64_t span;
  __device__ void operator()(const std::uint32_t (&words)[4], T* out) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      out[i] = store<T>(convert<Compute<T>>(integer_from(wide_word(words, i), low, span)));
  }
};
/// Applies dropout to the values in `out`.
template <class T>
struct Dropout {
  static constexpr int kEach = 4;
  std::uint32_t threshold;
  float scale;
  __device__ void operator()(const std::uint32_t (&words)[4], T* out) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = store<T>(words[i] >> 8 >= threshold ? load(out[i]) * scale : 0.0f);
  }
};

/// `packs` means that out and x are aligned for vector accesses of a thread's elements. x may be null if the
/// functor does not read it.
template <class F, class T>
__global__ void __launch_bounds__(kRandomThreads)
    random_elements(F f, PhiloxRange range, std::int64_t n, bool packs, const T* x, T* out) {
  constexpr int kCounters = std::clamp(int(16 / (F::kEach * sizeof(T))), 1, 4), E = F::kEach * kCounters;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kRandomThreads + threadIdx.x;
  const std::int64_t first = thread * E;
  if (first >= n) return;
  range = current_range(range);
  const bool whole = packs && first + E <= n;
  Pack<T, E> pack{};
  if (x) {
    if (whole) pack = *reinterpret_cast<const Pack<T, E>*>(x + first);
    else
#pragma unroll
      for (int i = 0; i < E; ++i)
        if (first + i < n) pack.v[i] = x[first + i];
  }
#pragma unroll
  for (int k = 0; k < kCounters; ++k) {
    const Philox4 four =
        philox(range.seed, range.offset + static_cast<std::uint64_t>(thread * kCounters + k));
    f(four.v, pack.v + k * F::kEach);
  }
  if (whole) *reinterpret_cast<Pack<T, E>*>(out + first) = pack;
  else
#pragma unroll
    for (int i = 0; i < E; ++i)
      if (first + i < n) out[first + i] = pack.v[i];
}

template <class T, class F>
void launch_random(const F& f, PhiloxRange range, std::int64_t n, const T* x, T* out, cudaStream_t stream) {
  if (n == 0) return;
  tapestry::detail::check_range("random", range);
  constexpr int E = F::kEach * std::clamp(int(16 / (F::kEach * sizeof(T))), 1, 4);
  constexpr std::int64_t per_block = std::int64_t{E} * kRandomThreads;
  const bool packs = aligned<T, E>(out) && aligned<T, E>(x);
  launch(&random_elements<F, T>, static_cast<unsigned>((n + per_block - 1) / per_block), kRandomThreads, 0,
         stream, f, range, n, packs, x, out);
}

template <class T>
void launch_uniform(const LaunchContext& context, const UniformArgs& a) {
  launch_random<T>(Uniform<T>{a.low, a.high - a.low}, a.range, a.n, nullptr, a.out.as<T>(),
                   stream_of(context));
}
template <class T>
void launch_normal(const LaunchContext& context, const NormalArgs& a) {
  launch_random<T>(Normal<T>{a.mean, a.std}, a.range, a.n, nullptr, a.out.as<T>(), stream_of(context));
}
template <class T>
void launch_randint(const LaunchContext& context, const RandintArgs& a) {
  launch_random<T>(Randint<T>{a.low, a.span}, a.range, a.n, nullptr, a.out.as<T>(), stream_of(context));
}
template <class T>
void launch_dropout(const LaunchContext& context, const DropoutArgs& a) {
  launch_random<T>(Dropout<T>{a.threshold, static_cast<float>(a.scale)}, a.range, a.n, a.x.as<T>(),
                   a.out.as<T>(), stream_of(context));
}

/// The sort key of element i of randperm: the 64-bit number in random words 2i and 2i + 1 of `range`.
struct RandomKey {
  PhiloxRange range;
  __device__ std::uint64_t operator()(std::int64_t i) const {
    const PhiloxRange now = current_range(range);
    const Philox4 four = philox(now.seed, now.offset + static_cast<std::uint64_t>(i / 2));
    return wide_word(four.v, static_cast<int>(i % 2));
  }
};
template <class = void>
void launch_randperm(const LaunchContext& context, const RandpermArgs& a) {
  if (a.n == 0) return;
  tapestry::detail::check_range("randperm", a.range);
  const Sorted sorted(RandomKey{a.range}, a.n, context);
  Elementwise<2> e;
  e.ndim = 1, e.numel = e.sizes[0] = a.n;
  e.strides[0][0] = e.strides[1][0] = 1;
  e.out = a.out.as<std::int64_t>(), e.in[0] = sorted.positions();
  e.dtypes[0] = e.dtypes[1] = DType::i64;
  copy_from<std::int64_t, std::int64_t>(e, stream_of(context));
}

/// Sets element i to start + i * step. It is computed in i64 if both are integers, else in f64 without FMA
/// contraction.
template <class T>
__global__ void __launch_bounds__(kRandomThreads)
    range_elements(std::int64_t n, bool real, double start, double step, std::uint64_t first,
                   std::uint64_t by, T* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRandomThreads + threadIdx.x;
  if (i >= n) return;
  const double value = start + __dmul_rn(static_cast<double>(i), step);
  const auto whole = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(i) * by);
  out[i] = store<T>(real ? convert<Compute<T>>(value) : convert<Compute<T>>(whole));
}
template <class T>
void launch_arange(const LaunchContext& context, const ArangeArgs& a) {
  if (a.n == 0) return;
  const auto blocks = static_cast<unsigned>((a.n + kRandomThreads - 1) / kRandomThreads);
  launch(&range_elements<T>, blocks, kRandomThreads, 0, stream_of(context), a.n,
         a.start.is_real() || a.step.is_real(), a.start.to_double(), a.step.to_double(),
         static_cast<std::uint64_t>(a.start.to_int()), static_cast<std::uint64_t>(a.step.to_int()),
         a.out.as<T>());
}

}  // namespace tapestry::kernels::cuda
