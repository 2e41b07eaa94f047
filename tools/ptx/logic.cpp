// Bits: logic, shifts, fields, bytes, moves and selections.
#include <algorithm>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

struct Copy {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct LogicalNot {
  template <class T>
  T operator()(T a) const {
    return a == 0;
  }
};
// Shifts by more than the width give 0, or the sign.
struct ShiftLeft {
  template <class T>
  T operator()(T a, u32 n) const {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << n);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, u32 n) const {
    constexpr u32 kBits = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> std::min(n, kBits - 1));
    else return n >= kBits ? T{0} : static_cast<T>(a >> n);
  }
};
template <bool left, bool wrap>
struct FunnelShift {
  u32 operator()(u32 low, u32 high, u32 n) const {
    n = wrap ? n & 31 : std::min(n, 32u);
    const u64 both = (u64{high} << 32) | low;
    return static_cast<u32>(left ? (both << n) >> 32 : both >> n);
  }
};
struct BitFieldInsert {
  template <class T>
  T operator()(T a, T b, u32 position, u32 length) const {
    constexpr u32 kBits = 8 * sizeof(T);
    position &= 0xff;
    length &= 0xff;
    if (position >= kBits || length == 0) return b;
    const T ones = length >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
    const T mask = static_cast<T>(ones << position);
    return static_cast<T>((b & ~mask) | ((a << position) & mask));
  }
};
struct BitFieldExtract {
  template <class T>
  T operator()(T a, u32 position, u32 length) const {
    using U = std::make_unsigned_t<T>;
    constexpr u32 kBits = 8 * sizeof(T);
    position &= 0xff;
    length &= 0xff;
    if (length == 0) return 0;
    const bool negative =
        std::is_signed_v<T> && ((static_cast<U>(a) >> std::min(position + length - 1, kBits - 1)) & 1) != 0;
    const U fill = negative ? static_cast<U>(~U{0}) : U{0};
    if (position >= kBits) return static_cast<T>(fill);
    const U field = static_cast<U>(static_cast<U>(a) >> position);
    const u32 kept = std::min(length, kBits - position);
    if (kept >= kBits) return static_cast<T>(field);
    const U mask = static_cast<U>((U{1} << kept) - 1);
    return static_cast<T>((field & mask) | (fill & ~mask));
  }
};
struct CountOnes {
  template <class T>
  u32 operator()(T a) const {
    return static_cast<u32>(std::popcount(a));
  }
};
struct LeadingZeros {
  template <class T>
  u32 operator()(T a) const {
    return static_cast<u32>(std::countl_zero(a));
  }
};
template <bool shift_amount>
struct FindBit {
  template <class T>
  u32 operator()(T a) const {
    using U = std::make_unsigned_t<T>;
    const U bits = static_cast<U>(std::is_signed_v<T> && a < 0 ? ~a : a);
    const auto zeros = static_cast<u32>(std::countl_zero(bits));
    if (bits == 0) return 0xffffffffu;
    return shift_amount ? zeros : static_cast<u32>(8 * sizeof(T)) - 1 - zeros;
  }
};
struct Reverse {
  template <class T>
  T operator()(T a) const {
    T r = 0;
    for (std::size_t i = 0; i < 8 * sizeof(T); ++i) r = static_cast<T>((r << 1) | ((a >> i) & 1));
    return r;
  }
};
// Each nibble of the selector names one of the 8 bytes of b:a; its high bit asks for the byte's sign.
struct Permute {
  u32 operator()(u32 a, u32 b, u32 selector) const {
    const u64 bytes = (u64{b} << 32) | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) {
      const u32 nibble = selector >> (4 * i);
      u32 byte = static_cast<u32>(bytes >> (8 * (nibble & 7))) & 0xff;
      if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
// The modes of prmt choose bytes by the two low bits of c.
template <char mode>
struct PermuteMode {
  u32 operator()(u32 a, u32 b, u32 c) const {
    static constexpr u32 kForward[] = {0x3210, 0x4321, 0x5432, 0x6543}, kBackward[] = {0x5670, 0x6701, 0x7012, 0x0123},
                         kReplicate[] = {0x0000, 0x1111, 0x2222, 0x3333}, kLeft[] = {0x3210, 0x3211, 0x3222, 0x3333},
                         kRight[] = {0x0000, 0x1110, 0x2210, 0x3210}, kHalves[] = {0x1010, 0x3232, 0x1010, 0x3232};
    const u32* const table = mode == 'f'   ? kForward
                             : mode == 'b' ? kBackward
                             : mode == '8' ? kReplicate
                             : mode == 'l' ? kLeft
                             : mode == 'r' ? kRight
                                           : kHalves;
    return Permute()(a, b, table[c & 3]);
  }
};
// slct: a if c >= 0, otherwise b. NaN chooses b.
template <class C>
struct SelectBySign {
  template <class T>
  T operator()(T a, T b, C c) const {
    return c >= C{0} ? a : b;
  }
};
// The offset-th set bit of the mask, counted from `base` upwards or downwards.
struct FindNthSet {
  u32 operator()(u32 mask, u32 base, i32 offset) const {
    if (offset == 0) return base < 32 && ((mask >> base) & 1) != 0 ? base : 0xffffffffu;
    const i64 step = offset > 0 ? 1 : -1;
    i64 missing = offset > 0 ? i64{offset} : -i64{offset};
    for (i64 at = i64{base}; at >= 0 && at < 32; at += step)
      if (((mask >> at) & 1) != 0 && --missing == 0) return static_cast<u32>(at);
    return 0xffffffffu;
  }
};
// The low b bits of a, extended; a mask of b bits from bit a on.
template <bool is_signed, bool wrap>
struct ExtendBits {
  u32 operator()(u32 a, u32 b) const {
    if (wrap) b &= 31;
    else if (b > 31) return a;
    if (b == 0) return 0;
    return is_signed ? static_cast<u32>(static_cast<i32>(a << (32 - b)) >> (32 - b)) : a & ((1u << b) - 1);
  }
};
template <bool wrap>
struct BitMask {
  u32 operator()(u32 a, u32 b) const {
    if (wrap) {
      a &= 31;
      b &= 31;
    }
    const u64 ones = (u64{1} << std::min(b, 32u)) - 1;
    return a > 31 ? 0 : static_cast<u32>(ones << a);
  }
};
struct Lop3 {
  u32 operator()(u32 a, u32 b, u32 c, u32 lut) const {
    u32 result = 0;
    for (u32 i = 0; i < 8; ++i)
      if ((lut >> i) & 1) result |= ((i & 4) ? a : ~a) & ((i & 2) ? b : ~b) & ((i & 1) ? c : ~c);
    return result;
  }
};

// lop3.or.b32 d|p, a, b, c, lut, q: p = (d != 0) or q.
template <bool conjunction>
void run_lop3_test(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u32 values[32], bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const auto x = [&](int i) { return w.row<const u32>(o[i])[lane]; };
    values[lane] = Lop3()(x(2), x(3), x(4), x(5));
    bits |= static_cast<u32>(values[lane] != 0) << lane;
  }
  const u32 q = w.predicate(o[6]);
  w.write(o[0], values, mask);
  w.set_predicate(o[1], conjunction ? bits & q : bits | q, mask);
}
template <class T>
void run_select(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const T *const a = w.row<const T>(o[1]), *const b = w.row<const T>(o[2]);
  const u32 p = w.predicate(o[3]);
  T values[32];
  for (int lane = 0; lane < 32; ++lane) values[lane] = ((p >> lane) & 1) != 0 ? a[lane] : b[lane];
  w.write(o[0], values, mask);
}
template <class Op>
void run_predicates(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.set_predicate(o[0], Op()(w.predicate(o[1]), w.predicate(o[2])), mask);
}
void run_not(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.set_predicate(o[0], ~w.predicate(o[1]), mask);
}
void run_copy(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.set_predicate(o[0], w.predicate(o[1]), mask);
}

// mov of vectors: the first element is the low part.
template <class T, class Part, int kCount>
void run_pack(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  T values[32] = {};
  for (int e = 0; e < kCount; ++e) {
    const Part* const from = w.row<const Part>(o[1 + e]);
    for (int lane = 0; lane < 32; ++lane)
      values[lane] = static_cast<T>(
          values[lane] | static_cast<T>(T{from[lane]} << (8 * static_cast<int>(sizeof(Part)) * e)));
  }
  w.write(o[0], values, mask);
}
template <class T, class Part, int kCount>
void run_unpack(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  T from[32];
  std::copy_n(w.row<const T>(o[kCount]), 32, from);
  for (int e = 0; e < kCount; ++e) {
    Part values[32];
    for (int lane = 0; lane < 32; ++lane)
      values[lane] = static_cast<Part>(from[lane] >> (8 * static_cast<int>(sizeof(Part)) * e));
    if (o[e].offset != kTrash) w.write(o[e], values, mask);
  }
}

template <class T>
void add_bits(Table& t, const std::string& bits) {
  const std::string type = "b" + bits, l(1, letter<T>());
  add_op<And, T, T, T>(t, "and." + type);
  add_op<Or, T, T, T>(t, "or." + type);
  add_op<Xor, T, T, T>(t, "xor." + type);
  add_op<Not, T, T>(t, "not." + type);
  add_op<LogicalNot, T, T>(t, "cnot." + type);
  add_op<ShiftLeft, T, T, u32>(t, "shl." + type);
  add_op<ShiftRight, T, T, u32>(t, "shr." + type);
  add_op<ShiftRight, T, T, u32>(t, "shr.u" + bits);
  using S = std::make_signed_t<T>;
  add_op<ShiftRight, S, S, u32>(t, "shr.s" + bits);
  add_op<Copy, T, T>(t, "mov." + l);
  for (const char* kind : {"b", "u", "s", "f"})
  {
    t["selp." + (kind + bits)] = {&run_select<T>, l + "=" + l + l + "p", 0};
    add_op<SelectBySign<i32>, T, T, T, i32>(t, "slct." + (kind + bits) + ".s32");
    add_op<SelectBySign<float>, T, T, T, float>(t, "slct." + (kind + bits) + ".f32");
    add_op<SelectBySign<float>, T, T, T, float>(t, "slct.ftz." + (kind + bits) + ".f32");
  }
}
template <class T>
void add_fields(Table& t, const std::string& bits) {
  using S = std::make_signed_t<T>;
  add_op<BitFieldInsert, T, T, T, u32, u32>(t, "bfi.b" + bits);
  add_op<BitFieldExtract, T, T, u32, u32>(t, "bfe.u" + bits);
  add_op<BitFieldExtract, S, S, u32, u32>(t, "bfe.s" + bits);
  add_op<CountOnes, u32, T>(t, "popc.b" + bits);
  add_op<LeadingZeros, u32, T>(t, "clz.b" + bits);
  add_op<FindBit<false>, u32, T>(t, "bfind.u" + bits);
  add_op<FindBit<false>, u32, S>(t, "bfind.s" + bits);
  add_op<FindBit<true>, u32, T>(t, "bfind.shiftamt.u" + bits);
  add_op<FindBit<true>, u32, S>(t, "bfind.shiftamt.s" + bits);
  add_op<Reverse, T, T>(t, "brev.b" + bits);
}

}  // namespace

