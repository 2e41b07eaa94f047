// Floating-point instructions against exact references: __float128 has the exact result of one operation on
// the values used here.
#include <bit>
#include <cmath>
#include <functional>

#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/machine/evaluate.h"

using namespace ptx_machine;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
__extension__ typedef __float128 Quad;

namespace {

float single(u64 bits) { return std::bit_cast<float>(static_cast<u32>(bits)); }
u64 bits_of(float x) { return std::bit_cast<u32>(x); }
u64 bits_of(double x) { return std::bit_cast<u64>(x); }
bool is_nan(u64 bits) { return (bits & 0x7fffffff) > 0x7f800000; }

/// The sum of numbers of very different sizes does not fit into 113 bits either. What is lost moves it a
/// little, so that it lies on the right side of the f32 numbers beside it.
Quad sum(Quad a, Quad b) {
  const Quad s = a + b, part = s - a, lost = (a - (s - part)) + (b - part);
  if (lost != lost || lost == 0) return s;
  const Quad step = (s < 0 ? -s : s) * 0x1p-112;
  return lost > 0 ? s + step : s - step;
}

/// Zeros, subnormal numbers, infinities, NaN, and random numbers of similar exponents, so that sums round.
std::vector<Operands> float_cases() {
  const std::vector<u32> special = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000,
                                    0x80800000, 0x3f800000, 0xbf800000, 0x3f800001, 0x33800000, 0x33800001,
                                    0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345};
  std::vector<Operands> cases;
  for (const u32 a : special)
    for (const u32 b : special) cases.push_back({a, b, special[(a ^ b) % special.size()]});
  u64 state = 1234567;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<u32>(state >> 32);
  };
  for (int i = 0; i < 600; ++i) {
    const auto number = [&] { return (next() & 0x807fffff) | ((112 + next() % 30) << 23); };
    cases.push_back({number(), number(), number()});
  }
  return cases;
}
/// Whether `result` is the exact value rounded in this way (0: nearest, 1: to zero, 2: down, 3: up).
bool is_rounded(Quad exact, float result, int mode) {
  if (exact != exact) return std::isnan(result);
  const float largest = std::numeric_limits<float>::max();
  if (std::isinf(result)) {
    if (exact > largest) return result > 0 && (mode == 3 || mode == 0 || exact == HUGE_VAL);
    return exact < -Quad(largest) && result < 0 && (mode == 2 || mode == 0 || exact == -HUGE_VAL);
  }
  const Quad found = result, above = std::nextafter(result, HUGE_VALF),
             below = std::nextafter(result, -HUGE_VALF);
  if (mode == 1) mode = exact < 0 ? 3 : 2;
  if (mode == 2) return found <= exact && exact < above;
  if (mode == 3) return below < exact && exact <= found;
  const Quad distance = exact > found ? exact - found : found - exact;
  const Quad up = above > exact ? above - exact : exact - above,
             down = exact > below ? exact - below : below - exact;
  return distance <= up && distance <= down;
}
void rounded(const std::string& operation, const std::string& operands,
             const std::function<Quad(Quad, Quad, Quad)>& exact) {
  const std::vector<Operands> cases = float_cases();
  const char* const modes[] = {"rn", "rz", "rm", "rp"};
  for (int mode = 0; mode < 4; ++mode) {
    const std::string code = operation + "." + modes[mode] + ".f32 %wd, " + operands + ";";
    const std::vector<u64> found = evaluate(code, "%wd", cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Quad y = exact(single(cases[i].a), single(cases[i].b), single(cases[i].c));
      const bool right =
          is_rounded(y, single(found[i]), mode) && (!is_nan(found[i]) || found[i] == 0x7fffffff);
      if (right) continue;
      INFO(code << " of " << std::hex << cases[i].a << ", " << cases[i].b << ", " << cases[i].c << " gave "
                << found[i]);
      CHECK(right);
      break;
    }
  }
  SUCCEED();
}
u64 one(const std::string& code, u64 a, u64 b = 0, u64 c = 0, const std::string& result = "%wd") {
  return evaluate(code, result, {{a, b, c}})[0];
}

}  // namespace

