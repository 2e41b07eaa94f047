// Arithmetic in f16 and bf16, alone and in pairs, and comparisons (set, setp) of them. Operands are widened
// to f64, in which their products are exact; sums keep a sticky bit, so that rounding to the narrow format is
// the only rounding, as the PTX manual asks for.
#include <algorithm>

#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

// Flags: bits 0-3 the operation, then these.
enum Operation : u32 {
  kAdd,
  kSubtract,
  kMultiply,
  kFma,
  kMinimum,
  kMaximum,
  kNegate,
  kAbsolute,
  kExp2,
  kTanh
};
constexpr std::string_view kNames[] = {"add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh"};
enum Flag : u32 {
  kBf16 = 1 << 4,
  kPair = 1 << 5,
  kFlush = 1 << 6,
  kSaturate = 1 << 7,
  kRelu = 1 << 8,
  kNan = 1 << 9,
  kXorSign = 1 << 10,
};
constexpr u32 kCompareShift = 12, kCombineShift = 17;

// x + y, exact, rounded to odd in f64: then a second rounding, to at most 51 bits, is as if it were the only
// one.
double add_to_odd(double x, double y) {
  const double sum = x + y, part = sum - x, lost = (x - (sum - part)) + (y - part);
  if (lost == 0 || lost != lost || !std::isfinite(sum)) return sum;
  const auto bits = std::bit_cast<u64>(sum);
  if ((bits & 1) != 0) return sum;
  // The neighbour in the direction of what was lost is odd.
  return std::bit_cast<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

template <bool brain>
struct Number {
  static constexpr Format kFormat = brain ? kBrain : kHalf;
  static constexpr u16 kSign = 0x8000, kNanBits = 0x7fff;
  static u16 flush_bits(u16 a) {
    return (a & (brain ? 0x7f80 : 0x7c00)) == 0 ? static_cast<u16>(a & kSign) : a;
  }
  static bool is_nan(u16 a) { return (a & 0x7fff) > (brain ? 0x7f80 : 0x7c00); }
  static double value(u16 a) { return widen(a, kFormat); }

  static u16 extreme(u16 a, u16 b, u32 flags, bool maximum) {
    const u16 sign = (flags & kXorSign) != 0 ? static_cast<u16>((a ^ b) & kSign) : u16{0};
    if ((flags & kXorSign) != 0) {
      a &= 0x7fff;
      b &= 0x7fff;
    }
    if (is_nan(a) || is_nan(b)) {
      if ((flags & kNan) != 0 || (is_nan(a) && is_nan(b))) return kNanBits;
      return static_cast<u16>((is_nan(a) ? b : a) | sign);
    }
    const double x = value(a), y = value(b);
    u16 result;
    if (x == y) result = ((a & kSign) != 0) != maximum ? a : b;  // -0 is less than +0
    else result = (x < y) != maximum ? a : b;
    return static_cast<u16>(result | sign);
  }
  static u16 compute(u16 a, u16 b, u16 c, u32 flags, Approximate approximate) {
    if ((flags & kFlush) != 0) {
      a = flush_bits(a);
      b = flush_bits(b);
      c = flush_bits(c);
    }
    double x = value(a), y = value(b);
    switch (flags & 15) {
      case kNegate:
        return a ^ kSign;
      case kAbsolute:
        return a & 0x7fff;
      case kMinimum:
      case kMaximum:
        return extreme(a, b, flags, (flags & 15) == kMaximum);
      case kAdd:
        x = add_to_odd(x, y);
        break;
      case kSubtract:
        x = add_to_odd(x, -y);
        break;
      case kMultiply:
        x = x * y;
        break;
      case kFma:
        x = add_to_odd(x * y, value(c));
        break;
      default: {
        // PTX ISA 9.1, 9.7.4.10, ex2: 2^-9.9 relative for f16, 2^-7 for bf16, and 2^0 is 1. 9.7.4.9, tanh:
        // 2^-10.987 absolute for f16, 2^-8 for bf16, and tanh of infinity is 1.
        const bool exp2 = (flags & 15) == kExp2, exact = x == 0 || std::isinf(x);
        x = exp2 ? std::exp2(x) : std::tanh(x);
        if (approximate != Approximate::kNearest && !exact && std::isfinite(x) && x != 0) {
          const double bound = exp2    ? std::fabs(x) * (brain ? 0x1p-7 : 0x1.125p-10)
                               : brain ? 0x1p-8
                                       : 0x1.02p-11;
          // Half a unit is left for the rounding below, so that the result keeps the bound.
          const double half = (std::fabs(x) + bound) * (brain ? 0x1p-8 : 0x1p-11);
          if (bound > half) x += approximate == Approximate::kLow ? -(bound - half) : bound - half;
        }
      }
    }
    if ((flags & kRelu) != 0 && x < 0) x = 0;
    if ((flags & kSaturate) != 0) x = saturate(x);
    u16 result = static_cast<u16>(narrow(x, kFormat, kNearestEven));
    if ((flags & kRelu) != 0 && result == kSign) result = 0;
    return (flags & kFlush) != 0 ? flush_bits(result) : result;
  }
};

template <bool brain, class T, int sources>
void run_half(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const Approximate approximate = w.launch().options->approximate;
  const T *const a = w.row<const T>(o[1]), *const b = w.row<const T>(o[sources > 1 ? 2 : 1]),
                 *const third = w.row<const T>(o[sources > 2 ? 3 : 1]);
  T values[32] = {};
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    u32 result = 0;
    for (u32 half = 0; half < sizeof(T) / 2; ++half) {
      const auto part = [&](T x) { return static_cast<u16>(u32{x} >> (16 * half)); };
      result |=
          u32{Number<brain>::compute(part(a[lane]), part(b[lane]), part(third[lane]), c.flags, approximate)}
          << (16 * half);
    }
    values[lane] = static_cast<T>(result);
  }
  w.write(o[0], values, mask);
}

