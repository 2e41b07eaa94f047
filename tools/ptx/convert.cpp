// cvt: between all pairs of types, with rounding and saturation.
#include <algorithm>
#include <limits>

#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

enum TypeNumber : u32 { kU8, kS8, kU16, kS16, kU32, kS32, kU64, kS64, kF16, kBf16, kF32, kF64 };
constexpr std::string_view kNames[] = {"u8",  "s8",  "u16", "s16",  "u32", "s32",
                                       "u64", "s64", "f16", "bf16", "f32", "f64"};
enum Flag : u32 {  // bits 0-3 are the destination's type, 4-7 the source's, 8-9 the rounding
  kToInteger = 1 << 10,
  kSaturate = 1 << 11,
  kFlush = 1 << 12,
  kRelu = 1 << 13,
  kFinite = 1 << 14,
};
bool is_float(u32 type) { return type >= kF16; }
bool is_signed(u32 type) { return !is_float(type) && (type & 1) != 0; }
u32 bytes_of(u32 type) { return type < kF16 ? 1u << (type / 2) : type == kF64 ? 8 : type == kF32 ? 4 : 2; }

double decode_number(u64 bits, u32 type) {
  switch (type) {
    case kF16:
      return widen(static_cast<u32>(bits & 0xffff), kHalf);
    case kBf16:
      return widen(static_cast<u32>(bits & 0xffff), kBrain);
    case kF32:
      return static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits)));
    default:
      return std::bit_cast<double>(bits);
  }
}
u64 encode_number(double x, u32 type, u32 flags, Rounding rounding) {
  if ((flags & kRelu) != 0 && x < 0) x = 0;
  if ((flags & kSaturate) != 0) x = saturate(x);
  u32 bits = 0;
  const Format format = type == kF16 ? kHalf : type == kBf16 ? kBrain : kSingle;
  if (type == kF64) return std::bit_cast<u64>(x);
  if (type == kF32 && rounding == kNearestEven) bits = std::bit_cast<u32>(canonical(static_cast<float>(x)));
  else bits = narrow(x, format, rounding);
  if (type == kF32 && (flags & kFlush) != 0) bits = std::bit_cast<u32>(flush(std::bit_cast<float>(bits)));
  if ((flags & kFinite) != 0) {
    const u32 infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    if ((bits & infinity) == infinity && x == x) --bits;
  }
  return bits;
}
// A number of 64 bits as a double whose last bit is set if bits were lost: rounding it again gives what
// rounding once gives.
double to_odd(u64 magnitude) {
  const int lost = 64 - std::countl_zero(magnitude | 1) - 53;
  if (lost <= 0) return static_cast<double>(magnitude);
  const u64 kept = magnitude >> lost, sticky = (magnitude & ((u64{1} << lost) - 1)) != 0;
  return std::ldexp(static_cast<double>(kept | sticky), lost);
}
double integer_to_double(bool negative, u64 magnitude, Rounding rounding) {
  auto x = static_cast<double>(magnitude);
  const auto exact = static_cast<u128>(magnitude), rounded = static_cast<u128>(x);
  const bool away = rounding == kUp ? !negative : negative;
  if (rounding != kNearestEven) {
    if (rounded > exact && (rounding == kToZero || !away)) x = std::nextafter(x, 0.0);
    if (rounded < exact && rounding != kToZero && away) x = std::nextafter(x, HUGE_VAL);
  }
  return negative ? -x : x;
}

u64 to_integer(double x, u32 to, u32 from, Rounding rounding) {
  const int bits = static_cast<int>(8 * bytes_of(to));
  if (x != x) {
    const u64 half = u64{1} << (bits - 1);
    return from != kF64 && bits < 64 ? 0 : is_signed(to) ? u64{0} - half : half;
  }
  x = rounding == kNearestEven ? std::nearbyint(x)
      : rounding == kToZero    ? std::trunc(x)
      : rounding == kDown      ? std::floor(x)
                               : std::ceil(x);
  // Numbers outside of the destination's range become its ends, with and without .sat.
  if (is_signed(to)) {
    const double limit = std::ldexp(1.0, bits - 1);
    if (x >= limit) return (u64{1} << (bits - 1)) - 1;
    if (x < -limit) return u64{0} - (u64{1} << (bits - 1));
    return static_cast<u64>(static_cast<i64>(x));
  }
  if (x >= std::ldexp(1.0, bits)) return bits == 64 ? ~u64{0} : (u64{1} << bits) - 1;
  return x <= 0 ? 0 : static_cast<u64>(x);
}
u64 saturate_integer(u64 value, u32 to, u32 from) {
  const int bits = static_cast<int>(8 * bytes_of(to));
  const bool negative = is_signed(from) && static_cast<i64>(value) < 0;
  const u64 largest = is_signed(to) ? (u64{1} << (bits - 1)) - 1
                      : bits == 64  ? ~u64{0}
                                    : (u64{1} << bits) - 1;
  if (negative) {
    if (!is_signed(to)) return 0;
    const i64 smallest = -static_cast<i64>(largest) - 1;
    return static_cast<u64>(std::max(static_cast<i64>(value), smallest));
  }
  return std::min(value, largest);
}

