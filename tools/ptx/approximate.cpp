// Instructions whose error the PTX manual bounds: the nearest number by default, one at the edge of the error
// on request.
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

// The largest error, as the manual's sections of the instructions state it: relative * |y| + absolute, or some units in
// the last place (ulp).
struct Bound {
  double relative = 0, absolute = 0;
  int ulps = 0;
};
enum Flag : u32 { kFlushFlag = 1 };

float approximate(double y, Bound bound, Approximate mode, bool ftz) {
  auto x = static_cast<float>(y);
  if (mode != Approximate::kNearest && std::isfinite(y) && y != 0 && std::isfinite(x)) {
    const float end = mode == Approximate::kLow ? -HUGE_VALF : HUGE_VALF;
    if (bound.ulps != 0) {
      // The nearest number may lie on the far side of y; then one more step would exceed the error.
      const float next = std::nextafterf(x, end);
      const double ulp = std::fabs(static_cast<double>(next) - static_cast<double>(x));
      for (int i = 0; i < bound.ulps; ++i) {
        const float further = std::nextafterf(x, end);
        if (std::isfinite(further) && std::fabs(static_cast<double>(further) - y) <= bound.ulps * ulp) x = further;
      }
    } else {
      const double error = bound.relative * std::fabs(y) + bound.absolute;
      x = static_cast<float>(mode == Approximate::kLow ? y - error : y + error);
      // The edge itself may round to a number outside of the bound.
      if (std::fabs(static_cast<double>(x) - y) > error) x = std::nextafterf(x, static_cast<float>(y));
    }
  }
  return canonical(ftz ? flush(x) : x);
}

struct Exp2 {
  static Bound bound(float) { return {0, 0, 2}; }
  double operator()(float a) const { return std::exp2(static_cast<double>(a)); }
};
struct Log2 {
  static Bound bound(float a) { return a > 0.5f && a < 2 ? Bound{0, 0x1p-22, 0} : Bound{0x1p-22, 0, 0}; }
  double operator()(float a) const { return std::log2(static_cast<double>(a)); }
};
struct Reciprocal {
  static Bound bound(float) { return {0, 0, 1}; }
  double operator()(float a) const { return 1 / static_cast<double>(a); }
};
struct InverseRoot {
  static Bound bound(float) { return {1.277e-7, 0, 0}; }  // 2^-22.9
  double operator()(float a) const { return 1 / std::sqrt(static_cast<double>(a)); }
};
struct Root {
  static Bound bound(float) { return {0x1p-23, 0, 0}; }
  double operator()(float a) const { return std::sqrt(static_cast<double>(a)); }
};
// 2^-20.5 in [-2 pi, 2 pi] and 2^-14.7 in [-100 pi, 100 pi]. Beyond, the manual gives no bound.
Bound circular_bound(float a) {
  return {0, std::fabs(a) <= 6.2831853f ? 6.743e-7 : 3.757e-5, 0};
}
struct Sine {
  static Bound bound(float a) { return circular_bound(a); }
  double operator()(float a) const { return std::sin(static_cast<double>(a)); }
};
struct Cosine {
  static Bound bound(float a) { return circular_bound(a); }
  double operator()(float a) const { return std::cos(static_cast<double>(a)); }
};
struct Tanh {
  static Bound bound(float) { return {0x1p-11, 0, 0}; }
  double operator()(float a) const { return std::tanh(static_cast<double>(a)); }
};
// 2 ulp. div.approx gives 0 if the divisor is above 2^126 and the dividend is finite; div.full does not.
template <bool full>
struct Quotient {
  static Bound bound(float, float) { return {0, 0, 2}; }
  double operator()(float a, float b) const {
    if (!full && std::fabs(b) > 0x1p126f && std::isfinite(b))
      return std::isinf(a) ? std::nan("") : a * std::copysign(0.0, b);
    return static_cast<double>(a) / static_cast<double>(b);
  }
};

template <class Op, class... S>
void run_approximate(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const bool ftz = (c.flags & kFlushFlag) != 0;
  const Approximate mode = w.launch().options->approximate;
  float values[32] = {};
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    for (u32 m = mask; m != 0; m &= m - 1) {
      const int lane = std::countr_zero(m);
      const auto value = [&](const Ref& r) {
        return ftz ? flush(w.row<const float>(r)[lane]) : w.row<const float>(r)[lane];
      };
      values[lane] = approximate(Op()(value(o[1 + I])...), Op::bound(value(o[1 + I])...), mode, ftz);
    }
  }
  (std::index_sequence_for<S...>());
  w.write(o[0], values, mask);
}
// The 20 upper bits of the mantissa; the lower word of the result is zero.
template <class Op>
void run_gross(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u64* const a = w.row<const u64>(o[1]);
  u64 values[32];
  for (int lane = 0; lane < 32; ++lane) {
    u64 bits = a[lane] & 0xffffffff00000000u;
    const u64 exponent = bits & 0x7ff0000000000000u;
    if (exponent == 0) bits &= 0x8000000000000000u;
    u64 result = std::bit_cast<u64>(Op()(std::bit_cast<double>(bits))) & 0xffffffff00000000u;
    if ((result & 0x7ff0000000000000u) == 0) result &= 0x8000000000000000u;
    values[lane] = result;
  }
  w.write(o[0], values, mask);
}
struct GrossReciprocal {
  double operator()(double a) const { return 1 / a; }
};
struct GrossInverseRoot {
  double operator()(double a) const { return 1 / std::sqrt(a); }
};

struct DoubleInverseRoot {
  double operator()(double a) const { return 1 / std::sqrt(a); }
};

template <class Op>
void add_one(Table& t, const std::string& name) {
  t[name + ".approx.f32"] = {&run_approximate<Op, float>, "w=w", 0};
  t[name + ".approx.ftz.f32"] = {&run_approximate<Op, float>, "w=w", kFlushFlag};
}

}  // namespace

void add_approximate(Table& t) {
  add_one<Exp2>(t, "ex2");
  add_one<Log2>(t, "lg2");
  add_one<Reciprocal>(t, "rcp");
  add_one<InverseRoot>(t, "rsqrt");
  add_one<Root>(t, "sqrt");
  add_one<Sine>(t, "sin");
  add_one<Cosine>(t, "cos");
  t["tanh.approx.f32"] = {&run_approximate<Tanh, float>, "w=w", 0};
  for (const u32 ftz : {0u, 1u}) {
    const std::string tail = ftz != 0 ? ".ftz.f32" : ".f32";
    t["div.approx" + tail] = {&run_approximate<Quotient<false>, float, float>, "w=ww", ftz};
    t["div.full" + tail] = {&run_approximate<Quotient<true>, float, float>, "w=ww", ftz};
  }
  add_op<DoubleInverseRoot, double, double>(
      t, "rsqrt.approx.f64");  // at no edge: the division is not rounded once
  t["rcp.approx.ftz.f64"] = {&run_gross<GrossReciprocal>, "l=l", 0};
  t["rsqrt.approx.ftz.f64"] = {&run_gross<GrossInverseRoot>, "l=l", 0};
}

}  // namespace tapestry::ptx
