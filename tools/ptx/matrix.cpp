// mma.sync and ldmatrix. The places of elements in fragments are those of the tables in the PTX manual, in
// "Matrix Fragments for mma.m16n8k16" and in the description of ldmatrix.
#include <algorithm>

#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

double half_value(u32 bits) { return widen(bits & 0xffff, kHalf); }
double brain_value(u32 bits) { return widen(bits & 0xffff, kBrain); }

// d = a b + c, with a of 16 x k, b of k x 8. The products are exact. Their sum is computed in f64 and rounded
// once to f32; the order and precision of a GPU's sums are not documented.
template <int k, double (*value)(u32)>
void multiply(Warp& w, const Code& c) {
  constexpr int kA = k / 4, kB = k / 8;
  const Ref* const o = w.operands(c);
  const Ref *const d = o, *const a = o + 4, *const b = a + kA, *const addend = b + kB;
  double left[16][k], right[k][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, column = 2 * (lane % 4);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < kA; ++r)
        left[group + 8 * (r % 2)][column + half + 8 * (r / 2)] =
            value(w.row<const u32>(a[r])[lane] >> (16 * half));
      for (int r = 0; r < kB; ++r)
        right[column + half + 8 * r][group] = value(w.row<const u32>(b[r])[lane] >> (16 * half));
    }
  }
  float results[4][32];
  for (int r = 0; r < 4; ++r)
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      double sum = static_cast<double>(w.row<const float>(addend[r])[lane]);
      for (int i = 0; i < k; ++i) sum += left[row][i] * right[i][column];
      results[r][lane] = canonical(static_cast<float>(sum));
    }
  for (int r = 0; r < 4; ++r) w.write(d[r], results[r], kAllLanes);
}
template <int k, double (*value)(u32)>
void run_multiply(Warp& w, const Code& c, u32 mask) {
  w.require_all(c, mask, &multiply<k, value>);
}

// All other shapes and types. Registers hold `packed` neighbouring elements of a row of A, or of a column of
// B; a group of four lanes holds 4 packed of them. Flags: bits 0-5 k, 6 whether there are 16 rows, 7-10 the
// type of A, 11-14 that of B, 15-17 of the results, 18 saturation.
enum MatrixType : u32 { kF16, kBf16, kTf32, kE4m3, kE5m2, kS8, kU8, kF64 };
constexpr std::string_view kMatrixTypes[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64"};
enum MatrixResult : u32 { kToF32, kToF16, kToS32, kToF64 };
constexpr std::string_view kMatrixResults[] = {"f32", "f16", "s32", "f64"};

struct MatrixShape {
  u32 k, rows, a, b, result;
  bool saturates;
  u32 packed() const { return a <= kBf16 ? 2 : a == kTf32 || a == kF64 ? 1 : 4; }
  u32 registers_a() const { return rows / 8 * registers_b(); }
  u32 registers_b() const { return k / (4 * packed()); }
  u32 registers_c() const { return rows / 8 * (result == kToF16 ? 1 : 2); }
};
MatrixShape matrix_shape(u32 flags) {
  return {flags & 63,        (flags & 64) != 0 ? 16u : 8u, (flags >> 7) & 15, (flags >> 11) & 15,
          (flags >> 15) & 7, (flags & (1u << 18)) != 0};
}
double matrix_value(Warp& w, const Ref& r, int lane, u32 element, u32 type) {
  if (type == kF64) return w.row<const double>(r)[lane];
  const u32 word = w.row<const u32>(r)[lane];
  const u32 byte = (word >> (8 * element)) & 0xff;
  switch (type) {
    case kF16:
      return half_value(word >> (16 * element));
    case kBf16:
      return brain_value(word >> (16 * element));
    case kTf32:
      return static_cast<double>(std::bit_cast<float>(word & 0xffffe000u));
    case kE4m3:
      return widen_e4m3(byte);
    case kE5m2:
      return widen(byte, Format{5, 2});
    case kS8:
      return static_cast<double>(static_cast<std::int8_t>(byte));
    default:
      return static_cast<double>(byte);
  }
}
void multiply_any(Warp& w, const Code& c) {
  const MatrixShape s = matrix_shape(c.flags);
  const Ref* const d = w.operands(c);
  const Ref *const a = d + s.registers_c(), *const b = a + s.registers_a(),
                   *const addend = b + s.registers_b();
  double left[16][64], right[64][8], results[4][32];
  for (int lane = 0; lane < 32; ++lane) {
    const u32 group = static_cast<u32>(lane) / 4, first = static_cast<u32>(lane) % 4 * s.packed();
    for (u32 e = 0; e < s.packed(); ++e) {
      for (u32 r = 0; r < s.registers_a(); ++r) {
        const u32 half = s.rows == 16 ? r % 2 : 0, part = s.rows == 16 ? r / 2 : r;
        left[group + 8 * half][first + e + 4 * s.packed() * part] = matrix_value(w, a[r], lane, e, s.a);
      }
      for (u32 r = 0; r < s.registers_b(); ++r)
        right[first + e + 4 * s.packed() * r][group] = matrix_value(w, b[r], lane, e, s.b);
    }
  }
  const u32 count = s.rows / 4;
  for (u32 i = 0; i < count; ++i)
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      double sum = s.result == kToF32   ? static_cast<double>(w.row<const float>(addend[i])[lane])
                   : s.result == kToF16 ? widen(w.row<const u16>(addend[i / 2])[2 * lane + i % 2], kHalf)
                   : s.result == kToS32 ? static_cast<double>(w.row<const i32>(addend[i])[lane])
                                        : w.row<const double>(addend[i])[lane];
      for (u32 x = 0; x < s.k; ++x) sum = std::fma(left[row][x], right[x][column], sum);
      results[i][lane] = sum;
    }
  for (u32 i = 0; i < count; ++i)
    for (u32 lane = 0; lane < 32; ++lane) {
      const double sum = results[i][lane];
      if (s.result == kToF32) {
        w.row<float>(d[i])[lane] = canonical(static_cast<float>(sum));
      } else if (s.result == kToF16) {
        w.row<u16>(d[i / 2])[2 * lane + i % 2] = static_cast<u16>(narrow(sum, kHalf, kNearestEven));
      } else if (s.result == kToS32) {
        auto value = static_cast<i64>(sum);
        if (s.saturates) value = std::clamp(value, -(i64{1} << 31), (i64{1} << 31) - 1);
        w.row<i32>(d[i])[lane] = static_cast<i32>(value);
      } else {
        w.row<double>(d[i])[lane] = sum;
      }
    }
}
void run_multiply_any(Warp& w, const Code& c, u32 mask) { w.require_all(c, mask, &multiply_any); }