// The low bytes of a register of any width, extended.
u64 extend(u64 bits, u32 type) {
  const int drop = static_cast<int>(64 - 8 * bytes_of(type));
  return is_signed(type) ? static_cast<u64>(static_cast<i64>(bits << drop) >> drop) : (bits << drop) >> drop;
}
void read_row(Warp& w, const Ref& r, u64 (&to)[32]) {
  if (r.width == 2) std::copy_n(w.row<const u16>(r), 32, to);
  else if (r.width == 4) std::copy_n(w.row<const u32>(r), 32, to);
  else std::copy_n(w.row<const u64>(r), 32, to);
}
template <class T>
void write_as(Warp& w, const Ref& r, const u64 (&from)[32], u32 mask) {
  T values[32];
  for (int lane = 0; lane < 32; ++lane) values[lane] = static_cast<T>(from[lane]);
  w.write(r, values, mask);
}
void write_row(Warp& w, const Ref& r, const u64 (&from)[32], u32 mask) {
  if (r.width == 2) write_as<u16>(w, r, from, mask);
  else if (r.width == 4) write_as<u32>(w, r, from, mask);
  else write_as<u64>(w, r, from, mask);
}

// Integers without saturation: the loops are vectorised.
void run_extend(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 to = c.flags & 15, from = (c.flags >> 4) & 15;
  u64 values[32];
  read_row(w, o[1], values);
  const auto apply = [&](u32 type) {
    const int drop = static_cast<int>(64 - 8 * bytes_of(type));
    if (drop == 0) return;
    if (is_signed(type))
      for (u64& v : values) v = static_cast<u64>(static_cast<i64>(v << drop) >> drop);
    else
      for (u64& v : values) v = (v << drop) >> drop;
  };
  apply(from);
  apply(to);  // the destination's register may be wider than its type
  write_row(w, o[0], values, mask);
}
void run_convert(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 to = c.flags & 15, from = (c.flags >> 4) & 15;
  const auto rounding = static_cast<Rounding>((c.flags >> 8) & 3);
  u64 values[32], results[32] = {};
  read_row(w, o[1], values);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (is_float(from)) {
      double x = decode_number(values[lane], from);
      if (from == kF32 && (c.flags & kFlush) != 0) x = static_cast<double>(flush(static_cast<float>(x)));
      if (!is_float(to)) {
        results[lane] = to_integer(x, to, from, rounding);
        continue;
      }
      const bool round = (c.flags & kToInteger) != 0;
      if (round)
        x = rounding == kNearestEven ? std::nearbyint(x)
            : rounding == kToZero    ? std::trunc(x)
            : rounding == kDown      ? std::floor(x)
                                     : std::ceil(x);
      results[lane] = encode_number(x, to, c.flags, round ? kNearestEven : rounding);
    } else {
      const u64 value = extend(values[lane], from);
      if (!is_float(to)) {
        results[lane] = extend(saturate_integer(value, to, from), to);
        continue;
      }
      const bool negative = is_signed(from) && static_cast<i64>(value) < 0;
      const u64 magnitude = negative ? u64{0} - value : value;
      const double x = to == kF64 ? integer_to_double(negative, magnitude, rounding)
                       : negative ? -to_odd(magnitude)
                                  : to_odd(magnitude);
      results[lane] = encode_number(x, to, c.flags, rounding);
    }
  }
  write_row(w, o[0], results, mask);
}
// cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half.
void run_pair(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 to = c.flags & 15;
  const auto rounding = static_cast<Rounding>((c.flags >> 8) & 3);
  const float *const a = w.row<const float>(o[1]), *const b = w.row<const float>(o[2]);
  u32 values[32] = {};
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    values[lane] = static_cast<u32>(encode_number(static_cast<double>(a[lane]), to, c.flags, rounding) << 16 |
                                    encode_number(static_cast<double>(b[lane]), to, c.flags, rounding));
  }
  w.write(o[0], values, mask);
}
struct HalfToSingle {
  float operator()(u16 h) const {
    // The exponent is moved by 112. Subnormal numbers become normal by a subtraction.
    const u32 sign = (h & 0x8000u) << 16, bits = (h & 0x7fffu) << 13, exponent = bits & 0x0f800000u;
    const u32 normal = bits + (112u << 23);
    const float small = std::bit_cast<float>(bits + (113u << 23)) - 0x1p-14f;
    u32 result = exponent == 0 ? std::bit_cast<u32>(small) : normal;
    if (exponent == 0x0f800000u) result = (bits & 0x007fffffu) != 0 ? kCanonicalNan : 0x7f800000u;
    return std::bit_cast<float>(result == kCanonicalNan ? result : result | sign);
  }
};
struct SingleToBrain {
  u16 operator()(u32 bits) const {
    const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return static_cast<u16>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : rounded);
  }
};

