#pragma once
// Maximum, minimum, argmax and argmin.
#include <limits>

#include "tapestry/kernels/cuda/reduction.cuh"

namespace tapestry::kernels::cuda {

/// Writes a result in the output dtype: that of the input, or f32.
template <class T>
struct FloatResult {
  void* out;
  bool f32_out;
  explicit FloatResult(const Reduction& r) : out(r.out.address()), f32_out(r.out.dtype() == DType::f32) {}
  __device__ void put(std::int64_t i, double value) const {
    const float v = static_cast<float>(value);
    if (f32_out) static_cast<float*>(out)[i] = v;
    else static_cast<T*>(out)[i] = store<T>(v);
  }
};

/// Finds the first of the largest keys. A key is the element, or its negation to find the minimum. NaN is
/// larger than any number.
template <class T>
struct Extreme {
  static constexpr bool kFloats = !std::is_integral_v<T>;
  using Key = std::conditional_t<kFloats, float, std::conditional_t<sizeof(T) == 8, std::int64_t, int>>;
  struct State {
    Key key;
    std::int64_t position;
  };
  struct Center {};

  void* out;              // may be null
  std::int64_t* indices;  // may be null
  Key negate;             // minimum: a float is multiplied by -1, the bits of an integer are inverted by XOR
  bool absolute, f32_out;

  Extreme(const Reduction& r, bool largest, bool of_absolutes, std::int64_t* at)
      : out(r.out.address()),
        indices(at),
        negate(kFloats ? (largest ? 1 : -1) : (largest ? 0 : -1)),
        absolute(of_absolutes),
        f32_out(r.out.dtype() == DType::f32) {}

  __device__ Key maybe_negated(Key x) const {
    if constexpr (kFloats) return x * negate;
    else return x ^ negate;
  }
  __device__ static State identity() {
    using Limits = std::numeric_limits<Key>;
    return {Limits::has_infinity ? -Limits::infinity() : Limits::lowest(),
            std::numeric_limits<std::int64_t>::max()};
  }
  __device__ Center center(std::int64_t) const { return {}; }
  __device__ static bool beats(Key a, Key b) { return !(a <= b) && b == b; }
  template <int N, class Position>
  __device__ void take(State& s, const Compute<T> (&x)[N], Center, const Position& position) const {
    Key key[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      key[j] = static_cast<Key>(x[j]);
      if constexpr (kFloats) key[j] = absolute ? fabsf(key[j]) : key[j];
      key[j] = maybe_negated(key[j]);
    }
    int best = 0;
#pragma unroll
    for (int j = 1; j < N; ++j) {
      const bool better = beats(key[j], key[0]);
      best = better ? j : best;
      key[0] = better ? key[j] : key[0];
    }
    // A thread visits positions in rising order, so a later equal key is not first.
    if (beats(key[0], s.key) || s.position == identity().position) s = {key[0], position(best)};
  }
  __device__ static State merge(State a, State b) {
    return beats(b.key, a.key) || (!beats(a.key, b.key) && b.position < a.position) ? b : a;
  }
  __device__ static State of_lane(State s, int bits) {
    return {__shfl_xor_sync(kAllLanes, s.key, bits), __shfl_xor_sync(kAllLanes, s.position, bits)};
  }
  __device__ void finish(std::int64_t i, State s) const {
    if (indices) indices[i] = s.position;
    if (!out) return;
    const Key value = maybe_negated(s.key);
    if constexpr (!kFloats) static_cast<T*>(out)[i] = static_cast<T>(value);
    else if (f32_out) static_cast<float*>(out)[i] = value;
    else static_cast<T*>(out)[i] = store<T>(value);
  }
};

/// Reduces x, or |x|. Bools are bytes with value 0 or 1.
template <class T>
void launch_extreme(const Reduction& r, bool largest, bool of_absolutes, std::int64_t* indices,
                    const LaunchContext& context) {
  launch_reduce<T>(r, Extreme<T>(r, largest, of_absolutes, indices), context);
}

}  // namespace tapestry::kernels::cuda