// ---- comparisons ----

enum Comparison : u32 { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNaN };
constexpr std::string_view kComparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                             "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
constexpr std::string_view kCombinations[] = {"", "and", "or", "xor"};

template <class T>
bool holds(u32 comparison, T a, T b) {
  const bool unordered = a != a || b != b;
  switch (comparison) {
    case kEq:
      return a == b;
    case kNe:
      return !unordered && a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    case kGe:
      return a >= b;
    case kEqu:
      return unordered || a == b;
    case kNeu:
      return unordered || a != b;
    case kLtu:
      return unordered || a < b;
    case kLeu:
      return unordered || a <= b;
    case kGtu:
      return unordered || a > b;
    case kGeu:
      return unordered || a >= b;
    case kNum:
      return !unordered;
    default:
      return unordered;
  }
}
u32 combine(u32 combination, u32 bits, u32 third) {
  return combination == 0   ? bits
         : combination == 1 ? bits & third
         : combination == 2 ? bits | third
                            : bits ^ third;
}

// The types that set and setp compare.
enum Source : u32 {
  kHalfSource,
  kBrainSource,
  kHalfPair,
  kBrainPair,
  kSingleSource,
  kDoubleSource,
  kU16,
  kS16,
  kU32,
  kS32,
  kU64,
  kS64
};
constexpr std::string_view kSources[] = {"f16", "bf16", "f16x2", "bf16x2", "f32", "f64",
                                         "u16", "s16",  "u32",   "s32",    "u64", "s64"};
// The results of set: all ones or 1.0.
enum Result : u32 { kOnes32, kOnes16, kOneF32, kOneF16, kOneBf16, kOneHalves, kOneBrains, kOnesPair };

