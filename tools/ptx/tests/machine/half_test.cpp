// Arithmetic and comparisons in f16 and bf16, and the rarer integer instructions, against references written
// from the PTX manual. Exact results come from __float128; a number is decoded by its definition.
#include <bit>
#include <cmath>
#include <functional>

#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/machine/evaluate.h"

using namespace ptx_machine;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
__extension__ typedef __float128 Quad;

namespace {

struct Small {
  bool brain;
  int mantissa() const { return brain ? 7 : 10; }
  u16 infinity() const { return brain ? 0x7f80 : 0x7c00; }
  bool is_nan(u64 bits) const { return (bits & 0x7fff) > infinity(); }
  bool is_tiny(u64 bits) const { return (bits & infinity()) == 0; }
  Quad value(u64 bits) const {
    if (is_nan(bits)) return static_cast<Quad>(std::nan(""));
    const int exponent = static_cast<int>((bits & 0x7fff) >> mantissa()), bias = brain ? 127 : 15;
    const double fraction = static_cast<double>(bits & ((1u << mantissa()) - 1)) / (1 << mantissa());
    double x = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    if ((bits & 0x7fff) == infinity()) x = HUGE_VAL;
    return (bits & 0x8000) != 0 ? -static_cast<Quad>(x) : static_cast<Quad>(x);
  }
  /// Whether no other number is nearer, and at a tie the last bit is even. What overflows is half a unit
  /// beyond the largest number.
  bool is_nearest(Quad exact, u64 bits) const {
    if (exact != exact) return bits == 0x7fff;
    if (is_nan(bits)) return false;
    if (exact != 0 && (exact < 0) != ((bits & 0x8000) != 0)) return false;
    const Quad y = exact < 0 ? -exact : exact;
    const u64 magnitude = bits & 0x7fff;
    // Infinity stands where the next power of two would be.
    const auto at = [&](u64 m) {
      return m >= infinity() ? 2 * value(static_cast<u16>(infinity() - (1 << mantissa()))) : value(m);
    };
    if (magnitude < infinity()) {
      const Quad middle = (at(magnitude) + at(magnitude + 1)) / 2;
      if (y > middle || (y == middle && (magnitude & 1) != 0)) return false;
    }
    if (magnitude == 0) return true;
    const Quad middle = (at(magnitude) + at(magnitude - 1)) / 2;
    return y > middle || (y == middle && (magnitude & 1) == 0);
  }
};
/// The sum of numbers of very different sizes does not fit into 113 bits; what is lost moves it a little.
Quad sum(Quad a, Quad b) {
  const Quad s = a + b, part = s - a, lost = (a - (s - part)) + (b - part);
  if (lost != lost || lost == 0) return s;
  const Quad step = (s < 0 ? -s : s) * 0x1p-112;
  return lost > 0 ? s + step : s - step;
}
std::vector<Operands> cases() {
  const u16 special[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x3c01,
                         0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe00, 0x3f80, 0xbf80, 0x3f81,
                         0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1, 0x0080, 0x007f, 0x1000};
  std::vector<Operands> list;
  u64 state = 88172645463325252u;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<u16>(state >> 20);
  };
  for (const u16 a : special)
    for (const u16 b : special) list.push_back({a, b, special[next() % std::size(special)]});
  for (int i = 0; i < 1500; ++i) {
    const u16 a = next(), b = next();
    // Addends near the product's size, and far below it: ties with a little more.
    list.push_back({a, b, i % 3 == 0 ? next() : static_cast<u16>((a & 0x8000) | (next() & 0x0fff))});
  }
  return list;
}
void nearest(const std::string& code, bool brain, const std::function<Quad(Quad, Quad, Quad)>& exact) {
  const Small f{brain};
  const std::vector<Operands> list = cases();
  const std::string type = brain ? "bf16" : "f16";
  const std::string operands = code.starts_with("fma") ? "%ha, %hb, %hc;" : "%ha, %hb;";
  const std::vector<u64> found = evaluate(code + "." + type + " %hd, " + operands, "%hd", list);
  int wrong = 0;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (!f.is_nearest(exact(f.value(list[i].a), f.value(list[i].b), f.value(list[i].c)), found[i]) &&
        ++wrong < 5)
      UNSCOPED_INFO(code << " of " << std::hex << list[i].a << ", " << list[i].b << ", " << list[i].c
                         << " is " << found[i]);
  INFO(code << "." << type);
  CHECK(wrong == 0);
  // The same in both halves of a pair.
  std::vector<Operands> pairs;
  for (std::size_t i = 0; i + 1 < list.size(); i += 2)
    pairs.push_back(
        {list[i].a | list[i + 1].a << 16, list[i].b | list[i + 1].b << 16, list[i].c | list[i + 1].c << 16});
  const std::vector<u64> both =
      evaluate(code + "." + type + "x2 %wd, " + (code.starts_with("fma") ? "%wa, %wb, %wc;" : "%wa, %wb;"),
               "%wd", pairs);
  for (std::size_t i = 0; i < pairs.size(); ++i) wrong += both[i] != (found[2 * i] | found[2 * i + 1] << 16);
  CHECK(wrong == 0);
}

