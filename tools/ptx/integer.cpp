// Integer arithmetic.
#include <limits>
#include <type_traits>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, i32, u32>,
                                std::conditional_t<std::is_signed_v<T>, i64, u64>>;

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a - b);
  }
};
struct MultiplyLow {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(u64{a} * u64{b});
  }
};
struct MultiplyHigh {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (sizeof(T) < 8) return static_cast<T>((i64{a} * i64{b}) >> (8 * sizeof(T)));
    else if constexpr (std::is_signed_v<T>) return static_cast<T>((static_cast<i128>(a) * b) >> 64);
    else return static_cast<T>((static_cast<u128>(a) * b) >> 64);
  }
};
// u32 x u32 needs all 64 bits, so its product is not one of signed numbers.
template <>
u32 MultiplyHigh::operator()(u32 a, u32 b) const {
  return static_cast<u32>((u64{a} * u64{b}) >> 32);
}
struct MultiplyWide {
  template <class T>
  Wide<T> operator()(T a, T b) const {
    return static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
struct MadLow {
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(u64{a} * u64{b} + u64{c});
  }
};
struct MadHigh {
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(static_cast<Unsigned<T>>(MultiplyHigh()(a, b)) + static_cast<Unsigned<T>>(c));
  }
};
struct MadWide {
  template <class T, class W>
  W operator()(T a, T b, W c) const {
    return static_cast<W>(static_cast<Unsigned<W>>(MultiplyWide()(a, b)) + static_cast<Unsigned<W>>(c));
  }
};
struct AddSaturated {
  i32 operator()(i32 a, i32 b) const {
    const i64 sum = i64{a} + b;
    return static_cast<i32>(sum > std::numeric_limits<i32>::max()   ? std::numeric_limits<i32>::max()
                            : sum < std::numeric_limits<i32>::min() ? std::numeric_limits<i32>::min()
                                                                    : sum);
  }
};
struct SubtractSaturated {
  i32 operator()(i32 a, i32 b) const {
    const i64 sum = i64{a} - b;
    return static_cast<i32>(sum > std::numeric_limits<i32>::max()   ? std::numeric_limits<i32>::max()
                            : sum < std::numeric_limits<i32>::min() ? std::numeric_limits<i32>::min()
                                                                    : sum);
  }
};
// The manual leaves the results of x / 0 and x % 0 open. GPUs give all ones and x.
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Negate {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  }
};
struct Absolute {
  template <class T>
  T operator()(T a) const {
    return a < 0 ? Negate()(a) : a;
  }
};
struct Sad {
  template <class T>
  T operator()(T a, T b, T c) const {
    const auto x = static_cast<Unsigned<T>>(a), y = static_cast<Unsigned<T>>(b);
    return static_cast<T>(static_cast<Unsigned<T>>(c) + static_cast<Unsigned<T>>(a < b ? y - x : x - y));
  }
};

// add.cc, addc and addc.cc, and the same of sub. The carry of a subtraction is its borrow.
template <class T, bool subtract, bool reads, bool writes>
void run_carry(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const T *const a = w.row<const T>(o[1]), *const b = w.row<const T>(o[2]);
  T values[32];
  u32 carries = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const T carry = reads ? (w.carry >> lane) & 1 : 0, x = a[lane], y = b[lane];
    if constexpr (subtract) {
      values[lane] = x - y - carry;
      carries |= static_cast<u32>(x < y || (x == y && carry != 0)) << lane;
    } else {
      values[lane] = x + y + carry;
      carries |= static_cast<u32>(values[lane] < x || (values[lane] == x && carry != 0)) << lane;
    }
  }
  w.write(o[0], values, mask);
  if (writes) w.carry = (w.carry & ~mask) | (carries & mask);
}
// mad.cc, madc and madc.cc: the carry is that of the addition to one half of the product.
template <bool high, bool reads, bool writes, bool is_signed = false>
void run_mad_carry(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 *const a = w.row<const u32>(o[1]), *const b = w.row<const u32>(o[2]),
                   *const addend = w.row<const u32>(o[3]);
  u32 values[32], carries = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const u64 product = is_signed ? static_cast<u64>(i64{static_cast<i32>(a[lane])} * static_cast<i32>(b[lane]))
                                  : u64{a[lane]} * b[lane];
    const u64 sum =
        (high ? product >> 32 : product & 0xffffffff) + addend[lane] + (reads ? (w.carry >> lane) & 1 : 0);
    values[lane] = static_cast<u32>(sum);
    carries |= static_cast<u32>(sum >> 32) << lane;
  }
  w.write(o[0], values, mask);
  if (writes) w.carry = (w.carry & ~mask) | (carries & mask);
}
template <bool high>
void add_mad_carry(Table& t, const std::string& half) {
  for (const std::string type : {"u32", "s32"}) {
    if (high && type == "s32") {  // the upper half of a signed product is another one
      t["mad.hi.cc.s32"] = {&run_mad_carry<true, false, true, true>, "w=www", 0};
      t["madc.hi.s32"] = {&run_mad_carry<true, true, false, true>, "w=www", 0};
      t["madc.hi.cc.s32"] = {&run_mad_carry<true, true, true, true>, "w=www", 0};
      continue;
    }
    t["mad." + half + ".cc." + type] = {&run_mad_carry<high, false, true>, "w=www", 0};
    t["madc." + half + "." + type] = {&run_mad_carry<high, true, false>, "w=www", 0};
    t["madc." + half + ".cc." + type] = {&run_mad_carry<high, true, true>, "w=www", 0};
  }
}

