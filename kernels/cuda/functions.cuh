#pragma once
// The functions under elementwise kernels of f32, and of what is computed in f32; the contracts in
// ops/elementwise.h say what they are. NaN, infinities and denormals go where the CPU's kernels put them.
#include <cmath>
#include <limits>
#include <optional>

#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels::cuda {

// ---- of two numbers

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Sub {
  __device__ float operator()(float a, float b) const { return a - b; }
};
struct Mul {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Div {
  __device__ float operator()(float a, float b) const { return a / b; }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};
struct Minimum {
  __device__ float operator()(float a, float b) const { return a < b || a != a ? a : b; }
};
struct Pow {
  __device__ float operator()(float a, float b) const { return powf(a, b); }
};

/// f(x, s), with s the same for all elements; and f(s, x).
template <class F>
struct WithScalar {
  float s;
  __device__ float operator()(float x) const { return F{}(x, s); }
};
template <class F>
struct ScalarWith {
  float s;
  __device__ float operator()(float x) const { return F{}(s, x); }
};
/// The exponents that powers usually have are faster by themselves, and exact where powf is not.
struct PowScalar {
  float s;
  __device__ float operator()(float x) const {
    if (s == 2) return x * x;
    if (s == 3) return x * x * x;
    if (s == 1) return x;
    if (s == -1) return 1 / x;
    if (s == 0.5f) return sqrtf(x);
    return powf(x, s);
  }
};

// ---- of one number

struct Neg {
  __device__ float operator()(float x) const { return -x; }
};
struct Abs {
  __device__ float operator()(float x) const { return fabsf(x); }
};
struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0 : x; }
};
struct Exp {
  __device__ float operator()(float x) const { return expf(x); }
};
struct Log {
  __device__ float operator()(float x) const { return logf(x); }
};
struct Sqrt {
  __device__ float operator()(float x) const { return sqrtf(x); }
};
struct Rsqrt {
  __device__ float operator()(float x) const { return rsqrtf(x); }
};
struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};

// Memory gives a multiprocessor time for some 55 instructions an element of f32, or 27 of bf16, of one input
// and one output: so those of bf16 (T) are computed to its digits.

/// By an exponential that cannot overflow.
template <class T = float>
struct Sigmoid {
  __device__ float operator()(float x) const {
    const float e = expf(-fabsf(x));  // also where it is subnormal: silu multiplies it by x
    return quotient_for<T>(x >= 0 ? 1 : e, 1 + e);
  }
};
template <class T = float>
struct Silu {
  __device__ float operator()(float x) const { return x * Sigmoid<T>{}(x); }
};
/// Phi(x), by half of what erfcf() takes. The tail keeps its digits: for z >= 0 Phi(-z) is
/// exp(-z^2 / 2) t p(t), where t = 1 / (1 + c z), and p within 2e-8 (f32) or 1e-4 (bf16) of the best.
template <class T = float>
struct NormalCdf {
  __device__ float operator()(float x) const {
    constexpr bool few = std::is_same_v<T, BFloat16>;
    const float z = fabsf(x), t = __fdividef(1.0f, 1.0f + (few ? 0.4f : 0.3f) * z);
    float p;
    if constexpr (few) {
      p = -0.0847596229f;
      p = p * t + 0.144047848f;
      p = p * t + 0.120581500f;
      p = p * t + 0.160509868f;
      p = p * t + 0.159572667f;
    } else {
      p = -0.0107649836f;
      p = p * t + 0.0388268026f;
      p = p * t - 0.0302468046f;
      p = p * t - 0.0329057738f;
      p = p * t + 0.0235445066f;
      p = p * t + 0.0155171965f;
      p = p * t + 0.0607371635f;
      p = p * t + 0.0869907409f;
      p = p * t + 0.108936405f;
      p = p * t + 0.119682049f;
      p = p * t + 0.119682687f;
    }
    const float tail = exp_for<T>(-0.5f * (z * z)) * (p * t);
    return x < 0 ? tail : 1 - tail;
  }
};
template <class T = float>
struct Gelu {
  __device__ float operator()(float x) const { return x * NormalCdf<T>{}(x); }
};
/// (1 + tanh(u)) / 2 is sigmoid(2u).
template <class T = float>
struct GeluTanh {
  static constexpr float kScale = 1.5957691216057308f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  __device__ float operator()(float x) const { return x * Sigmoid<T>{}(kScale * (x + kCube * (x * x * x))); }
};
struct Clamp {
  float lo, hi;  // both NaN if one is
  __device__ float operator()(float x) const {
    if (lo != lo) return lo;
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
  }
};