void add_shape(Table& t, u32 rows, u32 k, const std::string& types, u32 a, u32 b, u32 result) {
  for (const bool saturates : {false, true}) {
    if (saturates && result != kToS32) continue;
    const u32 flags =
        k | (rows == 16 ? 64u : 0u) | a << 7 | b << 11 | result << 15 | (saturates ? 1u << 18 : 0u);
    const MatrixShape s = matrix_shape(flags);
    const auto vector = [](char letter, u32 n) { return std::string(1, letter) + std::to_string(n); };
    const char in = a == kF64 ? 'l' : 'w', out = result == kToF64 ? 'l' : 'w';
    const std::string sums = vector(out, s.registers_c());
    t["mma.sync.aligned.m" + std::to_string(rows) + "n8k" + std::to_string(k) + ".row.col." +
      (saturates ? "satfinite." : "") + types] = {
        &run_multiply_any, sums + "=" + vector(in, s.registers_a()) + vector(in, s.registers_b()) + sums,
        flags};
  }
}
void add_shapes(Table& t) {
  const auto add = [&](u32 rows, u32 k, u32 a, u32 b, u32 result) {
    const std::string sums(kMatrixResults[result]);
    add_shape(t, rows, k,
              sums + "." + std::string(kMatrixTypes[a]) + "." + std::string(kMatrixTypes[b]) + "." + sums, a,
              b, result);
  };
  for (const u32 k : {8u, 16u}) add(16, k, kF16, kF16, kToF16);
  for (const u32 k : {4u, 8u}) add(16, k, kTf32, kTf32, kToF32);
  add(8, 4, kF64, kF64, kToF64);
  for (const u32 k : {4u, 8u, 16u}) add(16, k, kF64, kF64, kToF64);
  for (const u32 a : {u32{kS8}, u32{kU8}})
    for (const u32 b : {u32{kS8}, u32{kU8}}) {
      add(8, 16, a, b, kToS32);
      for (const u32 k : {16u, 32u}) add(16, k, a, b, kToS32);
    }
  for (const u32 a : {u32{kE4m3}, u32{kE5m2}})
    for (const u32 b : {u32{kE4m3}, u32{kE5m2}})
      for (const u32 result : {u32{kToF32}, u32{kToF16}})
        for (const u32 k : {16u, 32u}) add(16, k, a, b, result);
}

