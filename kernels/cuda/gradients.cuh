#pragma once
// Gradients of arithmetic, in f32 and what is computed in f32: the contracts are in ops/elementwise.h.
#include <cmath>

#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels::cuda {

// ---- of (dy, a, b)

struct DivBackward {
  __device__ float operator()(float dy, float a, float b) const { return -dy * ((a / b) / b); }
};
struct PowBackwardBase {
  __device__ float operator()(float dy, float a, float b) const {
    return b == 0 ? 0 : dy * (b * powf(a, b - 1));
  }
};
struct PowBackwardExponent {
  __device__ float operator()(float dy, float a, float b) const {
    return a == 0 && b >= 0 ? 0 : dy * (powf(a, b) * logf(a));
  }
};
struct MaximumBackward {
  __device__ float operator()(float dy, float a, float b) const { return a < b ? 0 : a == b ? dy / 2 : dy; }
};
struct MinimumBackward {
  __device__ float operator()(float dy, float a, float b) const { return a > b ? 0 : a == b ? dy / 2 : dy; }
};

// ---- of (dy, x)

struct PowScalarBackward {
  float s;
  __device__ float operator()(float dy, float x) const {
    if (s == 0) return 0;
    if (s == 2) return dy * (2 * x);
    if (s == 3) return dy * (3 * (x * x));
    return dy * (s * powf(x, s - 1));
  }
};

// ---- their launches

template <class T, class F>
void launch_ternary(const Elementwise<4>& e, cudaStream_t stream) {
  map<T, T, T, T>(e, F{}, stream);
}
template <class T>
void launch_pow_scalar_backward(const Elementwise<3>& e, const Scalar& s, cudaStream_t stream) {
  map<T, T, T>(e, PowScalarBackward{static_cast<float>(s.to_double())}, stream);
}

}  // namespace tapestry::kernels::cuda