TEST_CASE("sums, products, quotients and roots are rounded once, in four ways") {
  rounded("add", "%wa, %wb", [](Quad a, Quad b, Quad) { return sum(a, b); });
  rounded("sub", "%wa, %wb", [](Quad a, Quad b, Quad) { return sum(a, -b); });
  rounded("mul", "%wa, %wb", [](Quad a, Quad b, Quad) { return a * b; });
  rounded("div", "%wa, %wb", [](Quad a, Quad b, Quad) { return a / b; });
  rounded("rcp", "%wa", [](Quad a, Quad, Quad) { return 1 / a; });
  rounded("fma", "%wa, %wb, %wc", [](Quad a, Quad b, Quad c) { return sum(a * b, c); });
  rounded("sqrt", "%wa", [](Quad a, Quad, Quad) { return Quad(std::sqrt(static_cast<long double>(a))); });
}

TEST_CASE("modifiers flush subnormal numbers to zero and saturate") {
  CHECK(one("add.ftz.f32 %wd, %wa, %wb;", 1, 0x3f800000) == 0x3f800000);
  CHECK(one("mul.ftz.f32 %wd, %wa, %wb;", 0x00800000, 0xbf000000) == 0x80000000);
  CHECK(one("mul.f32 %wd, %wa, %wb;", 0x00800000, 0x3f000000) == 0x00400000);
  CHECK(one("add.sat.f32 %wd, %wa, %wb;", bits_of(0.75f), bits_of(0.5f)) == bits_of(1.0f));
  CHECK(one("add.sat.f32 %wd, %wa, %wb;", 0x7fc00000, 0) == 0);
  CHECK(one("fma.rn.ftz.sat.f32 %wd, %wa, %wb, %wc;", bits_of(-2.0f), bits_of(1.0f), bits_of(0.5f)) == 0);
  CHECK(one("setp.gt.ftz.f32 %pd, %wa, 0f00000000;", 1, 0, 0, "%pd") == 0);
  CHECK(one("setp.gt.f32 %pd, %wa, 0f00000000;", 1, 0, 0, "%pd") == 1);
  CHECK(one("fma.rp.f64 %ld, %la, %lb, %lc;", bits_of(1.0), bits_of(1.0), bits_of(0x1p-60), "%ld") ==
        bits_of(1 + 0x1p-52));
  CHECK(one("sub.rz.f64 %ld, %la, %lb;", bits_of(1.0), bits_of(0x1p-60), 0, "%ld") == bits_of(1 - 0x1p-53));
}