// One bit per lane: the comparison of the lanes' operands, of the upper halves if `upper`.
u32 compare(Warp& w, const Code& c, const Ref& ra, const Ref& rb, bool upper) {
  const u32 comparison = (c.flags >> kCompareShift) & 31, source = c.flags & 15;
  u32 bits = 0;
  const auto each = [&](auto value) {
    for (int lane = 0; lane < 32; ++lane)
      bits |= u32{holds(comparison, value(ra, lane), value(rb, lane))} << lane;
  };
  const auto typed = [&]<class T>(T) {
    each([&](const Ref& r, int lane) { return w.row<const T>(r)[lane]; });
  };
  const bool ftz = (c.flags & kFlush) != 0;
  switch (source) {
    case kHalfSource:
    case kHalfPair:
      each([&](const Ref& r, int lane) {
        const u16 x =
            source == kHalfSource ? w.row<const u16>(r)[lane] : w.row<const u16>(r)[2 * lane + upper];
        return widen(ftz ? Number<false>::flush_bits(x) : x, kHalf);
      });
      break;
    case kBrainSource:
    case kBrainPair:
      each([&](const Ref& r, int lane) {
        return widen(
            source == kBrainSource ? w.row<const u16>(r)[lane] : w.row<const u16>(r)[2 * lane + upper],
            kBrain);
      });
      break;
    case kSingleSource:
      each([&](const Ref& r, int lane) {
        const float x = w.row<const float>(r)[lane];
        return ftz ? flush(x) : x;
      });
      break;
    case kDoubleSource:
      typed(double{});
      break;
    case kU16:
      typed(u16{});
      break;
    case kS16:
      typed(i16{});
      break;
    case kU32:
      typed(u32{});
      break;
    case kS32:
      typed(i32{});
      break;
    case kU64:
      typed(u64{});
      break;
    default:
      typed(i64{});
  }
  return bits;
}
// setp with two results, p|q. q is the opposite of p. For two 16-bit numbers in a register, p compares the
// lower ones and q the upper ones.
void run_setp(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 combination = c.flags >> kCombineShift & 3, source = c.flags & 15;
  const u32 third = combination != 0 ? w.predicate(o[4]) : 0;
  const bool pair = source == kHalfPair || source == kBrainPair;
  const u32 first = compare(w, c, o[2], o[3], false),
            second = pair ? compare(w, c, o[2], o[3], true) : ~first;
  w.set_predicate(o[0], combine(combination, first, third), mask);
  w.set_predicate(o[1], combine(combination, second, third), mask);
}
template <class T>
void write_choice(Warp& w, const Ref& to, u32 bits, u32 upper, T one, u32 mask) {
  T values[32];
  for (int lane = 0; lane < 32; ++lane) {
    values[lane] = (bits >> lane & 1) != 0 ? one : T{0};
    if constexpr (sizeof(T) == 4)
      if (upper != 0) values[lane] |= (upper >> lane & 1) != 0 ? one << 16 : 0;
  }
  w.write(to, values, mask);
}
void run_set(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 combination = c.flags >> kCombineShift & 3, source = c.flags & 15, result = c.flags >> 20 & 7;
  const u32 third = combination != 0 ? w.predicate(o[3]) : 0;
  const u32 bits = combine(combination, compare(w, c, o[1], o[2], false), third);
  const bool pair = source == kHalfPair || source == kBrainPair;
  const u32 upper = pair ? combine(combination, compare(w, c, o[1], o[2], true), third) : 0;
  switch (result) {
    case kOnes32:
      return write_choice<u32>(w, o[0], bits, 0, 0xffffffffu, mask);
    case kOnes16:
      return write_choice<u16>(w, o[0], bits, 0, 0xffff, mask);
    case kOneF32:
      return write_choice<u32>(w, o[0], bits, 0, 0x3f800000u, mask);
    case kOneF16:
      return write_choice<u16>(w, o[0], bits, 0, 0x3c00, mask);
    case kOneBf16:
      return write_choice<u16>(w, o[0], bits, 0, 0x3f80, mask);
    case kOneHalves:
      return write_choice<u32>(w, o[0], bits, upper, 0x3c00, mask);
    case kOneBrains:
      return write_choice<u32>(w, o[0], bits, upper, 0x3f80, mask);
    default:
      return write_choice<u32>(w, o[0], bits, upper, 0xffff, mask);
  }
}

template <std::size_t n>
bool find_name(const std::string_view (&names)[n], std::string_view name, u32& at) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  at = static_cast<u32>(found - std::begin(names));
  return found != std::end(names);
}
char width_letter(u32 source) {
  if (source == kHalfSource || source == kBrainSource || source == kU16 || source == kS16) return 'h';
  return source == kDoubleSource || source == kU64 || source == kS64 ? 'l' : 'w';
}

