// Integer instructions against references written from the text of the PTX manual.
#include <algorithm>
#include <functional>

#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/machine/evaluate.h"

using namespace ptx_machine;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;

namespace {

u32 low(u64 x) { return static_cast<u32>(x); }
i32 sign(u64 x) { return static_cast<i32>(low(x)); }
void compare(const std::string& code, const std::string& result,
             const std::function<u64(const Operands&)>& reference) {
  const std::vector<Operands> cases = integer_cases();
  const std::vector<u64> found = evaluate(code, result, cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const u64 expected = reference(cases[i]);
    if (found[i] == expected) continue;
    INFO(code << " of " << std::hex << cases[i].a << ", " << cases[i].b << ", " << cases[i].c);
    CHECK(found[i] == expected);
    return;
  }
  SUCCEED();
}
void words(const std::string& code, const std::function<u32(u32, u32, u32)>& f) {
  compare(code, "%wd", [&](const Operands& o) { return u64{f(low(o.a), low(o.b), low(o.c))}; });
}
void longs(const std::string& code, const std::function<u64(u64, u64, u64)>& f) {
  compare(code, "%ld", [&](const Operands& o) { return f(o.a, o.b, o.c); });
}
void halves(const std::string& code, const std::function<u16(u16, u16)>& f) {
  compare(code, "%hd",
          [&](const Operands& o) { return u64{f(static_cast<u16>(o.a), static_cast<u16>(o.b))}; });
}

// The loops of the manual for bfe and bfi.
u64 extract(u64 a, u32 position, u32 length, u32 bits, bool is_signed) {
  position &= 0xff;
  length &= 0xff;
  const u32 msb = bits - 1;
  const bool sbit = is_signed && length != 0 && ((a >> std::min(position + length - 1, msb)) & 1) != 0;
  u64 d = 0;
  for (u32 i = 0; i <= msb; ++i)
    d |= u64{i < length && position + i <= msb ? ((a >> (position + i)) & 1) != 0 : sbit} << i;
  return d;
}
u64 insert(u64 a, u64 b, u32 position, u32 length, u32 bits) {
  position &= 0xff;
  length &= 0xff;
  for (u32 i = 0; i < length && position + i < bits; ++i)
    b = (b & ~(u64{1} << (position + i))) | (((a >> i) & 1) << (position + i));
  return b;
}

}  // namespace