// cvt.rna.tf32.f32 and the like: the 13 low bits become zero.
enum Tf32Flag : u32 { kAway = 1, kToZeroTf32 = 2, kReluTf32 = 4 };
void run_tf32(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32* const a = w.row<const u32>(o[1]);
  u32 values[32];
  for (int lane = 0; lane < 32; ++lane) {
    u32 x = a[lane];
    const bool nan = (x & 0x7fffffff) > 0x7f800000;
    if ((x & 0x7f800000) != 0x7f800000 && (c.flags & kToZeroTf32) == 0)
      x += (c.flags & kAway) != 0 ? 0x1000 : 0xfff + ((x >> 13) & 1);
    x &= 0xffffe000u;
    if ((c.flags & kReluTf32) != 0 && (x >> 31) != 0) x = 0;
    values[lane] = nan ? kCanonicalNan : x;
  }
  w.write(o[0], values, mask);
}
// e4m3 has no infinity and e5m2 is used without: numbers beyond the largest become the largest.
u32 narrow_eight(double x, bool e4m3) {
  const u32 sign = std::signbit(x) ? 0x80 : 0;
  if (x != x) return 0x7f;
  if (!e4m3) return std::min(narrow(std::fabs(x), Format{5, 2}, kNearestEven), 0x7bu) | sign;
  const double y = std::fabs(x);
  if (y < 248) return narrow(y, Format{4, 3}, kNearestEven) | sign;
  return (0x78 + static_cast<u32>(std::min(std::max(std::nearbyint(y / 32), 8.0), 14.0)) - 8) | sign;
}
// Flags: 1 e4m3, 2 relu. The first operand becomes the upper half.
template <bool from_halves>
void run_to_eight(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u16 values[32];
  for (int lane = 0; lane < 32; ++lane) {
    double high, low;
    if (from_halves) {
      high = widen(w.row<const u32>(o[1])[lane] >> 16, kHalf);
      low = widen(w.row<const u32>(o[1])[lane] & 0xffff, kHalf);
    } else {
      high = static_cast<double>(w.row<const float>(o[1])[lane]);
      low = static_cast<double>(w.row<const float>(o[c.count - 1])[lane]);
    }
    if ((c.flags & 2) != 0) {
      if (high < 0) high = 0;
      if (low < 0) low = 0;
    }
    values[lane] = static_cast<u16>(narrow_eight(high, (c.flags & 1) != 0) << 8 | narrow_eight(low, (c.flags & 1) != 0));
  }
  w.write(o[0], values, mask);
}
void run_from_eight(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u16* const a = w.row<const u16>(o[1]);
  u32 values[32] = {};
  for (int lane = 0; lane < 32; ++lane)
    for (u32 half = 0; half < 2; ++half) {
      const u32 byte = (a[lane] >> (8 * half)) & 0xff;
      double x = (c.flags & 1) != 0 ? widen_e4m3(byte) : widen(byte, Format{5, 2});
      if ((c.flags & 2) != 0 && x < 0) x = 0;
      values[lane] |= narrow(x, kHalf, kNearestEven) << (16 * half);
    }
  w.write(o[0], values, mask);
}
bool find_narrow(const Parts& p, Entry& e) {
  const std::string_view to = p[p.size() - 2], from = p.back();
  u32 relu = 0;
  bool nearest = false, away = false, zero = false, finite = false;
  for (std::size_t i = 1; i + 2 < p.size(); ++i) {
    if (p[i] == "relu") relu = 1;
    else if (p[i] == "rn") nearest = true;
    else if (p[i] == "rna") away = true;
    else if (p[i] == "rz") zero = true;
    else if (p[i] == "satfinite") finite = true;
    else return false;
  }
  const bool e4m3 = to == "e4m3x2" || from == "e4m3x2";
  if (to == "tf32" && from == "f32" && nearest + away + zero == 1 && !finite)
    e = {&run_tf32, "w=w", (away ? u32{kAway} : 0) | (zero ? u32{kToZeroTf32} : 0) | (relu != 0 ? u32{kReluTf32} : 0)};
  else if ((to == "e4m3x2" || to == "e5m2x2") && nearest && finite && (from == "f32" || from == "f16x2"))
    e = {from == "f32" ? &run_to_eight<false> : &run_to_eight<true>, from == "f32" ? "h=ww" : "h=w",
         u32{e4m3} | relu << 1};
  else if ((from == "e4m3x2" || from == "e5m2x2") && to == "f16x2" && nearest && !finite)
    e = {&run_from_eight, "w=h", u32{e4m3} | relu << 1};
  else return false;
  return true;
}