void add_logic(Table& t) {
  add_bits<u16>(t, "16");
  add_bits<u32>(t, "32");
  add_bits<u64>(t, "64");
  add_fields<u32>(t, "32");
  add_fields<u64>(t, "64");
  add_op<Permute, u32, u32, u32, u32>(t, "prmt.b32");
  add_op<PermuteMode<'f'>, u32, u32, u32, u32>(t, "prmt.b32.f4e");
  add_op<PermuteMode<'b'>, u32, u32, u32, u32>(t, "prmt.b32.b4e");
  add_op<PermuteMode<'8'>, u32, u32, u32, u32>(t, "prmt.b32.rc8");
  add_op<PermuteMode<'l'>, u32, u32, u32, u32>(t, "prmt.b32.ecl");
  add_op<PermuteMode<'r'>, u32, u32, u32, u32>(t, "prmt.b32.ecr");
  add_op<PermuteMode<'6'>, u32, u32, u32, u32>(t, "prmt.b32.rc16");
  add_op<FindNthSet, u32, u32, u32, i32>(t, "fns.b32");
  add_op<ExtendBits<false, false>, u32, u32, u32>(t, "szext.clamp.u32");
  add_op<ExtendBits<true, false>, u32, u32, u32>(t, "szext.clamp.s32");
  add_op<ExtendBits<false, true>, u32, u32, u32>(t, "szext.wrap.u32");
  add_op<ExtendBits<true, true>, u32, u32, u32>(t, "szext.wrap.s32");
  add_op<BitMask<false>, u32, u32, u32>(t, "bmsk.clamp.b32");
  add_op<BitMask<true>, u32, u32, u32>(t, "bmsk.wrap.b32");
  t["lop3.or.b32"] = {&run_lop3_test<false>, "wq=wwwwp", 0};
  t["lop3.and.b32"] = {&run_lop3_test<true>, "wq=wwwwp", 0};
  add_op<Lop3, u32, u32, u32, u32, u32>(t, "lop3.b32");
  add_op<FunnelShift<true, true>, u32, u32, u32, u32>(t, "shf.l.wrap.b32");
  add_op<FunnelShift<true, false>, u32, u32, u32, u32>(t, "shf.l.clamp.b32");
  add_op<FunnelShift<false, true>, u32, u32, u32, u32>(t, "shf.r.wrap.b32");
  add_op<FunnelShift<false, false>, u32, u32, u32, u32>(t, "shf.r.clamp.b32");
  t["and.pred"] = {&run_predicates<And>, "p=pp", 0};
  t["or.pred"] = {&run_predicates<Or>, "p=pp", 0};
  t["xor.pred"] = {&run_predicates<Xor>, "p=pp", 0};
  t["not.pred"] = {&run_not, "p=p", 0};
  t["mov.p"] = {&run_copy, "p=p", 0};
  t["pack.h2w"] = {&run_pack<u32, u16, 2>, "", 0};
  t["pack.h4l"] = {&run_pack<u64, u16, 4>, "", 0};
  t["pack.w2l"] = {&run_pack<u64, u32, 2>, "", 0};
  t["unpack.h2w"] = {&run_unpack<u32, u16, 2>, "", 0};
  t["unpack.h4l"] = {&run_unpack<u64, u16, 4>, "", 0};
  t["unpack.w2l"] = {&run_unpack<u64, u32, 2>, "", 0};
}

}  // namespace tapestry::ptx