// Products of 24 bits: the low 32 bits of the 48, or the high ones.
template <bool high, bool is_signed>
struct Multiply24 {
  u32 operator()(u32 a, u32 b) const {
    const i64 x = is_signed ? i64{static_cast<i32>(a << 8) >> 8} : i64{a & 0xffffff};
    const i64 y = is_signed ? i64{static_cast<i32>(b << 8) >> 8} : i64{b & 0xffffff};
    return static_cast<u32>(high ? (x * y) >> 16 : x * y);
  }
};
template <bool high, bool is_signed>
struct Mad24 {
  u32 operator()(u32 a, u32 b, u32 c) const { return Multiply24<high, is_signed>()(a, b) + c; }
};
i32 saturate(i64 x) {
  return static_cast<i32>(x > std::numeric_limits<i32>::max()   ? std::numeric_limits<i32>::max()
                          : x < std::numeric_limits<i32>::min() ? std::numeric_limits<i32>::min()
                                                                : x);
}
struct Mad24Saturated {
  i32 operator()(i32 a, i32 b, i32 c) const {
    return saturate(i64{static_cast<i32>(Multiply24<true, true>()(static_cast<u32>(a), static_cast<u32>(b)))} + c);
  }
};
struct MadHighSaturated {
  i32 operator()(i32 a, i32 b, i32 c) const { return saturate(i64{MultiplyHigh()(a, b)} + c); }
};
// Four products of bytes, or two of 16 bits by bytes, are added to c.
template <bool signed_a, bool signed_b>
struct DotFour {
  u32 operator()(u32 a, u32 b, u32 c) const {
    for (u32 i = 0; i < 32; i += 8) {
      const i32 x = signed_a ? i32{static_cast<std::int8_t>(a >> i)} : i32{static_cast<u8>(a >> i)};
      const i32 y = signed_b ? i32{static_cast<std::int8_t>(b >> i)} : i32{static_cast<u8>(b >> i)};
      c += static_cast<u32>(x * y);
    }
    return c;
  }
};
template <bool signed_a, bool signed_b, bool high>
struct DotTwo {
  u32 operator()(u32 a, u32 b, u32 c) const {
    if (high) b >>= 16;
    for (u32 i = 0; i < 2; ++i) {
      const i32 x = signed_a ? i32{static_cast<i16>(a >> (16 * i))} : i32{static_cast<u16>(a >> (16 * i))};
      const i32 y = signed_b ? i32{static_cast<std::int8_t>(b >> (8 * i))} : i32{static_cast<u8>(b >> (8 * i))};
      c += static_cast<u32>(x * y);
    }
    return c;
  }
};
template <bool a, bool b>
void add_dots(Table& t) {
  const std::string types = std::string(a ? ".s32" : ".u32") + (b ? ".s32" : ".u32");
  add_op<DotFour<a, b>, u32, u32, u32, u32>(t, "dp4a" + types);
  add_op<DotTwo<a, b, false>, u32, u32, u32, u32>(t, "dp2a.lo" + types);
  add_op<DotTwo<a, b, true>, u32, u32, u32, u32>(t, "dp2a.hi" + types);
}
// Two numbers of 16 bits.
template <class Op, class T, bool relu = false>
struct Pair {
  u32 operator()(u32 a, u32 b) const {
    T low = Op()(static_cast<T>(a), static_cast<T>(b)), high = Op()(static_cast<T>(a >> 16), static_cast<T>(b >> 16));
    if (relu && low < 0) low = 0;
    if (relu && high < 0) high = 0;
    return u32{static_cast<u16>(low)} | u32{static_cast<u16>(high)} << 16;
  }
};

