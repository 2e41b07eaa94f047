// mma, ldmatrix and cp.async. The references multiply whole matrices; here each element finds its lane and
// register, while the machine looks up the element of each lane and register.
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tests/support/catch.h"

using namespace tapestry::ptx;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90\n.address_size 64\n";

// Each lane loads 10 words, multiplies and stores 4.
std::string multiply(const std::string& type) {
  return kHead + R"(
.visible .entry k(.param .u64 in, .param .u64 out)
{
.reg .b32 %r<8>;
.reg .f32 %f<9>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r7, %laneid;
mad.wide.u32 %rd1, %r7, 48, %rd1;
mad.wide.u32 %rd2, %r7, 16, %rd2;
ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%rd1];
ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1+16];
ld.global.v2.u32 {%r4, %r5}, [%rd1+32];
mma.sync.aligned.m16n8k16.row.col.f32.)" +
         type + "." + type + R"(.f32 {%f4,%f5,%f6,%f7}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};
st.global.v4.f32 [%rd2], {%f4, %f5, %f6, %f7};
ret;
}
)";
}

// The manual's tables, from the element to its place.
struct Place {
  int lane, index;
};
Place place_a(int row, int column) {
  return {row % 8 * 4 + column % 8 / 2, column % 2 + (row / 8) * 2 + (column / 8) * 4};
}
Place place_b(int row, int column) { return {column * 4 + row % 8 / 2, row % 2 + row / 8 * 2}; }
Place place_c(int row, int column) { return {row % 8 * 4 + column / 2, column % 2 + row / 8 * 2}; }

}  // namespace

TEST_CASE("mma.m16n8k16 multiplies matrices whose elements are where the manual says") {
  for (const bool brain : {false, true}) {
    const Format format = brain ? kBrain : kHalf;
    double a[16][16], b[16][8], c[16][8];
    struct Lane {
      u16 a[8];
      float c[4];
      u16 b[4];
      u32 unused[2];
    } lanes[32] = {};
    u32 state = 7;
    const auto number = [&] {
      return static_cast<double>(static_cast<int>((state = state * 1664525 + 1013904223) >> 24) - 128) / 16;
    };
    for (int i = 0; i < 16; ++i)
      for (int k = 0; k < 16; ++k) {
        a[i][k] = number();
        const Place p = place_a(i, k);
        lanes[p.lane].a[p.index] = static_cast<u16>(narrow(a[i][k], format, kNearestEven));
      }
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) {
        b[k][j] = number();
        const Place p = place_b(k, j);
        lanes[p.lane].b[p.index] = static_cast<u16>(narrow(b[k][j], format, kNearestEven));
      }
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        c[i][j] = number();
        const Place p = place_c(i, j);
        lanes[p.lane].c[p.index] = static_cast<float>(c[i][j]);
      }
    static_assert(sizeof(Lane) == 48);
    Machine m;
    m.load(multiply(brain ? "bf16" : "f16"));
    const u64 in = m.memory().allocate(sizeof lanes), out = m.memory().allocate(512);
    m.memory().write(in, lanes, sizeof lanes);
    m.launch("k", {1}, {32}, 0, in, out);
    float found[32][4];
    m.memory().read(out, found, sizeof found);
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        double sum = c[i][j];
        for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
        const Place p = place_c(i, j);
        CHECK(found[p.lane][p.index] == static_cast<float>(sum));
      }
  }
}

TEST_CASE("ldmatrix gives each lane two neighbours of a row, or of a column") {
  const auto text = [](const std::string& trans) {
    return kHead + R"(
.visible .entry k(.param .u64 in, .param .u64 out)
{
.shared .align 16 .b8 tile[512];
.reg .b32 %r<9>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r0, %laneid;
mul.lo.u32 %r1, %r0, 16;
mov.u32 %r2, tile;
add.u32 %r2, %r2, %r1;
mad.wide.u32 %rd1, %r0, 16, %rd1;
mad.wide.u32 %rd2, %r0, 16, %rd2;
cp.async.cg.shared.global [%r2], [%rd1], 16;
cp.async.commit_group;
cp.async.wait_group 0;
bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4)" +
           trans + R"(.shared.b16 {%r3,%r4,%r5,%r6}, [%r2];
st.global.v4.u32 [%rd2], {%r3,%r4,%r5,%r6};
ret;
}
)";
  };
  for (const bool transposed : {false, true}) {
    Machine m;
    m.load(text(transposed ? ".trans" : ""));
    u16 in[4][8][8], out[32][4][2];
    for (int q = 0; q < 4; ++q)
      for (int r = 0; r < 8; ++r)
        for (int c = 0; c < 8; ++c) in[q][r][c] = static_cast<u16>(100 * q + 10 * r + c);
    const u64 from = m.memory().allocate(512), to = m.memory().allocate(512);
    m.memory().write(from, in, 512);
    m.launch("k", {1}, {32}, 0, from, to);
    m.memory().read(to, out, 512);
    for (int q = 0; q < 4; ++q)
      for (int r = 0; r < 8; ++r)
        for (int c = 0; c < 8; ++c) {
          const int row = transposed ? c : r, column = transposed ? r : c;
          CHECK(out[4 * row + column / 2][q][column % 2] == in[q][r][c]);
        }
  }
}

TEST_CASE("cp.async completes groups at their waits, fills with zeros, and reads sources late") {
  Machine m;
  m.load(kHead + R"(
.visible .entry k(.param .u64 in, .param .u64 out)
{
.shared .align 16 .b8 tile[32];
.reg .b32 %r<9>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r0, tile;
cp.async.ca.shared.global [%r0], [%rd1], 4;
cp.async.commit_group;
cp.async.ca.shared.global [%r0+16], [%rd1+8], 8, 4;
cp.async.commit_group;
cp.async.wait_group 1;
ld.shared.u32 %r2, [%r0];
mov.u32 %r1, 99;
st.global.u32 [%rd1+8], %r1;
cp.async.wait_all;
ld.shared.v2.u32 {%r3, %r4}, [%r0+16];
st.global.v2.u32 [%rd2], {%r2, %r3};
st.global.u32 [%rd2+8], %r4;
ret;
}
)");
  const u32 values[4] = {5, 6, 7, 8};
  const u64 in = m.memory().allocate(16);
  m.memory().write(in, values, 16);
  alignas(8) u32 found[4] = {};
  m.memory().add(found, sizeof found, false);
  const auto out = reinterpret_cast<u64>(found);
  m.launch("k", {1}, {1}, 0, in, out);
  CHECK(found[0] == 5);
  CHECK(found[1] == 99);  // the source changed before the wait for its group
  CHECK(found[2] == 0);   // 4 of the 8 bytes have no source
  CHECK(m.memory().uninitialised(out, 16) == 4);
  m.memory().remove(out);
  // An address for 8 bytes must be a multiple of 8.
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, in + 4, in), ContainsSubstring("no multiple of 8"));
}