/// Compares with a function of the operands' bits.
void same(const std::string& code, const std::string& result, const std::vector<Operands>& list,
          const std::function<u64(u64, u64, u64)>& reference) {
  const std::vector<u64> found = evaluate(code, result, list);
  int wrong = 0;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (found[i] != reference(list[i].a, list[i].b, list[i].c) && ++wrong < 4)
      UNSCOPED_INFO(std::hex << list[i].a << ", " << list[i].b << ", " << list[i].c << " gives " << found[i]
                             << ", not " << reference(list[i].a, list[i].b, list[i].c));
  INFO(code);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("f16 and bf16 are rounded once") {
  for (const bool brain : {false, true}) {
    nearest("add", brain, [](Quad a, Quad b, Quad) { return sum(a, b); });
    nearest("add.rn", brain, [](Quad a, Quad b, Quad) { return sum(a, b); });
    nearest("sub", brain, [](Quad a, Quad b, Quad) { return sum(a, -b); });
    nearest("mul", brain, [](Quad a, Quad b, Quad) { return a * b; });
    nearest("fma.rn", brain, [](Quad a, Quad b, Quad c) { return sum(a * b, c); });
  }
}

TEST_CASE("modifiers of f16 and bf16") {
  const std::vector<Operands> list = cases();
  const Small half{false}, brain{true};
  const auto flush = [&](u64 a) { return half.is_tiny(a) ? a & 0x8000 : a & 0xffff; };
  // add.ftz is add of flushed operands, flushed; .sat clamps to [0, 1] and NaN to 0; .relu clamps below and
  // keeps NaN.
  std::vector<Operands> flushed = list;
  for (Operands& o : flushed) o = {flush(o.a), flush(o.b), flush(o.c)};
  const std::vector<u64> plain = evaluate("add.f16 %hd, %ha, %hb;", "%hd", flushed),
                         ftz = evaluate("add.ftz.f16 %hd, %ha, %hb;", "%hd", list),
                         fma = evaluate("fma.rn.f16 %hd, %ha, %hb, %hc;", "%hd", list),
                         sat = evaluate("fma.rn.sat.f16 %hd, %ha, %hb, %hc;", "%hd", list),
                         relu = evaluate("fma.rn.relu.f16 %hd, %ha, %hb, %hc;", "%hd", list);
  int wrong = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    wrong += ftz[i] != flush(plain[i]);
    const bool nan = half.is_nan(fma[i]), negative = (fma[i] & 0x8000) != 0;
    wrong += sat[i] != (nan || negative ? 0 : std::min<u64>(fma[i], 0x3c00));
    wrong += relu[i] != (nan ? 0x7fff : negative ? 0 : fma[i]);
  }
  CHECK(wrong == 0);
  for (const bool b : {false, true}) {
    const Small f{b};
    const std::string type = b ? "bf16" : "f16";
    const auto extreme = [&](u64 x, u64 y, bool maximum, bool nan) -> u64 {
      if (f.is_nan(x) || f.is_nan(y))
        return nan || (f.is_nan(x) && f.is_nan(y)) ? 0x7fff : f.is_nan(x) ? y : x;
      // Order by sign and magnitude: -0 is below +0.
      const auto key = [](u64 v) {
        return (v & 0x8000) != 0 ? -static_cast<int>(v & 0x7fff) - 1 : static_cast<int>(v);
      };
      return (key(x) < key(y)) != maximum ? x : y;
    };
    const auto low = [](u64 v) { return v & 0xffff; };
    for (const bool maximum : {false, true}) {
      const std::string name = maximum ? "max" : "min";
      same(name + "." + type + " %hd, %ha, %hb;", "%hd", list,
           [&](u64 x, u64 y, u64) { return extreme(low(x), low(y), maximum, false); });
      same(name + ".NaN." + type + " %hd, %ha, %hb;", "%hd", list,
           [&](u64 x, u64 y, u64) { return extreme(low(x), low(y), maximum, true); });
      same(name + ".xorsign.abs." + type + " %hd, %ha, %hb;", "%hd", list, [&](u64 x, u64 y, u64) {
        const u64 r = extreme(x & 0x7fff, y & 0x7fff, maximum, false);
        return f.is_nan(r) ? u64{0x7fff} : r | ((x ^ y) & 0x8000);
      });
    }
    same("neg." + type + " %hd, %ha;", "%hd", list, [](u64 x, u64, u64) { return (x ^ 0x8000) & 0xffff; });
    same("abs." + type + "x2 %wd, %wa;", "%wd", list, [](u64 x, u64, u64) { return x & 0x7fff7fff; });
    // Comparisons: q is the complement. In pairs, q is the comparison of the upper halves.
    same("setp.ltu." + type + " %pd|%pe, %ha, %hb;", "%pd", list,
         [&](u64 x, u64 y, u64) { return !(f.value(low(x)) >= f.value(low(y))); });
    same("setp.ne." + type + " %pe|%pd, %ha, %hb;", "%pd", list, [&](u64 x, u64 y, u64) {
      const Quad p = f.value(low(x)), q = f.value(low(y));
      return !(p < q || p > q);
    });
    same("setp.ge." + type + "x2 %pe|%pd, %wa, %wb;", "%pd", list,
         [&](u64, u64, u64) { return 1; });  // 0 >= 0
    const u64 one = b ? 0x3f80 : 0x3c00;
    same("set.le." + type + "." + type + " %hd, %ha, %hb;", "%hd", list,
         [&](u64 x, u64 y, u64) { return f.value(low(x)) <= f.value(low(y)) ? one : 0; });
    same("set.neu.u32." + type + " %wd, %ha, %hb;", "%wd", list,
         [&](u64 x, u64 y, u64) { return f.value(low(x)) == f.value(low(y)) ? 0 : 0xffffffffu; });
    same("set.gt." + type + "x2." + type + "x2 %wd, %wa, %wb;", "%wd", list,
         [&](u64 x, u64 y, u64) { return f.value(low(x)) > f.value(low(y)) ? one : 0; });
  }
  tapestry::ptx::Options options;
  for (const auto mode : {tapestry::ptx::Approximate::kNearest, tapestry::ptx::Approximate::kLow,
                          tapestry::ptx::Approximate::kHigh}) {
    options.approximate = mode;
    const std::vector<u64> powers = evaluate("ex2.approx.f16 %hd, %ha;", "%hd", list, options),
                           tanhs = evaluate("tanh.approx.bf16 %hd, %ha;", "%hd", list, options);
    wrong = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto x = static_cast<double>(half.value(list[i].a)),
                 y = static_cast<double>(half.value(powers[i]));
      const double exact = std::exp2(x);
      if (std::isfinite(exact) && exact > 6.2e-5 && exact < 65000)
        wrong += std::fabs(y - exact) > exact * 1.0471285e-3;  // 2^-9.9
      const auto z = static_cast<double>(brain.value(list[i].a)),
                 t = static_cast<double>(brain.value(tanhs[i]));
      if (z == z) wrong += std::fabs(t - std::tanh(z)) > 0x1p-8;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rarer integer instructions follow the manual") {
  const std::vector<Operands> list = integer_cases();
  const auto s24 = [](u64 x) { return static_cast<i64>(static_cast<i32>(static_cast<u32>(x) << 8) >> 8); };
  const auto word = [](auto x) { return static_cast<u64>(static_cast<u32>(x)); };
  same("mul24.lo.u32 %wd, %wa, %wb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return word((a & 0xffffff) * (b & 0xffffff)); });
  same("mul24.hi.u32 %wd, %wa, %wb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return word((a & 0xffffff) * (b & 0xffffff) >> 16); });
  same("mul24.hi.s32 %wd, %wa, %wb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return word(s24(a) * s24(b) >> 16); });
  same("mad24.lo.s32 %wd, %wa, %wb, %wc;", "%wd", list,
       [&](u64 a, u64 b, u64 c) { return word(s24(a) * s24(b) + static_cast<i64>(c)); });
  const auto clamp = [&](i64 x) { return word(std::min<i64>(std::max<i64>(x, INT32_MIN), INT32_MAX)); };
  const auto s = [](u64 x) { return static_cast<i64>(static_cast<i32>(x)); };
  same("mad24.hi.sat.s32 %wd, %wa, %wb, %wc;", "%wd", list,
       [&](u64 a, u64 b, u64 c) { return clamp(s(word(s24(a) * s24(b) >> 16)) + s(c)); });
  same("mad.hi.sat.s32 %wd, %wa, %wb, %wc;", "%wd", list,
       [&](u64 a, u64 b, u64 c) { return clamp((s(a) * s(b) >> 32) + s(c)); });
  same("add.cc.u32 %we, %wa, %wb; madc.hi.s32 %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    return word((s(a) * s(b) >> 32) + s(c) + static_cast<i64>((word(a) + word(b)) >> 32));
  });
  const auto byte = [](u64 x, int i, bool is_signed) {
    const auto v = static_cast<i64>((x >> (8 * i)) & 255);
    return is_signed && v > 127 ? v - 256 : v;
  };
  for (const bool sa : {false, true})
    for (const bool sb : {false, true}) {
      const std::string types = std::string(sa ? ".s32" : ".u32") + (sb ? ".s32" : ".u32");
      same("dp4a" + types + " %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
        i64 d = static_cast<i64>(word(c));
        for (int i = 0; i < 4; ++i) d += byte(a, i, sa) * byte(b, i, sb);
        return word(d);
      });
      for (const bool high : {false, true})
        same(std::string("dp2a.") + (high ? "hi" : "lo") + types + " %wd, %wa, %wb, %wc;", "%wd", list,
             [&](u64 a, u64 b, u64 c) {
               i64 d = static_cast<i64>(word(c));
               for (int i = 0; i < 2; ++i) {
                 const i64 x = byte(a, 2 * i, false) + 256 * byte(a, 2 * i + 1, sa);
                 d += x * byte(b, i + (high ? 2 : 0), sb);
               }
               return word(d);
             });
    }
  same("slct.b32.s32 %wd, %wa, %wb, %wc;", "%wd", list,
       [&](u64 a, u64 b, u64 c) { return word(s(c) >= 0 ? a : b); });
  same("slct.b64.f32 %ld, %la, %lb, %wc;", "%ld", list,
       [&](u64 a, u64 b, u64 c) { return std::bit_cast<float>(static_cast<u32>(c)) >= 0 ? a : b; });
  same("and.b32 %we, %wc, 255; sub.u32 %we, %we, 100; and.b32 %wb, %wb, 31; fns.b32 %wd, %wa, %wb, %we;",
       "%wd", list, [&](u64 a, u64 b, u64 c) {
         const auto mask = static_cast<u32>(a);
         const i64 base = static_cast<i64>(b & 31), offset = static_cast<i64>(c & 255) - 100;
         if (offset == 0) return (mask >> base & 1) != 0 ? static_cast<u64>(base) : u64{0xffffffff};
         i64 position = base, count = std::abs(offset) - 1;
         const i64 step = offset > 0 ? 1 : -1;
         while (position >= 0 && position < 32) {
           if ((mask >> position & 1) != 0) {
             if (count == 0) return static_cast<u64>(position);
             --count;
           }
           position += step;
         }
         return u64{0xffffffff};
       });
  same("szext.clamp.s32 %wd, %wa, %wb;", "%wd", list, [&](u64 a, u64 b, u64) {
    const u64 n = word(b);
    if (n == 0) return u64{0};
    if (n > 31) return word(a);
    const u64 sign = a >> (n - 1) & 1, low = a & ((u64{1} << n) - 1);
    return word(sign != 0 ? low | ~((u64{1} << n) - 1) : low);
  });
  same("szext.wrap.u32 %wd, %wa, %wb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return word(a & ((u64{1} << (b & 31)) - 1)); });
  same("bmsk.clamp.b32 %wd, %wa, %wb;", "%wd", list, [&](u64 a, u64 b, u64) {
    u32 mask = 0;
    for (u64 i = 0; i < 32; ++i) mask |= static_cast<u32>(i >= word(a) && i - word(a) < word(b)) << i;
    return word(mask);
  });
  const auto pick = [](u64 a, u64 b, std::vector<int> bytes) {
    u64 d = 0;
    for (int i = 0; i < 4; ++i) {
      const int n = bytes[static_cast<std::size_t>(i)] & 7;
      d |= (((n < 4 ? a : b) >> (8 * (n & 3))) & 255) << (8 * i);
    }
    return d;
  };
  same("prmt.b32.f4e %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    const int n = static_cast<int>(c & 3);
    return pick(a, b, {n, n + 1, n + 2, n + 3});
  });
  same("prmt.b32.b4e %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    const int n = static_cast<int>(c & 3);
    return pick(a, b, {n, n + 7, n + 6, n + 5});
  });
  same("prmt.b32.ecl %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    const int n = static_cast<int>(c & 3);
    return pick(a, b, {std::max(0, n), std::max(1, n), std::max(2, n), 3});
  });
  same("prmt.b32.ecr %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    const int n = static_cast<int>(c & 3);
    return pick(a, b, {0, std::min(1, n), std::min(2, n), std::min(3, n)});
  });
  same("prmt.b32.rc16 %wd, %wa, %wb, %wc;", "%wd", list, [&](u64 a, u64 b, u64 c) {
    const int n = c & 1 ? 2 : 0;
    return pick(a, b, {n, n + 1, n, n + 1});
  });
  same("setp.ne.u32 %pe, %wc, 0; lop3.or.b32 %we|%pd, %wa, %wb, %wc, 0x80, %pe;", "%pd", list,
       [&](u64 a, u64 b, u64 c) { return word(a & b & c) != 0 || word(c) != 0; });
  same("max.relu.s16x2 %wd, %wa, %wb;", "%wd", list, [&](u64 a, u64 b, u64) {
    u64 d = 0;
    for (int i = 0; i < 32; i += 16) {
      const i64 x = static_cast<std::int16_t>(a >> i), y = static_cast<std::int16_t>(b >> i);
      d |= (static_cast<u64>(std::max({x, y, i64{0}})) & 0xffff) << i;
    }
    return d;
  });
  same("set.lo.u32.u64 %wd, %la, %lb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return a < b ? 0xffffffffu : 0; });
  same("set.lt.f32.s32 %wd, %wa, %wb;", "%wd", list,
       [&](u64 a, u64 b, u64) { return s(a) < s(b) ? 0x3f800000 : 0; });
}