TEST_CASE("sums, differences and products wrap") {
  words("add.s32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return a + b; });
  words("sub.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return a - b; });
  longs("add.s64 %ld, %la, %lb;", [](u64 a, u64 b, u64) { return a + b; });
  halves("sub.s16 %hd, %ha, %hb;", [](u16 a, u16 b) { return static_cast<u16>(a - b); });
  halves("mul.lo.s16 %hd, %ha, %hb;", [](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); });
  words("mul.lo.s32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return low(u64{a} * b); });
  words("mad.lo.s32 %wd, %wa, %wb, %wc;", [](u32 a, u32 b, u32 c) { return low(u64{a} * b + c); });
  longs("mul.lo.s64 %ld, %la, %lb;", [](u64 a, u64 b, u64) { return a * b; });
  words("mul.hi.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return low((u64{a} * b) >> 32); });
  words("mul.hi.s32 %wd, %wa, %wb;",
        [](u32 a, u32 b, u32) { return low(static_cast<u64>((i64{sign(a)} * sign(b)) >> 32)); });
  longs("mul.hi.u64 %ld, %la, %lb;",
        [](u64 a, u64 b, u64) { return static_cast<u64>((static_cast<u128>(a) * b) >> 64); });
  longs("mul.hi.s64 %ld, %la, %lb;", [](u64 a, u64 b, u64) {
    return static_cast<u64>((static_cast<i128>(static_cast<i64>(a)) * static_cast<i64>(b)) >> 64);
  });
  longs("mul.wide.u32 %ld, %wa, %wb;", [](u64 a, u64 b, u64) { return u64{low(a)} * low(b); });
  longs("mul.wide.s32 %ld, %wa, %wb;",
        [](u64 a, u64 b, u64) { return static_cast<u64>(i64{sign(a)} * sign(b)); });
  longs("mad.wide.s32 %ld, %wa, %wb, %lc;",
        [](u64 a, u64 b, u64 c) { return static_cast<u64>(i64{sign(a)} * sign(b)) + c; });
  words("mul.wide.u16 %wd, %ha, %hb;",
        [](u32 a, u32 b, u32) { return u32{static_cast<u16>(a)} * static_cast<u16>(b); });
  longs("mad.hi.u64 %ld, %la, %lb, %lc;",
        [](u64 a, u64 b, u64 c) { return static_cast<u64>((static_cast<u128>(a) * b) >> 64) + c; });
  words("add.sat.s32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) {
    return low(static_cast<u64>(std::clamp<i64>(i64{sign(a)} + sign(b), INT32_MIN, INT32_MAX)));
  });
  // A sum of 128 bits, of which the upper half shows the carry.
  longs("add.cc.u64 %ld, %la, %lb; addc.u64 %ld, %la, %lc;",
        [](u64 a, u64 b, u64 c) { return a + c + (a + b < a); });
  longs("sub.cc.u64 %ld, %la, %lb; subc.u64 %ld, %la, %lc;",
        [](u64 a, u64 b, u64 c) { return a - c - (a < b); });
  longs("add.cc.u64 %ld, %la, %lb; addc.cc.u64 %ld, %la, %lc; addc.u64 %ld, 0, 0;",
        [](u64 a, u64 b, u64 c) { return static_cast<u64>((static_cast<u128>(a) + c + (a + b < a)) >> 64); });
  longs("mad.lo.cc.u32 %wd, %wa, %wb, %wc; madc.hi.u32 %we, %wa, %wb, 0; mov.b64 %ld, {%wd, %we};",
        [](u64 a, u64 b, u64 c) { return u64{low(a)} * low(b) + low(c); });
}

TEST_CASE("division by zero and of the smallest number have the results of a GPU") {
  words("div.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return b == 0 ? ~0u : a / b; });
  words("rem.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return b == 0 ? a : a % b; });
  words("div.s32 %wd, %wa, %wb;",
        [](u32 a, u32 b, u32) { return b == 0 ? ~0u : low(static_cast<u64>(i64{sign(a)} / sign(b))); });
  words("rem.s32 %wd, %wa, %wb;",
        [](u32 a, u32 b, u32) { return b == 0 ? a : low(static_cast<u64>(i64{sign(a)} % sign(b))); });
  longs("div.s64 %ld, %la, %lb;", [](u64 a, u64 b, u64) {
    return b == 0 ? ~u64{0} : static_cast<u64>(static_cast<i128>(static_cast<i64>(a)) / static_cast<i64>(b));
  });
  longs("rem.u64 %ld, %la, %lb;", [](u64 a, u64 b, u64) { return b == 0 ? a : a % b; });
}

TEST_CASE("shifts clamp their amount, and fields follow the manual's loops") {
  words("shl.b32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return b > 31 ? 0 : a << b; });
  words("shr.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return b > 31 ? 0 : a >> b; });
  words("shr.s32 %wd, %wa, %wb;",
        [](u32 a, u32 b, u32) { return low(static_cast<u64>(i64{sign(a)} >> std::min(b, 31u))); });
  longs("shr.s64 %ld, %la, %wb;",
        [](u64 a, u64 b, u64) { return static_cast<u64>(static_cast<i64>(a) >> std::min(low(b), 63u)); });
  longs("shl.b64 %ld, %la, %wb;", [](u64 a, u64 b, u64) { return low(b) > 63 ? 0 : a << low(b); });
  compare("shr.u16 %hd, %ha, %wb;", "%hd",
          [](const Operands& o) { return low(o.b) > 15 ? 0 : u64{static_cast<u16>(o.a)} >> low(o.b); });
  words("shf.l.wrap.b32 %wd, %wa, %wb, %wc;",
        [](u32 a, u32 b, u32 c) { return (c & 31) == 0 ? b : (b << (c & 31)) | (a >> (32 - (c & 31))); });
  words("shf.r.clamp.b32 %wd, %wa, %wb, %wc;", [](u32 a, u32 b, u32 c) {
    return c == 0 ? a : c > 31 ? b : (a >> c) | (b << (32 - c));
  });
  words("bfe.u32 %wd, %wa, %wb, %wc;", [](u32 a, u32 b, u32 c) { return low(extract(a, b, c, 32, false)); });
  words("bfe.s32 %wd, %wa, %wb, %wc;", [](u32 a, u32 b, u32 c) { return low(extract(a, b, c, 32, true)); });
  longs("bfe.s64 %ld, %la, %wb, %wc;",
        [](u64 a, u64 b, u64 c) { return extract(a, low(b), low(c), 64, true); });
  words("bfi.b32 %wd, %wa, %wb, %wc, 5;", [](u32 a, u32 b, u32 c) { return low(insert(a, b, c, 5, 32)); });
  longs("bfi.b64 %ld, %la, %lb, 32, 40;", [](u64 a, u64 b, u64) { return insert(a, b, 32, 40, 64); });
  words("prmt.b32 %wd, %wa, %wb, %wc;", [](u32 a, u32 b, u32 c) {
    u32 d = 0;
    for (u32 i = 0; i < 4; ++i) {
      const u32 s = (c >> (4 * i)) & 15, source = (s & 4) != 0 ? b : a;
      const u32 byte = (source >> (8 * (s & 3))) & 255;
      d |= ((s & 8) == 0 ? byte : byte >= 128 ? 255u : 0u) << (8 * i);
    }
    return d;
  });
  words("lop3.b32 %wd, %wa, %wb, %wc, 0x96;", [](u32 a, u32 b, u32 c) { return a ^ b ^ c; });
  words("lop3.b32 %wd, %wa, %wb, %wc, 0xe4;", [](u32 a, u32 b, u32 c) { return (a & c) | (b & ~c); });
  words("popc.b32 %wd, %wa;", [](u32 a, u32, u32) { return static_cast<u32>(__builtin_popcount(a)); });
  compare("clz.b64 %wd, %la;", "%wd",
          [](const Operands& o) { return o.a == 0 ? 64 : u64{static_cast<u32>(__builtin_clzll(o.a))}; });
  words("bfind.s32 %wd, %wa;", [](u32 a, u32, u32) {
    const u32 bits = sign(a) < 0 ? ~a : a;
    return bits == 0 ? ~0u : 31 - static_cast<u32>(__builtin_clz(bits));
  });
  words("brev.b32 %wd, %wa;", [](u32 a, u32, u32) {
    u32 d = 0;
    for (int i = 0; i < 32; ++i) d |= ((a >> i) & 1) << (31 - i);
    return d;
  });
  words("mov.b32 %wd, {%hb, %ha};", [](u32 a, u32 b, u32) { return (b & 0xffff) | (a << 16); });
  compare("{ .reg .b32 %t; mov.b64 {%t, %wd}, %la; }", "%wd", [](const Operands& o) { return o.a >> 32; });
}

TEST_CASE("comparisons, extremes and selections know signs") {
  words("min.s32 %wd, %wa, %wb;",
        [](u32 a, u32 b, u32) { return low(static_cast<u64>(i64{std::min(sign(a), sign(b))})); });
  words("max.u32 %wd, %wa, %wb;", [](u32 a, u32 b, u32) { return std::max(a, b); });
  words("abs.s32 %wd, %wa;", [](u32 a, u32, u32) { return sign(a) < 0 ? 0u - a : a; });
  longs("neg.s64 %ld, %la;", [](u64 a, u64, u64) { return u64{0} - a; });
  const auto predicate = [](const std::string& code, const std::function<bool(u32, u32)>& f) {
    compare(code, "%pd", [&](const Operands& o) { return u64{f(low(o.a), low(o.b))}; });
  };
  predicate("setp.lt.s32 %pd, %wa, %wb;", [](u32 a, u32 b) { return sign(a) < sign(b); });
  predicate("setp.lt.u32 %pd, %wa, %wb;", [](u32 a, u32 b) { return a < b; });
  predicate("setp.hs.u32 %pd, %wa, %wb;", [](u32 a, u32 b) { return a >= b; });
  predicate("setp.ne.b32 %pd|%pe, %wa, %wb; not.pred %pd, %pe;", [](u32 a, u32 b) { return a != b; });
  predicate("setp.gt.s32 %pe, %wa, 5; setp.eq.and.s32 %pd, %wb, 7, !%pe;",
            [](u32 a, u32 b) { return b == 7 && sign(a) <= 5; });
  predicate("setp.gt.s32 %pe, %wa, 5; setp.eq.xor.s32 %pd, %wb, 7, %pe;",
            [](u32 a, u32 b) { return (b == 7) != (sign(a) > 5); });
  predicate("setp.lt.s16 %pd, %ha, %hb;",
            [](u32 a, u32 b) { return static_cast<i16>(a) < static_cast<i16>(b); });
  words("setp.gt.u32 %pd, %wa, %wb; selp.b32 %wd, %wa, %wb, %pd;",
        [](u32 a, u32 b, u32) { return std::max(a, b); });
  words("mov.b32 %wd, 1; setp.gt.u32 %pd, %wa, %wb; @!%pd mov.b32 %wd, 2; ",
        [](u32 a, u32 b, u32) { return a > b ? 1u : 2u; });
}

TEST_CASE("integers are extended, cut and saturated") {
  longs("cvt.s64.s32 %ld, %wa;", [](u64 a, u64, u64) { return static_cast<u64>(i64{sign(a)}); });
  longs("cvt.u64.u32 %ld, %wa;", [](u64 a, u64, u64) { return u64{low(a)}; });
  words("cvt.s32.s8 %wd, %wa;",
        [](u32 a, u32, u32) { return low(static_cast<u64>(i64{static_cast<std::int8_t>(a)})); });
  words("cvt.u32.u16 %wd, %ha;", [](u32 a, u32, u32) { return a & 0xffff; });
  words("cvt.u8.u32 %wd, %wa;", [](u32 a, u32, u32) { return a & 0xff; });
  words("cvt.s8.s32 %wd, %wa;",
        [](u32 a, u32, u32) { return low(static_cast<u64>(i64{static_cast<std::int8_t>(a)})); });
  words("cvt.sat.u8.s32 %wd, %wa;",
        [](u32 a, u32, u32) { return static_cast<u32>(std::clamp(sign(a), 0, 255)); });
  words("cvt.sat.s8.s32 %wd, %wa;",
        [](u32 a, u32, u32) { return low(static_cast<u64>(i64{std::clamp(sign(a), -128, 127)})); });
  words("cvt.sat.s32.u32 %wd, %wa;", [](u32 a, u32, u32) { return std::min(a, 0x7fffffffu); });
  compare("cvt.sat.u32.s64 %wd, %la;", "%wd", [](const Operands& o) {
    return static_cast<u64>(std::clamp<i64>(static_cast<i64>(o.a), 0, 0xffffffff));
  });
}
