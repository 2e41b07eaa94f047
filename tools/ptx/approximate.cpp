// Instructions whose error the PTX manual bounds: the nearest number by default, one at the edge of the error
// on request. The bounds are those of PTX ISA 9.1, whose sections the comments name.
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

// The largest error, as the manual's sections of the instructions state it: relative * |y| + absolute, or
// some units in the last place (ulp), of y or of the number nearest to y. Zeros everywhere: the result is
// exact, as the manual's tables of corner cases demand.
struct Bound {
  double relative = 0, absolute = 0;
  int ulps = 0;
  bool of_nearest = false;
};
constexpr Bound kExact;
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
        if (std::isfinite(further) &&
            (bound.of_nearest || std::fabs(static_cast<double>(further) - y) <= bound.ulps * ulp))
          x = further;
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

// 9.7.3.21: 2 ulp from the correctly rounded result; 2^0 = 1.
struct Exp2 {
  static Bound bound(float a) { return a == 0 ? kExact : Bound{.ulps = 2, .of_nearest = true}; }
  double operator()(float a) const { return std::exp2(static_cast<double>(a)); }
};
// 9.7.3.20: 2^-22 absolute for operands in (0.5, 2), relative for all others.
struct Log2 {
  static Bound bound(float a) {
    return a > 0.5f && a < 2 ? Bound{.absolute = 0x1p-22} : Bound{.relative = 0x1p-22};
  }
  double operator()(float a) const { return std::log2(static_cast<double>(a)); }
};
// 9.7.3.13: 1 ulp.
struct Reciprocal {
  static Bound bound(float) { return {.ulps = 1}; }
  double operator()(float a) const { return 1 / static_cast<double>(a); }
};
// 9.7.3.16: relative 2^-22.9.
struct InverseRoot {
  static Bound bound(float) { return {.relative = 1.2776e-7}; }
  double operator()(float a) const { return 1 / std::sqrt(static_cast<double>(a)); }
};
// 9.7.3.15: relative 2^-23 for all finite operands.
struct Root {
  static Bound bound(float) { return {.relative = 0x1p-23}; }
  double operator()(float a) const { return std::sqrt(static_cast<double>(a)); }
};
// 9.7.3.18 and 9.7.3.19: 2^-20.5 absolute in [-2 pi, 2 pi] and 2^-14.7 in [-100 pi, 100 pi]. Beyond, the
// manual gives no bound. cos(0) is 1.
Bound circular_bound(float a) {
  if (a == 0) return kExact;
  return {.absolute = std::fabs(static_cast<double>(a)) <= 6.283185307179586 ? 6.743e-7 : 3.757e-5};
}
struct Sine {
  static Bound bound(float a) { return circular_bound(a); }
  double operator()(float a) const { return std::sin(static_cast<double>(a)); }
};
struct Cosine {
  static Bound bound(float a) { return circular_bound(a); }
  double operator()(float a) const { return std::cos(static_cast<double>(a)); }
};
// 9.7.3.22: relative 2^-11. Subnormal operands are passed through, and infinities become 1 and -1.
struct Tanh {
  static Bound bound(float a) {
    return std::isinf(a) || std::fabs(a) < 0x1p-126f ? kExact : Bound{.relative = 0x1p-11};
  }
  double operator()(float a) const { return std::tanh(static_cast<double>(a)); }
};
// 9.7.3.8: 2 ulp, for div.approx if |b| is in [2^-126, 2^126]. Beyond 2^126, div.approx gives NaN for an
// infinite dividend and otherwise a zero; div.full does not. For subnormal divisors of div.approx the manual
// gives no bound.
template <bool full>
struct Quotient {
  static Bound bound(float, float) { return {.ulps = 2}; }
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
// 9.7.3.14 and 9.7.3.17: the 20 upper bits of the mantissa; the lower word of the result is zero. Subnormal
// numbers are flushed, and NaN is canonical. The manual gives no bound.
template <class Op>
void run_gross(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u64* const a = w.row<const u64>(o[1]);
  u64 values[32];
  for (int lane = 0; lane < 32; ++lane) {
    u64 bits = a[lane] & 0xffffffff00000000u;
    const u64 exponent = bits & 0x7ff0000000000000u;
    if (exponent == 0) bits &= 0x8000000000000000u;
    const double y = Op()(std::bit_cast<double>(bits));
    u64 result = std::isnan(y) ? 0x7fffffff00000000u : std::bit_cast<u64>(y) & 0xffffffff00000000u;
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
