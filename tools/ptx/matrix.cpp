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

// Lane 8 q + r gives the address of row r of matrix q. Lane l receives two neighbouring elements of row l /
// 4, or of column l / 4.
template <int count, bool transposed>
void load_matrices(Warp& w, const Code& c) {
  const Ref* const o = w.operands(c);
  u64 address[32];
  w.addresses(o[count], c.offset[0], address);
  u16 rows[8 * count][8];
  for (int lane = 0; lane < 8 * count; ++lane)
    std::memcpy(rows[lane],
                w.locate(c, lane, static_cast<Space>(c.flags & 7), address[lane], 16, Warp::Access::kRead),
                16);
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
  for (const std::string space : {"shared", "shared::cta"}) {
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