bool type_number(std::string_view name, u32& type) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  type = static_cast<u32>(found - std::begin(kNames));
  return found != std::end(kNames);
}

}  // namespace

bool find_convert(const Parts& parts, Entry& entry) {
  if (parts[0] != "cvt" || parts.size() < 3) return false;
  if (find_narrow(parts, entry)) return true;
  u32 flags = 0, to = 0, from = 0;
  bool float_rounding = false;
  static constexpr std::string_view kRoundings[] = {"rn", "rz", "rm", "rp"},
                                    kToIntegers[] = {"rni", "rzi", "rmi", "rpi"};
  for (std::size_t i = 1; i + 2 < parts.size(); ++i) {
    bool known = false;
    for (u32 r = 0; r < 4; ++r) {
      if (parts[i] == kRoundings[r]) float_rounding = true;
      if (parts[i] == kToIntegers[r]) flags |= kToInteger;
      if (parts[i] == kRoundings[r] || parts[i] == kToIntegers[r]) {
        flags |= r << 8;
        known = true;
      }
    }
    const u32 modifier = parts[i] == "sat"         ? kSaturate
                         : parts[i] == "ftz"       ? kFlush
                         : parts[i] == "relu"      ? kRelu
                         : parts[i] == "satfinite" ? kFinite
                                                   : 0u;
    flags |= modifier;
    if (!known && modifier == 0) return false;
  }
  const std::string_view target = parts[parts.size() - 2];
  if (!type_number(parts.back(), from)) return false;
  if ((target == "f16x2" || target == "bf16x2") && from == kF32 && float_rounding) {
    entry = {&run_pair, "w=ww", flags | (target == "f16x2" ? kF16 : kBf16)};
    return true;
  }
  if (!type_number(target, to)) return false;
  // A conversion to a narrower format names its rounding, and one from a float to an integer as well.
  const bool narrows = is_float(to) && (is_float(from) ? bytes_of(to) < bytes_of(from) : true);
  const bool to_integer_type = is_float(from) && !is_float(to);
  if (narrows != float_rounding || (to_integer_type && (flags & kToInteger) == 0)) return false;
  if (!is_float(to) && !is_float(from) && (flags & ~u32{kSaturate}) != 0) return false;
  flags |= to | (from << 4);
  entry = {&run_convert, "x=x", flags};
  if (!is_float(to) && !is_float(from) && (flags & kSaturate) == 0) entry.run = &run_extend;
  if (to == kF32 && from == kF16 && flags == (to | (from << 4)))
    entry = {&run_lanes<HalfToSingle, float, u16>, "w=h", 0};
  if (to == kBf16 && from == kF32 && flags == (to | (from << 4)))
    entry = {&run_lanes<SingleToBrain, u16, u32>, "h=w", 0};
  return true;
}

}  // namespace tapestry::ptx