// The inverse of ldmatrix.
template <int count, bool transposed>
void store_matrices(Warp& w, const Code& c) {
  const Ref* const o = w.operands(c);
  u64 address[32];
  const auto space = static_cast<Space>(c.flags & 7);
  w.addresses(space, o[0], c.offset[0], address);
  u16 rows[8 * count][8];
  for (int q = 0; q < count; ++q)
    for (int lane = 0; lane < 32; ++lane) {
      const int first = lane / 4, second = 2 * (lane % 4);
      const u32 value = w.row<const u32>(o[1 + q])[lane];
      for (int half = 0; half < 2; ++half)
        (transposed ? rows[8 * q + second + half][first] : rows[8 * q + first][second + half]) =
            static_cast<u16>(value >> (16 * half));
    }
  for (int lane = 0; lane < 8 * count; ++lane)
    std::memcpy(w.locate(c, lane, space, address[lane], 16, Warp::Access::kWrite), rows[lane], 16);
}
template <int count, bool transposed>
void run_store_matrices(Warp& w, const Code& c, u32 mask) {
  w.require_all(c, mask, &store_matrices<count, transposed>);
}
void transpose_matrix(Warp& w, const Code& c) {
  const Ref* const o = w.operands(c);
  u16 matrix[8][8];
  u32 values[32];
  for (int lane = 0; lane < 32; ++lane)
    for (int half = 0; half < 2; ++half)
      matrix[lane / 4][2 * (lane % 4) + half] = static_cast<u16>(w.row<const u32>(o[1])[lane] >> (16 * half));
  for (int lane = 0; lane < 32; ++lane)
    values[lane] = matrix[2 * (lane % 4)][lane / 4] | u32{matrix[2 * (lane % 4) + 1][lane / 4]} << 16;
  w.write(o[0], values, kAllLanes);
}
void run_transpose_matrix(Warp& w, const Code& c, u32 mask) { w.require_all(c, mask, &transpose_matrix); }

// Lane 8 q + r gives the address of row r of matrix q. Lane l receives two neighbouring elements of row l /
// 4, or of column l / 4.
template <int count, bool transposed>
void load_matrices(Warp& w, const Code& c) {
  const Ref* const o = w.operands(c);
  u64 address[32];
  const auto space = static_cast<Space>(c.flags & 7);
  w.addresses(space, o[count], c.offset[0], address);
  u16 rows[8 * count][8];
  for (int lane = 0; lane < 8 * count; ++lane)
    std::memcpy(rows[lane], w.locate(c, lane, space, address[lane], 16, Warp::Access::kRead), 16);
  for (int q = 0; q < count; ++q) {
    u32 values[32];
    for (int lane = 0; lane < 32; ++lane) {
      const int first = lane / 4, second = 2 * (lane % 4);
      const u16 low = transposed ? rows[8 * q + second][first] : rows[8 * q + first][second];
      const u16 high = transposed ? rows[8 * q + second + 1][first] : rows[8 * q + first][second + 1];
      values[lane] = low | (u32{high} << 16);
    }
    w.write(o[q], values, kAllLanes);
  }
}
template <int count, bool transposed>
void run_load_matrices(Warp& w, const Code& c, u32 mask) {
  w.require_all(c, mask, &load_matrices<count, transposed>);
}

}  // namespace

void add_matrix(Table& t) {
  t["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] = {&run_multiply<16, half_value>, "w4=w4w2w4", 0};
  t["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {&run_multiply<16, brain_value>, "w4=w4w2w4", 0};
  t["mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"] = {&run_multiply<8, half_value>, "w4=w2w1w4", 0};
  t["mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"] = {&run_multiply<8, brain_value>, "w4=w2w1w4", 0};
  add_shapes(t);
  t["movmatrix.sync.aligned.m8n8.trans.b16"] = {&run_transpose_matrix, "w=w", 0};
  for (const std::string space : {"shared", "shared::cta"}) {
    const std::string stores = "stmatrix.sync.aligned.m8n8.", end = "." + space + ".b16";
    const auto in_shared = static_cast<u32>(Space::kShared);
    t[stores + "x1" + end] = {&run_store_matrices<1, false>, "mw1", in_shared};
    t[stores + "x2" + end] = {&run_store_matrices<2, false>, "mw2", in_shared};
    t[stores + "x4" + end] = {&run_store_matrices<4, false>, "mw4", in_shared};
    t[stores + "x1.trans" + end] = {&run_store_matrices<1, true>, "mw1", in_shared};
    t[stores + "x2.trans" + end] = {&run_store_matrices<2, true>, "mw2", in_shared};
    t[stores + "x4.trans" + end] = {&run_store_matrices<4, true>, "mw4", in_shared};
    const std::string name = "ldmatrix.sync.aligned.m8n8.", tail = "." + space + ".b16";
    const auto shared = static_cast<u32>(Space::kShared);
    t[name + "x1" + tail] = {&run_load_matrices<1, false>, "w1=m", shared};
    t[name + "x2" + tail] = {&run_load_matrices<2, false>, "w2=m", shared};
    t[name + "x4" + tail] = {&run_load_matrices<4, false>, "w4=m", shared};
    t[name + "x1.trans" + tail] = {&run_load_matrices<1, true>, "w1=m", shared};
    t[name + "x2.trans" + tail] = {&run_load_matrices<2, true>, "w2=m", shared};
    t[name + "x4.trans" + tail] = {&run_load_matrices<4, true>, "w4=m", shared};
  }
}

}  // namespace tapestry::ptx