TEST_CASE("extremes and comparisons treat NaN and zeros as the manual says") {
  const u64 nan = 0x7fc00000, one_bits = bits_of(1.0f), minus_zero = 0x80000000;
  CHECK(one("min.f32 %wd, %wa, %wb;", nan, one_bits) == one_bits);
  CHECK(one("max.f32 %wd, %wa, %wb;", one_bits, nan) == one_bits);
  CHECK(one("max.f32 %wd, %wa, %wb;", nan, nan) == 0x7fffffff);
  CHECK(one("max.NaN.f32 %wd, %wa, %wb;", one_bits, nan) == 0x7fffffff);
  for (const auto& [a, b] : {std::pair{minus_zero, u64{0}}, std::pair{u64{0}, minus_zero}}) {
    CHECK(one("min.f32 %wd, %wa, %wb;", a, b) == minus_zero);
    CHECK(one("max.f32 %wd, %wa, %wb;", a, b) == 0);
  }
  const auto is = [&](const std::string& op, u64 a, u64 b) {
    return one("setp." + op + ".f32 %pd, %wa, %wb;", a, b, 0, "%pd");
  };
  for (const char* ordered : {"eq", "ne", "lt", "le", "gt", "ge", "num"})
    CHECK(is(ordered, nan, one_bits) == 0);
  for (const char* unordered : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"})
    CHECK(is(unordered, one_bits, nan) == 1);
  CHECK(is("equ", 0, minus_zero) == 1);
  CHECK(is("neu", 0, minus_zero) == 0);
  CHECK(is("ltu", one_bits, bits_of(2.0f)) == 1);
  CHECK(is("geu", one_bits, bits_of(2.0f)) == 0);
  CHECK(one("copysign.f32 %wd, %wa, %wb;", minus_zero, one_bits) == bits_of(-1.0f));
  CHECK(one("neg.f32 %wd, %wa;", one_bits) == bits_of(-1.0f));
  CHECK(one("testp.subnormal.f32 %pd, %wa;", 1, 0, 0, "%pd") == 1);
}

TEST_CASE("approximate instructions are nearest, or at the edges of their errors") {
  using tapestry::ptx::Approximate;
  // The manual's bounds: units in the last place, relative and absolute errors, some of them by range.
  const auto ulps = [](double n) {
    return [n](double, double y) {
      int exponent = 0;
      std::frexp(y, &exponent);
      return n * std::ldexp(1.0, std::max(exponent, -125) - 24);
    };
  };
  struct Case {
    std::string code;
    double (*exact)(double);
    std::function<double(double, double)> bound;  // of the operand and the result
  };
  const auto circular = [](double x, double) { return std::exp2(std::fabs(x) <= 2 * M_PI ? -20.5 : -14.7); };
  const Case cases[] = {
      {"ex2.approx.f32 %wd, %wa;", [](double x) { return std::exp2(x); },
       ulps(2.5)},  // 2 ulp from the nearest number
      {"lg2.approx.f32 %wd, %wa;", [](double x) { return std::log2(x); },
       [](double x, double y) { return std::ldexp(x > 0.5 && x < 2 ? 1.0 : std::fabs(y), -22); }},
      {"rcp.approx.f32 %wd, %wa;", [](double x) { return 1 / x; }, ulps(1)},
      {"div.full.f32 %wd, 0f40490FDB, %wa;", [](double x) { return static_cast<double>(0x1.921fb6p+1f) / x; },
       ulps(2)},
      {"rsqrt.approx.f32 %wd, %wa;", [](double x) { return 1 / std::sqrt(x); },
       [](double, double y) { return std::exp2(-22.9) * y; }},
      {"sqrt.approx.f32 %wd, %wa;", [](double x) { return std::sqrt(x); },
       [](double, double y) { return std::ldexp(y, -23); }},
      {"tanh.approx.f32 %wd, %wa;", [](double x) { return std::tanh(x); },
       [](double, double y) { return std::ldexp(y, -11); }},
      {"sin.approx.f32 %wd, %wa;", [](double x) { return std::sin(x); }, circular},
      {"cos.approx.f32 %wd, %wa;", [](double x) { return std::cos(x); }, circular}};
  std::vector<Operands> values;
  for (int i = 1; i < 200; ++i) values.push_back({bits_of(0.093f * static_cast<float>(i)), 0, 0});
  for (const Case& c : cases) {
    double error[3] = {0, 0, 0};
    for (const Approximate mode : {Approximate::kNearest, Approximate::kLow, Approximate::kHigh}) {
      tapestry::ptx::Options options;
      options.approximate = mode;
      const auto found = evaluate(c.code, "%wd", values, options);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double x = single(values[i].a), y = c.exact(x), d = single(found[i]) - y, bound = c.bound(x, y);
        if (std::fabs(d) > bound) FAIL(c.code << " of " << x << " is beyond its bound: " << d / bound);
        error[static_cast<int>(mode)] += d / bound / static_cast<double>(values.size());
      }
    }
    INFO(c.code);
    CHECK(std::fabs(error[0]) < 0.1);
    CHECK(error[1] < -0.3);
    CHECK(error[2] > 0.3);
  }
  CHECK(one("ex2.approx.ftz.f32 %wd, %wa;", bits_of(-140.0f)) == 0);
  CHECK(one("rcp.approx.ftz.f32 %wd, %wa;", 0x80000001) == 0xff800000);
  CHECK(one("div.approx.f32 %wd, %wa, %wb;", bits_of(1.0f), bits_of(0x1.8p126f)) == 0);
  CHECK(one("lg2.approx.f32 %wd, %wa;", bits_of(-1.0f)) == 0x7fffffff);
  // The manual's tables of corner cases hold at the edges of the errors too.
  for (const Approximate mode : {Approximate::kNearest, Approximate::kLow, Approximate::kHigh}) {
    tapestry::ptx::Options options;
    options.approximate = mode;
    const auto corner = [&](const std::string& code, u64 a, u64 wanted) {
      INFO(code << " of " << std::hex << a);
      CHECK(evaluate(code + " %wd, %wa;", "%wd", {{a, 0, 0}}, options)[0] == wanted);
    };
    constexpr u64 infinity = 0x7f800000, minus = 0x80000000, one_bits = 0x3f800000;
    for (const u64 zero : {u64{0}, minus}) {
      corner("ex2.approx.f32", zero, one_bits);
      corner("cos.approx.f32", zero, one_bits);
      for (const char* code : {"sin", "tanh", "sqrt"}) corner(std::string(code) + ".approx.f32", zero, zero);
      corner("rsqrt.approx.f32", zero, zero | infinity);
      corner("lg2.approx.f32", zero, minus | infinity);
    }
    for (const u64 sign : {u64{0}, minus}) {
      corner("tanh.approx.f32", sign | infinity, sign | one_bits);
      corner("tanh.approx.f32", sign | 0x00345678, sign | 0x00345678);  // subnormal
      corner("rcp.approx.f32", sign | infinity, sign);
      corner("sin.approx.f32", sign | infinity, 0x7fffffff);
    }
    corner("ex2.approx.f32", infinity, infinity);
    corner("ex2.approx.f32", minus | infinity, 0);
  }
  CHECK(one("rcp.approx.ftz.f64 %ld, %la;", 0xfff8000000000001, 0, 0, "%ld") == 0x7fffffff00000000);
  CHECK(one("rsqrt.approx.ftz.f64 %ld, %la;", 0xbff0000000000000, 0, 0, "%ld") == 0x7fffffff00000000);
  CHECK(one("rcp.approx.ftz.f64 %ld, %la;", 0x8000000000000001, 0, 0, "%ld") == 0xfff0000000000000);
}