// set.cmp{.bool}{.ftz}.dtype.stype and setp.cmp{.bool}{.ftz}.stype of types that compare.cpp does not know.
bool find_comparison(const Parts& p, Entry& e) {
  const bool set = p[0] == "set";
  if (p.size() < (set ? 4u : 3u)) return false;
  u32 comparison = 0, source = 0, combination = 0, flags = 0;
  std::string_view name = p[1];
  if (!find_name(kSources, p.back(), source)) return false;
  const bool integer = source >= kU16, is_signed = source == kS16 || source == kS32 || source == kS64;
  if (integer && !is_signed)
    name = name == "lo" ? "lt" : name == "ls" ? "le" : name == "hi" ? "gt" : name == "hs" ? "ge" : name;
  if (!find_name(kComparisons, name, comparison) || (integer && comparison > kGe)) return false;
  const std::size_t end = p.size() - (set ? 2 : 1);
  for (std::size_t i = 2; i < end; ++i) {
    if (p[i] == "ftz" && !integer) flags |= kFlush;
    else if (u32 at = 0; find_name(kCombinations, p[i], at) && at != 0) combination = at;
    else return false;
  }
  flags |= source | comparison << kCompareShift | combination << kCombineShift;
  const std::string third = combination != 0 ? "p" : "";
  const std::string two(2, width_letter(source));
  if (!set) {
    e = Entry{};
    e.run = &run_setp;
    e.signature = "pq=" + two + third;
    e.flags = flags;
    return true;
  }
  const std::string_view to = p[p.size() - 2];
  const bool halves = source == kHalfPair, brains = source == kBrainPair;
  u32 result = 0;
  if (to == "u32" || to == "s32") result = halves || brains ? kOnesPair : kOnes32;
  else if (halves || brains) {
    if (to != (halves ? "f16x2" : "bf16x2")) return false;
    result = halves ? kOneHalves : kOneBrains;
  } else if (to == "u16" || to == "s16") result = kOnes16;
  else if (to == "f32") result = kOneF32;
  else if (to == "f16") result = kOneF16;
  else if (to == "bf16") result = kOneBf16;
  else return false;
  const bool narrow_result = result == kOnes16 || result == kOneF16 || result == kOneBf16;
  e = Entry{};
  e.run = &run_set;
  e.signature = std::string(narrow_result ? "h=" : "w=") + two + third;
  e.flags = flags | result << 20;
  return true;
}

}  // namespace

bool find_half(const Parts& p, Entry& e) {
  if (p[0] == "set" || p[0] == "setp") return find_comparison(p, e);
  u32 operation = 0, flags = 0;
  if (p.size() < 2 || !find_name(kNames, p[0], operation)) return false;
  const std::string_view type = p.back();
  if (type == "bf16" || type == "bf16x2") flags |= kBf16;
  else if (type != "f16" && type != "f16x2") return false;
  if (type.ends_with("x2")) flags |= kPair;
  bool rounds = false, approximate = false, absolute = false;
  for (std::size_t i = 1; i + 1 < p.size(); ++i) {
    if (p[i] == "rn") rounds = true;
    else if (p[i] == "ftz") flags |= kFlush;
    else if (p[i] == "sat") flags |= kSaturate;
    else if (p[i] == "relu") flags |= kRelu;
    else if (p[i] == "NaN") flags |= kNan;
    else if (p[i] == "xorsign") flags |= kXorSign;
    else if (p[i] == "abs") absolute = true;
    else if (p[i] == "approx") approximate = true;
    else return false;
  }
  const bool extreme = operation == kMinimum || operation == kMaximum, arithmetic = operation <= kFma,
             function = operation >= kExp2, brain = (flags & kBf16) != 0;
  if ((operation == kFma && !rounds) || (rounds && !arithmetic) || approximate != function) return false;
  if (absolute != ((flags & kXorSign) != 0) || ((flags & (kNan | kXorSign)) != 0 && !extreme)) return false;
  if (((flags & kSaturate) != 0 && !arithmetic) || ((flags & kRelu) != 0 && operation != kFma)) return false;
  if (brain && ((flags & kSaturate) != 0 || ((flags & kFlush) != 0 && operation != kExp2))) return false;
  const bool pair = (flags & kPair) != 0;
  const int sources = operation == kFma ? 3 : arithmetic || extreme ? 2 : 1;
  const std::string letter(1, pair ? 'w' : 'h');
  e = Entry{};
  e.signature = letter + "=" + std::string(static_cast<std::size_t>(sources), letter[0]);
  e.flags = flags | operation;
  const auto choose = [&]<int n>(std::integral_constant<int, n>) -> Handler {
    if (pair) return brain ? &run_half<true, u32, n> : &run_half<false, u32, n>;
    return brain ? &run_half<true, u16, n> : &run_half<false, u16, n>;
  };
  e.run = sources == 3   ? choose(std::integral_constant<int, 3>())
          : sources == 2 ? choose(std::integral_constant<int, 2>())
                         : choose(std::integral_constant<int, 1>());
  return true;
}

}  // namespace tapestry::ptx
