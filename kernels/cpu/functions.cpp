// Functions of one tensor, and their gradients.
#include <cmath>
#include <numbers>

#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/cpu/math.h"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels {
namespace {

using cpu::Compute;
using cpu::convert_scalar;
using cpu::map;

constexpr DeviceType kDevice = DeviceType::cpu;

struct Neg {
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>) return -x;
    else return static_cast<C>(std::make_unsigned_t<C>(0) - static_cast<std::make_unsigned_t<C>>(x));
  }
};
struct Abs {
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>) return std::abs(x);
    else if constexpr (std::is_signed_v<C>) return x < 0 ? Neg{}(x) : x;
    else return x;
  }
};
struct Relu {
  template <class C>
  C operator()(C x) const {
    return x < 0 ? C(0) : x;
  }
};
struct Exp {
  template <class C>
  C operator()(C x) const {
    return cpu::fast_exp(x);
  }
};
struct Log {
  template <class C>
  C operator()(C x) const {
    return cpu::log(x);
  }
};
struct Sqrt {
  template <class C>
  C operator()(C x) const {
    return std::sqrt(x);
  }
};
struct Rsqrt {
  template <class C>
  C operator()(C x) const {
    return 1 / std::sqrt(x);
  }
};
struct Tanh {
  template <class C>
  C operator()(C x) const {
    return cpu::tanh(x);
  }
};
struct Sigmoid {
  template <class C>
  C operator()(C x) const {
    return cpu::sigmoid(x);
  }
};
struct Silu {
  template <class C>
  C operator()(C x) const {
    return x * cpu::sigmoid(x);
  }
};
struct Gelu {
  template <class C>
  C operator()(C x) const {
    return x * cpu::normal_cdf(x);
  }
};
// The tanh approximation: (1 + tanh(u)) / 2 is sigmoid(2u), and 2u and its derivative are these.
template <class C>
inline C gelu_argument(C x) {
  return C(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi) * (x + C(0.044715) * (x * x * x));
}
template <class C>
inline C gelu_argument_slope(C x) {
  return C(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi) * (1 + C(3 * 0.044715) * (x * x));
}
struct GeluTanh {
  template <class C>
  C operator()(C x) const {
    return x * cpu::sigmoid(gelu_argument(x));
  }
};

struct ReluBackward {
  template <class C>
  C operator()(C dy, C y) const {
    return y <= 0 ? C(0) : dy;
  }
};
struct TanhBackward {
  template <class C>
  C operator()(C dy, C y) const {
    return dy * (1 - y * y);
  }
};
struct SigmoidBackward {
  template <class C>
  C operator()(C dy, C y) const {
    return dy * (y * (1 - y));
  }
};
struct SqrtBackward {
  template <class C>
  C operator()(C dy, C y) const {
    return dy / (2 * y);
  }
};
struct RsqrtBackward {
  template <class C>
  C operator()(C dy, C y) const {
    return C(-0.5) * dy * (y * y * y);
  }
};
struct SiluBackward {
  template <class C>
  C operator()(C dy, C x) const {
    const C s = cpu::sigmoid(x);
    return dy * (s * (1 + x * (1 - s)));
  }
};
struct GeluBackward {
  template <class C>
  C operator()(C dy, C x) const {
    constexpr C scale = C(std::numbers::inv_sqrtpi / std::numbers::sqrt2);  // 1 / sqrt(2 pi)
    return dy * (cpu::normal_cdf(x) + x * (scale * cpu::fast_exp(C(-0.5) * x * x)));
  }
};
struct GeluTanhBackward {
  template <class C>
  C operator()(C dy, C x) const {
    const C s = cpu::sigmoid(gelu_argument(x));
    return dy * (s + x * (s * (1 - s) * gelu_argument_slope(x)));
  }
};
struct AbsBackward {
  template <class C>
  C operator()(C dy, C x) const {
    return x > 0 ? dy : x < 0 ? -dy : dy * 0;
  }
};

template <class T, class F>
void unary(const Elementwise<2>& e) {
  map<T, T>(e, F{});
}
template <class T, class F>
void binary(const Elementwise<3>& e) {
  map<T, T, T>(e, F{});
}

template <class T>
void clamp_kernel(const Elementwise<2>& e, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  using C = Compute<T>;
  const C l = lo ? convert_scalar<C>(*lo) : C(0), h = hi ? convert_scalar<C>(*hi) : C(0);
  if (l != l || h != h) return map<T, T>(e, [nan = l + h](C) { return nan; });
  if (lo && hi)
    map<T, T>(e, [l, h](C x) {
      x = x < l ? l : x;
      return x > h ? h : x;
    });
  else if (lo) map<T, T>(e, [l](C x) { return x < l ? l : x; });
  else map<T, T>(e, [h](C x) { return x > h ? h : x; });
}
template <class T>
void clamp_backward_kernel(const Elementwise<3>& e, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  using C = Compute<T>;
  const C l = lo ? convert_scalar<C>(*lo) : C(0), h = hi ? convert_scalar<C>(*hi) : C(0);
  if (lo && hi) map<T, T, T>(e, [l, h](C dy, C x) { return x > l && x < h ? dy : C(0); });
  else if (lo) map<T, T, T>(e, [l](C dy, C x) { return x > l ? dy : C(0); });
  else map<T, T, T>(e, [h](C dy, C x) { return x < h ? dy : C(0); });
}

const bool for_floats = for_types<float, double, Half, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  exp.set(kDevice, t, &unary<T, Exp>);
  log.set(kDevice, t, &unary<T, Log>);
  sqrt.set(kDevice, t, &unary<T, Sqrt>);
  rsqrt.set(kDevice, t, &unary<T, Rsqrt>);
  tanh.set(kDevice, t, &unary<T, Tanh>);
  sigmoid.set(kDevice, t, &unary<T, Sigmoid>);
  silu.set(kDevice, t, &unary<T, Silu>);
  gelu.set(kDevice, t, &unary<T, Gelu>);
  gelu_tanh.set(kDevice, t, &unary<T, GeluTanh>);
  relu_backward.set(kDevice, t, &binary<T, ReluBackward>);
  tanh_backward.set(kDevice, t, &binary<T, TanhBackward>);
  sigmoid_backward.set(kDevice, t, &binary<T, SigmoidBackward>);
  sqrt_backward.set(kDevice, t, &binary<T, SqrtBackward>);
  rsqrt_backward.set(kDevice, t, &binary<T, RsqrtBackward>);
  silu_backward.set(kDevice, t, &binary<T, SiluBackward>);
  gelu_backward.set(kDevice, t, &binary<T, GeluBackward>);
  gelu_tanh_backward.set(kDevice, t, &binary<T, GeluTanhBackward>);
  abs_backward.set(kDevice, t, &binary<T, AbsBackward>);
  clamp_backward.set(kDevice, t, &clamp_backward_kernel<T>);
});
const bool for_numbers =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
      constexpr DType t = dtype_of<T>;
      neg.set(kDevice, t, &unary<T, Neg>);
      abs.set(kDevice, t, &unary<T, Abs>);
      relu.set(kDevice, t, &unary<T, Relu>);
      clamp.set(kDevice, t, &clamp_kernel<T>);
    });

}  // namespace
}  // namespace tapestry::kernels