TEST_CASE("half and brain numbers are rounded to their nearest neighbours") {
  using namespace tapestry::ptx;
  std::vector<Operands> all;
  for (u32 h = 0; h < 65536; h += 7) all.push_back({h, 0, 0});
  const auto wide = evaluate("cvt.f32.f16 %wd, %ha;", "%wd", all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const u32 h = static_cast<u32>(all[i].a), exponent = (h >> 10) & 31, mantissa = h & 1023;
    // The formula of binary16.
    double x = exponent == 0 ? std::ldexp(mantissa, -24)
                             : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    if (exponent == 31) x = mantissa == 0 ? HUGE_VAL : std::nan("");
    if (h & 0x8000) x = -x;
    if (std::isnan(x) ? wide[i] != 0x7fffffff : wide[i] != bits_of(static_cast<float>(x))) FAIL("f16 " << h);
  }
  std::vector<Operands> cases = float_cases();
  for (u32 i = 0; i < 2000; ++i) cases.push_back({0x33000000 + i * 0x10007, 0, 0});  // 2^-25 and up
  const auto check = [&](const std::string& code, Format format) {
    const auto found = evaluate(code, "%hd", cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double x = single(cases[i].a), y = widen(static_cast<u32>(found[i]), format);
      if (std::isnan(x)) {
        if (found[i] != 0x7fff) FAIL(code << " of NaN");
        continue;
      }
      const u32 infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits,
                magnitude = static_cast<u32>(found[i]) & 0x7fff;
      if (std::isinf(y)) {  // beyond the middle of the largest number and what would follow
        const double largest = widen(infinity - 1, format), step = largest - widen(infinity - 2, format);
        if (std::fabs(x) < largest + step / 2) FAIL(code << " overflows");
        continue;
      }
      // No neighbour is nearer, and of two that are equally near, the even one was taken.
      for (const u32 n : {magnitude + 1, magnitude - 1}) {
        if (n > infinity) continue;
        const double other =
            n == infinity ? widen(infinity - 1, format) * 2 - widen(infinity - 2, format) : widen(n, format);
        const double mine = std::fabs(std::fabs(x) - std::fabs(y)), its = std::fabs(std::fabs(x) - other);
        if (its < mine || (its == mine && (magnitude & 1) != 0))
          FAIL(code << " of " << std::hex << cases[i].a << " is " << found[i]);
      }
    }
  };
  check("cvt.rn.f16.f32 %hd, %wa;", kHalf);
  check("cvt.rn.bf16.f32 %hd, %wa;", kBrain);
  CHECK(one("cvt.rn.f16x2.f32 %wd, %wa, %wb;", bits_of(1.0f), bits_of(-2.0f)) == 0x3c00c000);
  CHECK(one("cvt.rn.bf16x2.f32 %wd, %wa, %wb;", bits_of(1.0f), bits_of(-2.0f)) == 0x3f80c000);
  CHECK(one("cvt.rz.f16.f32 %hd, %wa;", bits_of(1e6f), 0, 0, "%hd") == 0x7bff);
  CHECK(one("cvt.rn.satfinite.f16.f32 %hd, %wa;", bits_of(-1e6f), 0, 0, "%hd") == 0xfbff);
}

