// Floating-point arithmetic that PTX defines exactly. This file is compiled with -frounding-math and
// -ffp-contract=off.
#include <cfenv>

#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

enum Flag : u32 { kRoundingBits = 3, kFlushFlag = 4, kSaturateFlag = 8 };

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    return a - b;
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    return a * b;
  }
};
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Fma {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct SquareRoot {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
template <class Op>
struct Canonical {
  template <class... T>
  auto operator()(T... a) const {
    return canonical(Op()(a...));
  }
};

// Any rounding, .ftz and .sat. The values are written inside of the region whose rounding is set.
template <class Op, class T, class... S>
void run_exact(Warp& w, const Code& c, u32 mask) {
  static constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  const Ref* const o = w.operands(c);
  T values[32] = {};
  volatile T result;
  const bool ftz = (c.flags & kFlushFlag) != 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto compute = [&](const S*... sources) {
      std::fesetround(kModes[c.flags & kRoundingBits]);
      for (u32 m = mask; m != 0; m &= m - 1) {
        const int lane = std::countr_zero(m);
        result = Op()((ftz ? flush(sources[lane]) : sources[lane])...);
        values[lane] = result;
      }
      std::fesetround(FE_TONEAREST);
    };
    compute(w.row<const S>(o[1 + I])...);
  }
  (std::index_sequence_for<S...>());
  for (T& v : values) {
    v = canonical(v);
    if (ftz) v = flush(v);
    if ((c.flags & kSaturateFlag) != 0) v = saturate(v);
  }
  w.write(o[0], values, mask);
}

// All spellings of one operation. The nearest rounding without modifiers is vectorised.
template <class Op, class T, class... S>
void add_exact(Table& t, const std::string& name, const std::string& type, bool plain) {
  constexpr bool kSingleType = std::is_same_v<T, float>;
  const std::string signature = std::string{letter<T>(), '='} + std::string(sizeof...(S), letter<T>());
  static constexpr const char* kRoundings[] = {".rn", ".rz", ".rm", ".rp"};
  for (u32 mode = 0; mode < 4; ++mode)
    for (const u32 ftz : {0u, u32{kFlushFlag}})
      for (const u32 sat : {0u, u32{kSaturateFlag}}) {
        if (ftz != 0 && !kSingleType) continue;
        const std::string tail = std::string(ftz ? ".ftz" : "") + (sat ? ".sat" : "") + "." + type;
        const u32 flags = mode | ftz | sat;
        Entry e{&run_exact<Op, T, S...>, signature, flags};
        if (flags == 0) e.run = &run_lanes<Canonical<Op>, T, S...>;
        t[name + kRoundings[mode] + tail] = e;
        if (mode == 0 && plain) t[name + tail] = e;
      }
}

struct Negate {
  template <class T>
  T operator()(T a) const {
    return a ^ static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  }
};
struct Absolute {
  template <class T>
  T operator()(T a) const {
    return a & static_cast<T>(~(T{1} << (8 * sizeof(T) - 1)));
  }
};
struct NegateFlush {
  float operator()(float a) const { return -flush(a); }
};
struct AbsoluteFlush {
  float operator()(float a) const { return std::fabs(flush(a)); }
};
// Copies the sign of a to b.
struct CopySign {
  template <class T>
  T operator()(T a, T b) const {
    constexpr T kSign = T{1} << (8 * sizeof(T) - 1);
    return (a & kSign) | (b & ~kSign);
  }
};
// -0 is less than +0. One NaN is ignored, unless .NaN asks for it.
template <bool maximum, bool nan, bool ftz>
struct Extreme {
  template <class T>
  T operator()(T a, T b) const {
    if (ftz) {
      a = flush(a);
      b = flush(b);
    }
    if (a != a || b != b) return canonical(nan || (a != a && b != b) ? a + b : a != a ? b : a);
    if (a == b) return std::signbit(a) != maximum ? a : b;
    return (a < b) != maximum ? a : b;
  }
};
template <bool ftz>
void add_extremes(Table& t, const std::string& modifier) {
  add_op<Extreme<false, false, ftz>, float, float, float>(t, "min" + modifier + ".f32");
  add_op<Extreme<true, false, ftz>, float, float, float>(t, "max" + modifier + ".f32");
  add_op<Extreme<false, true, ftz>, float, float, float>(t, "min" + modifier + ".NaN.f32");
  add_op<Extreme<true, true, ftz>, float, float, float>(t, "max" + modifier + ".NaN.f32");
}

struct IsFinite {
  template <class T>
  bool operator()(T a) const {
    return std::isfinite(a);
  }
};
struct IsInfinite {
  template <class T>
  bool operator()(T a) const {
    return std::isinf(a);
  }
};
struct IsNumber {
  template <class T>
  bool operator()(T a) const {
    return a == a;
  }
};
struct IsNan {
  template <class T>
  bool operator()(T a) const {
    return a != a;
  }
};
struct IsNormal {
  template <class T>
  bool operator()(T a) const {
    return std::isnormal(a);
  }
};
struct IsSubnormal {
  template <class T>
  bool operator()(T a) const {
    return std::fpclassify(a) == FP_SUBNORMAL;
  }
};
template <class Op, class T>
void run_test(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const T* const a = w.row<const T>(o[1]);
  u32 bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<u32>(Op()(a[lane])) << lane;
  w.set_predicate(o[0], bits, mask);
}

template <class T>
void add_type(Table& t, const std::string& type) {
  add_exact<Add, T, T, T>(t, "add", type, true);
  add_exact<Subtract, T, T, T>(t, "sub", type, true);
  add_exact<Multiply, T, T, T>(t, "mul", type, true);
  add_exact<Divide, T, T, T>(t, "div", type, false);
  add_exact<Fma, T, T, T, T>(t, "fma", type, false);
  add_exact<Fma, T, T, T, T>(t, "mad", type, false);
  add_exact<SquareRoot, T, T>(t, "sqrt", type, false);
  add_exact<Reciprocal, T, T>(t, "rcp", type, false);
  using Bits = std::conditional_t<sizeof(T) == 4, u32, u64>;
  add_op<Negate, Bits, Bits>(t, "neg." + type);
  add_op<Absolute, Bits, Bits>(t, "abs." + type);
  add_op<CopySign, Bits, Bits, Bits>(t, "copysign." + type);
  const std::string signature = std::string("p=") + letter<T>();
  t["testp.finite." + type] = {&run_test<IsFinite, T>, signature, 0};
  t["testp.infinite." + type] = {&run_test<IsInfinite, T>, signature, 0};
  t["testp.number." + type] = {&run_test<IsNumber, T>, signature, 0};
  t["testp.notanumber." + type] = {&run_test<IsNan, T>, signature, 0};
  t["testp.normal." + type] = {&run_test<IsNormal, T>, signature, 0};
  t["testp.subnormal." + type] = {&run_test<IsSubnormal, T>, signature, 0};
}

}  // namespace

void add_float(Table& t) {
  add_type<float>(t, "f32");
  add_type<double>(t, "f64");
  add_op<NegateFlush, float, float>(t, "neg.ftz.f32");
  add_op<AbsoluteFlush, float, float>(t, "abs.ftz.f32");
  add_extremes<false>(t, "");
  add_extremes<true>(t, ".ftz");
  add_op<Extreme<false, false, false>, double, double, double>(t, "min.f64");
  add_op<Extreme<true, false, false>, double, double, double>(t, "max.f64");
}

}  // namespace tapestry::ptx