// ---- gradients: dx of (dy, y) or (dy, x)

struct ReluBackward {
  __device__ float operator()(float dy, float y) const { return y <= 0 ? 0 : dy; }
};
struct TanhBackward {
  __device__ float operator()(float dy, float y) const { return dy * (1 - y * y); }
};
struct SigmoidBackward {
  __device__ float operator()(float dy, float y) const { return dy * (y * (1 - y)); }
};
struct SqrtBackward {
  __device__ float operator()(float dy, float y) const { return dy / (2 * y); }
};
struct RsqrtBackward {
  __device__ float operator()(float dy, float y) const { return -0.5f * dy * (y * y * y); }
};
template <class T = float>
struct SiluBackward {
  __device__ float operator()(float dy, float x) const {
    const float s = Sigmoid<T>{}(x);
    return dy * (s * (1 + x * (1 - s)));
  }
};
template <class T = float>
struct GeluBackward {
  __device__ float operator()(float dy, float x) const {
    return dy * (NormalCdf<T>{}(x) + x * (0.39894228040143268f * exp_for<T>(-0.5f * (x * x))));
  }
};
template <class T = float>
struct GeluTanhBackward {
  __device__ float operator()(float dy, float x) const {
    constexpr float scale = GeluTanh<T>::kScale, cube = GeluTanh<T>::kCube;
    const float s = Sigmoid<T>{}(scale * (x + cube * (x * x * x)));
    return dy * (s + x * (s * (1 - s) * (scale * (1 + 3 * cube * (x * x)))));
  }
};
struct AbsBackward {
  __device__ float operator()(float dy, float x) const { return x > 0 ? dy : x < 0 ? -dy : dy * 0; }
};
struct ClampBackward {
  bool has_lo, has_hi;
  float lo, hi;
  __device__ float operator()(float dy, float x) const {
    return (!has_lo || x > lo) && (!has_hi || x < hi) ? dy : 0;
  }
};

// ---- their launches

template <class T, class F>
void launch_unary(const Elementwise<2>& e, cudaStream_t stream) {
  map<T, T>(e, F{}, stream);
}
template <class T, class F>
void launch_binary(const Elementwise<3>& e, cudaStream_t stream) {
  map<T, T, T>(e, F{}, stream);
}
/// F is WithScalar<...>, ScalarWith<...> or PowScalar.
template <class T, class F>
void launch_scalar(const Elementwise<2>& e, const Scalar& s, cudaStream_t stream) {
  map<T, T>(e, F{static_cast<float>(s.to_double())}, stream);
}
template <class T>
void launch_clamp(const Elementwise<2>& e, const std::optional<Scalar>& lo, const std::optional<Scalar>& hi,
                  cudaStream_t stream) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Clamp f{lo ? static_cast<float>(lo->to_double()) : -infinity,
          hi ? static_cast<float>(hi->to_double()) : infinity};
  if (f.lo != f.lo || f.hi != f.hi) f.lo = f.hi = std::numeric_limits<float>::quiet_NaN();
  map<T, T>(e, f, stream);
}
template <class T>
void launch_clamp_backward(const Elementwise<3>& e, const std::optional<Scalar>& lo,
                           const std::optional<Scalar>& hi, cudaStream_t stream) {
  map<T, T, T>(e,
               ClampBackward{lo.has_value(), hi.has_value(), lo ? static_cast<float>(lo->to_double()) : 0,
                             hi ? static_cast<float>(hi->to_double()) : 0},
               stream);
}

}  // namespace tapestry::kernels::cuda