TEST_CASE("conversions to tf32 and to 8 bits") {
  std::vector<Operands> list = integer_cases();
  for (u32 i = 0; i < 300; ++i)  // numbers around all those of 8 bits
    list.push_back({std::bit_cast<u32>(std::ldexp(static_cast<float>(static_cast<int>(i) - 150) * 0.37f,
                                                  static_cast<int>(i % 20) - 8)),
                    0, 0});
  const auto finite = [](u64 a) { return (a & 0x7f800000) != 0x7f800000; };
  same("cvt.rna.tf32.f32 %wd, %wa;", "%wd", list, [&](u64 a, u64, u64) -> u64 {
    a &= 0xffffffff;
    if (!finite(a)) return (a & 0x7fffff) != 0 ? 0x7fffffff : a;
    const u64 magnitude = ((a & 0x7fffffff) + 0x1000) / 0x2000 * 0x2000;  // ties go away from zero
    return magnitude | (a & 0x80000000);
  });
  same("cvt.rn.relu.tf32.f32 %wd, %wa;", "%wd", list, [&](u64 a, u64, u64) -> u64 {
    a &= 0xffffffff;
    if (!finite(a)) return (a & 0x7fffff) != 0 ? 0x7fffffff : (a >> 31) != 0 ? 0 : a;
    u64 units = a / 0x2000;
    const u64 rest = a % 0x2000;
    if (rest > 0x1000 || (rest == 0x1000 && units % 2 != 0)) ++units;
    return (a >> 31) != 0 ? 0 : units * 0x2000;
  });
  // The nearest of all 128 magnitudes; at a tie the even one; the largest number stands for all beyond it.
  for (const bool e4m3 : {true, false}) {
    const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, last = e4m3 ? 0x7e : 0x7b;
    const auto value = [&](int code) {
      const int exponent = code >> mantissa;
      const double fraction = static_cast<double>(code & ((1 << mantissa) - 1)) / (1 << mantissa);
      return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    };
    const auto nearest_code = [&](u64 bits) -> u64 {
      const double x = std::bit_cast<float>(static_cast<u32>(bits));
      if (x != x) return 0x7f;
      const double y = std::min(std::fabs(x), 2 * value(last));
      int best = 0;
      for (int code = 1; code <= last; ++code) {
        const double d = std::fabs(y - value(code)), e = std::fabs(y - value(best));
        if (d < e || (d == e && code % 2 == 0)) best = code;
      }
      return static_cast<u64>(best) | (std::signbit(x) ? 0x80 : 0);
    };
    const std::string type = e4m3 ? "e4m3x2" : "e5m2x2";
    same("cvt.rn.satfinite." + type + ".f32 %hd, %wa, %wb;", "%hd", list,
         [&](u64 a, u64 b, u64) { return nearest_code(a) << 8 | nearest_code(b); });
    same("cvt.rn.f16x2." + type + " %wd, %ha;", "%wd", list, [&](u64 a, u64, u64) {
      u64 d = 0;
      for (int i = 0; i < 2; ++i) {
        const int code = static_cast<int>(a >> (8 * i)) & 0x7f;
        const Small f{false};
        u64 half = 0x7fff;
        if (e4m3 ? code != 0x7f : code < 0x7c)
          for (half = 0; f.value(half) != static_cast<Quad>(value(code));) ++half;
        else if (!e4m3 && code == 0x7c) half = 0x7c00;
        if (half != 0x7fff && ((a >> (8 * i)) & 0x80) != 0) half |= 0x8000;
        d |= half << (16 * i);
      }
      return d;
    });
  }
}
