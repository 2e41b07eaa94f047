#pragma once
// The largest and the smallest element, and where it is.
#include <limits>

#include "tapestry/kernels/cuda/reduction.cuh"

namespace tapestry::kernels::cuda {

/// Writes a result in its dtype: that of the input, or f32.
template <class T>
struct FloatResult {
  void* out;
  bool wide;
  explicit FloatResult(const Reduce& r) : out(r.out), wide(r.out_dtype == DType::f32) {}
  __device__ void put(std::int64_t i, double value) const {
    const float v = static_cast<float>(value);
    if (wide) static_cast<float*>(out)[i] = v;
    else static_cast<T*>(out)[i] = store<T>(v);
  }
};

/// The first of the largest keys: an element itself or, to find the smallest, its opposite. NaN wins.
template <class T>
struct Extreme {
  static constexpr bool kFloats = !std::is_integral_v<T>;
  using Key = std::conditional_t<kFloats, float, std::conditional_t<sizeof(T) == 8, std::int64_t, int>>;
  struct State {
    Key key;
    std::int64_t position;
  };
  struct Center {};

  void* out;              // or null
  std::int64_t* indices;  // or null
  Key opposite;           // factor of a float: 1 or -1; bits of an integer to turn round: 0 or all
  bool absolute, wide;

  Extreme(const Reduce& r, bool largest, bool of_absolutes, std::int64_t* at)
      : out(r.out),
        indices(at),
        opposite(kFloats ? (largest ? 1 : -1) : (largest ? 0 : -1)),
        absolute(of_absolutes),
        wide(r.out_dtype == DType::f32) {}

  __device__ Key turned(Key x) const {
    if constexpr (kFloats) return x * opposite;
    else return x ^ opposite;
  }
  __device__ static State none() {
    using Limits = std::numeric_limits<Key>;
    return {Limits::has_infinity ? -Limits::infinity() : Limits::lowest(),
            std::numeric_limits<std::int64_t>::max()};
  }
  __device__ Center center(std::int64_t) const { return {}; }
  __device__ static bool beats(Key a, Key b) { return !(a <= b) && b == b; }
  template <int N, class Position>
  __device__ void take(State& s, const Compute<T> (&x)[N], Center, const Position& position) const {
    Key key[N];
    UNROLL for (int j = 0; j < N; ++j) {
      key[j] = static_cast<Key>(x[j]);
      if constexpr (kFloats) key[j] = absolute ? fabsf(key[j]) : key[j];
      key[j] = turned(key[j]);
    }
    int best = 0;
    UNROLL for (int j = 1; j < N; ++j) {
      const bool better = beats(key[j], key[0]);
      best = better ? j : best;
      key[0] = better ? key[j] : key[0];
    }
    // A thread's positions grow: what is not better comes later.
    if (beats(key[0], s.key) || s.position == none().position) s = {key[0], position(best)};
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
    const Key value = turned(s.key);
    if constexpr (!kFloats) static_cast<T*>(out)[i] = static_cast<T>(value);
    else if (wide) static_cast<float*>(out)[i] = value;
    else static_cast<T*>(out)[i] = store<T>(value);
  }
};

/// Of x, or of |x|; bools are bytes of 0 and 1.
template <class T>
void launch_extreme(const Reduce& r, bool largest, bool of_absolutes, std::int64_t* indices,
                    cudaStream_t stream) {
  launch_reduce<T>(r, Extreme<T>(r, largest, of_absolutes, indices), stream);
}

}  // namespace tapestry::kernels::cuda
