#pragma once
// Functions of one tensor of f32, or of a dtype that is computed in f32. kernels/ops/functions.h has the
// formulas.
#include <limits>

#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry::kernels::cuda {

/// One kernel handles all combinations of limits: a missing limit is infinite.
struct Clamp {
  float low, high;  // if one limit is NaN, both are
  __device__ float operator()(float x) const {
    if (low != low) return low;
    x = x < low ? low : x;
    return x > high ? high : x;
  }
};
struct ClampBackward {
  bool has_low, has_high;
  float low, high;
  __device__ float operator()(float dy, float x) const {
    return (!has_low || x > low) && (!has_high || x < high) ? dy : 0;
  }
};

template <class T>
void launch_clamp(const LaunchContext& context, const ClampArgs& a) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Clamp f{a.low ? static_cast<float>(a.low->to_double()) : -infinity,
          a.high ? static_cast<float>(a.high->to_double()) : infinity};
  if (f.low != f.low || f.high != f.high) f.low = f.high = std::numeric_limits<float>::quiet_NaN();
  map<T, T>(a.operands, f, stream_of(context));
}
template <class T>
void launch_clamp_backward(const LaunchContext& context, const ClampBackwardArgs& a) {
  map<T, T, T>(
      a.operands,
      ClampBackward{a.low.has_value(), a.high.has_value(), a.low ? static_cast<float>(a.low->to_double()) : 0,
                    a.high ? static_cast<float>(a.high->to_double()) : 0},
      stream_of(context));
}

}  // namespace tapestry::kernels::cuda