template <class T>
void add_carry(Table& t, const std::string& type) {
  const std::string l(1, letter<T>()), signature = l + "=" + l + l;
  t["add.cc." + type] = {&run_carry<T, false, false, true>, signature, 0};
  t["addc." + type] = {&run_carry<T, false, true, false>, signature, 0};
  t["addc.cc." + type] = {&run_carry<T, false, true, true>, signature, 0};
  t["sub.cc." + type] = {&run_carry<T, true, false, true>, signature, 0};
  t["subc." + type] = {&run_carry<T, true, true, false>, signature, 0};
  t["subc.cc." + type] = {&run_carry<T, true, true, true>, signature, 0};
}

template <class T>
void add_type(Table& t, const std::string& type) {
  using U = Unsigned<T>;
  add_op<Add, U, U, U>(t, "add." + type);
  add_op<Subtract, U, U, U>(t, "sub." + type);
  add_op<MultiplyLow, U, U, U>(t, "mul.lo." + type);
  add_op<MultiplyHigh, T, T, T>(t, "mul.hi." + type);
  add_op<MadLow, U, U, U, U>(t, "mad.lo." + type);
  add_op<MadHigh, T, T, T, T>(t, "mad.hi." + type);
  if constexpr (sizeof(T) < 8) {
    add_op<MultiplyWide, Wide<T>, T, T>(t, "mul.wide." + type);
    add_op<MadWide, Wide<T>, T, T, Wide<T>>(t, "mad.wide." + type);
  }
  add_op<Divide, T, T, T>(t, "div." + type);
  add_op<Remainder, T, T, T>(t, "rem." + type);
  add_op<Minimum, T, T, T>(t, "min." + type);
  add_op<Maximum, T, T, T>(t, "max." + type);
  add_op<Sad, T, T, T, T>(t, "sad." + type);
  if constexpr (std::is_signed_v<T>) {
    add_op<Negate, T, T>(t, "neg." + type);
    add_op<Absolute, T, T>(t, "abs." + type);
  }
}

}  // namespace

void add_integer(Table& t) {
  add_type<u16>(t, "u16");
  add_type<u32>(t, "u32");
  add_type<u64>(t, "u64");
  add_type<i16>(t, "s16");
  add_type<i32>(t, "s32");
  add_type<i64>(t, "s64");
  add_op<AddSaturated, i32, i32, i32>(t, "add.sat.s32");
  add_op<SubtractSaturated, i32, i32, i32>(t, "sub.sat.s32");
  for (const char* type : {"u32", "s32"}) add_carry<u32>(t, type);
  for (const char* type : {"u64", "s64"}) add_carry<u64>(t, type);
  add_op<Multiply24<false, false>, u32, u32, u32>(t, "mul24.lo.u32");
  add_op<Multiply24<false, true>, u32, u32, u32>(t, "mul24.lo.s32");
  add_op<Multiply24<true, false>, u32, u32, u32>(t, "mul24.hi.u32");
  add_op<Multiply24<true, true>, u32, u32, u32>(t, "mul24.hi.s32");
  add_op<Mad24<false, false>, u32, u32, u32, u32>(t, "mad24.lo.u32");
  add_op<Mad24<false, true>, u32, u32, u32, u32>(t, "mad24.lo.s32");
  add_op<Mad24<true, false>, u32, u32, u32, u32>(t, "mad24.hi.u32");
  add_op<Mad24<true, true>, u32, u32, u32, u32>(t, "mad24.hi.s32");
  add_op<Mad24Saturated, i32, i32, i32, i32>(t, "mad24.hi.sat.s32");
  add_op<MadHighSaturated, i32, i32, i32, i32>(t, "mad.hi.sat.s32");
  add_dots<false, false>(t);
  add_dots<false, true>(t);
  add_dots<true, false>(t);
  add_dots<true, true>(t);
  add_op<Pair<Add, u16>, u32, u32, u32>(t, "add.u16x2");
  add_op<Pair<Add, u16>, u32, u32, u32>(t, "add.s16x2");
  add_op<Pair<Minimum, u16>, u32, u32, u32>(t, "min.u16x2");
  add_op<Pair<Maximum, u16>, u32, u32, u32>(t, "max.u16x2");
  add_op<Pair<Minimum, i16>, u32, u32, u32>(t, "min.s16x2");
  add_op<Pair<Maximum, i16>, u32, u32, u32>(t, "max.s16x2");
  add_op<Pair<Minimum, i16, true>, u32, u32, u32>(t, "min.relu.s16x2");
  add_op<Pair<Maximum, i16, true>, u32, u32, u32>(t, "max.relu.s16x2");
  add_mad_carry<false>(t, "lo");
  add_mad_carry<true>(t, "hi");
}

}  // namespace tapestry::ptx