TEST_CASE("numbers become integers by rounding and clamping, and NaN becomes what the manual says") {
  const auto to = [](const std::string& types, u64 bits, const std::string& source = "%wa") {
    return one("cvt." + types + " %ld, " + source + ";", bits, 0, 0, "%ld");
  };
  const u64 nan = 0x7fc00000, nan64 = 0x7ff8000000000000;
  CHECK(to("rni.s32.f32", bits_of(2.5f)) == 2);
  CHECK(to("rni.s32.f32", bits_of(-3.5f)) == u64(-4));
  CHECK(to("rzi.s32.f32", bits_of(-2.7f)) == u64(-2));
  CHECK(to("rmi.s32.f32", bits_of(-2.2f)) == u64(-3));
  CHECK(to("rpi.u32.f32", bits_of(2.2f)) == 3);
  CHECK(to("rzi.u32.f32", bits_of(-1.0f)) == 0);
  CHECK(to("rzi.s32.f32", bits_of(3e9f)) == 0x7fffffff);
  CHECK(to("rzi.u32.f32", bits_of(5e9f)) == 0xffffffff);
  CHECK(to("rzi.s64.f32", bits_of(-1e30f)) == 0x8000000000000000);
  CHECK(to("rzi.s32.f32", nan) == 0);
  CHECK(to("rzi.s64.f32", nan) == 0x8000000000000000);
  CHECK(to("rzi.s32.f64", nan64, "%la") == u64(-2147483648ll));
  CHECK(one("cvt.rni.f32.f32 %wd, %wa;", bits_of(-0.4f)) == 0x80000000);
  CHECK(one("cvt.rpi.f64.f64 %ld, %la;", bits_of(1.25), 0, 0, "%ld") == bits_of(2.0));
  CHECK(one("cvt.sat.f32.f32 %wd, %wa;", nan) == 0);
  CHECK(one("cvt.rn.f32.s32 %wd, %wa;", 16777217) == bits_of(16777216.0f));
  CHECK(one("cvt.rp.f32.s32 %wd, %wa;", 16777217) == bits_of(16777218.0f));
  CHECK(one("cvt.rn.f32.s64 %wd, %la;", 0x4000004000000001) ==
        bits_of(0x1.000002p62f));  // to f64 first would give 0x1p62
  CHECK(one("cvt.rn.f64.u64 %ld, %la;", ~u64{0}, 0, 0, "%ld") == bits_of(0x1p64));
  CHECK(one("cvt.rz.f64.u64 %ld, %la;", ~u64{0}, 0, 0, "%ld") == bits_of(0x1.fffffffffffffp63));
  CHECK(one("cvt.rn.f32.f64 %wd, %la;", bits_of(1 + 0x1.8p-24), 0, 0) == bits_of(1 + 0x1p-23f));
  CHECK(one("cvt.rm.f32.f64 %wd, %la;", bits_of(1 + 0x1.8p-24), 0, 0) == bits_of(1.0f));
  CHECK(one("cvt.f64.f32 %ld, %wa;", 1, 0, 0, "%ld") == bits_of(0x1p-149));
}
