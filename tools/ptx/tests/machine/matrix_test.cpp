// mma, ldmatrix and cp.async. The references multiply whole matrices; here each element finds its lane and
// register, while the machine looks up the element of each lane and register.
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/tests/catch.h"

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

namespace {

// Fragments of the rarer shapes, from the element to its place: a lane holds `packed` neighbours along k, and
// four lanes hold 4 packed of them.
struct Shape {
  const char* name;
  const char* type;
  const char* result;
  int rows, k, bytes;
};

u64 encode(const std::string& type, int value) {
  if (type == "f16") return narrow(value, kHalf, kNearestEven);
  if (type == "tf32")
    return std::bit_cast<u32>(static_cast<float>(value)) | 0x0fff;  // the low bits are ignored
  if (type == "f64") return std::bit_cast<u64>(static_cast<double>(value));
  if (type == "e5m2") return narrow(value, Format{5, 2}, kNearestEven);
  if (type == "e4m3") return narrow(value, Format{4, 3}, kNearestEven);
  return static_cast<u32>(value) & 0xff;
}

void check(const Shape& s) {
  INFO(s.name << "." << s.type << " to " << s.result);
  const std::string type = s.type, result = s.result;
  const int word = s.bytes == 8 ? 8 : 4, packed = word / s.bytes, parts = s.k / (4 * packed),
            rows8 = s.rows / 8;
  const int out = result == "f64" ? 8 : 4, sums = rows8 * (result == "f16" ? 1 : 2);
  // Of each lane: A, B, C in words of 8 bytes.
  std::vector<u64> words(32 * 16);
  u32 state = 3;
  const auto number = [&] {
    const int value = static_cast<int>((state = state * 1664525 + 1013904223) >> 29);
    return type == "u8" ? value : value - 4;
  };
  int a[16][64], b[64][8], c[16][8];
  const auto at = [&](int lane, int i) -> u64& { return words[static_cast<std::size_t>(16 * lane + i)]; };
  for (int i = 0; i < s.rows; ++i)
    for (int k = 0; k < s.k; ++k) {
      a[i][k] = number();
      const int lane = i % 8 * 4 + k % (4 * packed) / packed, reg = k / (4 * packed) * rows8 + i / 8;
      at(lane, reg) |= encode(type, a[i][k]) << (8 * s.bytes * (k % packed) % 64);
    }
  for (int k = 0; k < s.k; ++k)
    for (int j = 0; j < 8; ++j) {
      b[k][j] = number();
      const int lane = j * 4 + k % (4 * packed) / packed;
      at(lane, rows8 * parts + k / (4 * packed)) |= encode(type, b[k][j])
                                                    << (8 * s.bytes * (k % packed) % 64);
    }
  const int first = (rows8 + 1) * parts;
  for (int i = 0; i < s.rows; ++i)
    for (int j = 0; j < 8; ++j) {
      c[i][j] = number();
      const int lane = i % 8 * 4 + j / 2;
      if (result == "f16") at(lane, first + i / 8) |= encode("f16", c[i][j]) << (16 * (j % 2));
      else
        at(lane, first + i / 8 * 2 + j % 2) = result == "f64" ? encode("f64", c[i][j])
                                              : result == "s32"
                                                  ? static_cast<u32>(c[i][j])
                                                  : std::bit_cast<u32>(static_cast<float>(c[i][j]));
    }
  std::string text =
      kHead +
      ".visible .entry k(.param .u64 p)\n{\n.reg .b64 %p, %q;\n.reg .b32 %l;\n.reg .b32 %w<16>;\n"
      ".reg .b64 %x<16>;\nld.param.u64 %p, [p];\nmov.u32 %l, %laneid;\nmad.wide.u32 %p, %l, 128, %p;\n";
  const auto name = [&](int i) {
    return std::string(i < first ? (word == 8 ? "%x" : "%w") : out == 8 ? "%x" : "%w") + std::to_string(i);
  };
  for (int i = 0; i < first + sums; ++i)
    text += "ld.global.b" + std::string(name(i)[1] == 'x' ? "64 " : "32 ") + name(i) + ", [%p+" +
            std::to_string(8 * i) + "];\n";
  const auto list = [&](int begin, int count) {
    std::string v = "{";
    for (int i = 0; i < count; ++i) v += (i ? ", " : "") + name(begin + i);
    return v + "}";
  };
  text += "mma.sync.aligned." + std::string(s.name) + ".row.col." + result + "." + type + "." + type + "." +
          result + " " + list(first, sums) + ", " + list(0, rows8 * parts) + ", " +
          list(rows8 * parts, parts) + ", " + list(first, sums) + ";\n";
  for (int i = first; i < first + sums; ++i)
    text += "st.global.b" + std::string(out == 8 ? "64" : "32") + " [%p+" + std::to_string(8 * i) + "], " +
            name(i) + ";\n";
  Machine m;
  m.load(text + "ret;\n}\n");
  const u64 memory = m.memory().allocate(8 * words.size());
  m.memory().write(memory, words.data(), 8 * words.size());
  m.launch("k", {1}, {32}, 0, memory);
  m.memory().read(memory, words.data(), 8 * words.size());
  int wrong = 0;
  for (int i = 0; i < s.rows; ++i)
    for (int j = 0; j < 8; ++j) {
      int sum = c[i][j];
      for (int k = 0; k < s.k; ++k) sum += a[i][k] * b[k][j];
      const int lane = i % 8 * 4 + j / 2;
      const u64 bits = at(lane, first + (result == "f16" ? i / 8 : i / 8 * 2 + j % 2));
      const double found = result == "f16"   ? widen(bits >> (16 * (j % 2)) & 0xffff, kHalf)
                           : result == "f64" ? std::bit_cast<double>(bits)
                           : result == "s32"
                               ? static_cast<std::int32_t>(bits)
                               : static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits)));
      wrong += found != sum;
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("mma multiplies in all shapes and types") {
  const Shape shapes[] = {{"m16n8k8", "f16", "f16", 16, 8, 2},    {"m16n8k16", "f16", "f16", 16, 16, 2},
                          {"m16n8k4", "tf32", "f32", 16, 4, 4},   {"m16n8k8", "tf32", "f32", 16, 8, 4},
                          {"m8n8k4", "f64", "f64", 8, 4, 8},      {"m16n8k4", "f64", "f64", 16, 4, 8},
                          {"m16n8k8", "f64", "f64", 16, 8, 8},    {"m8n8k16", "s8", "s32", 8, 16, 1},
                          {"m16n8k16", "u8", "s32", 16, 16, 1},   {"m16n8k32", "s8", "s32", 16, 32, 1},
                          {"m16n8k32", "e4m3", "f32", 16, 32, 1}, {"m16n8k32", "e5m2", "f32", 16, 32, 1},
                          {"m16n8k16", "e4m3", "f16", 16, 16, 1}};
  for (const Shape& s : shapes) check(s);
}

TEST_CASE("stmatrix is the inverse of ldmatrix, and movmatrix transposes") {
  for (const std::string trans : {"", ".trans"}) {
    Machine m;
    m.load(kHead + R"(
.visible .entry k(.param .u64 p)
{
.shared .align 16 .b8 tile[512];
.reg .b32 %r<16>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [p];
mov.u32 %r0, %laneid;
mul.lo.u32 %r1, %r0, 16;
mov.u32 %r2, tile;
add.u32 %r2, %r2, %r1;
mad.wide.u32 %rd1, %r0, 32, %rd1;
ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%rd1];
stmatrix.sync.aligned.m8n8.x4)" +
           trans + R"(.shared.b16 [%r2], {%r3,%r4,%r5,%r6};
bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4)" +
           trans + R"(.shared.b16 {%r7,%r8,%r9,%r10}, [%r2];
ld.shared.u32 %r10, [%r2];
movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r3;
movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r9;
st.global.v4.u32 [%rd1+16], {%r7,%r8,%r9,%r10};
ret;
}
)");
    std::vector<u32> words(256);
    for (u32 i = 0; i < 256; ++i) words[i] = i * 0x9e3779b9u;
    const u64 p = m.memory().allocate(1024);
    m.memory().write(p, words.data(), 1024);
    m.launch("k", {1}, {32}, 0, p);
    std::vector<u32> found(256);
    m.memory().read(p, found.data(), 1024);
    for (u32 lane = 0; lane < 32; ++lane) {
      CHECK(found[8 * lane + 4] == words[8 * lane]);
      CHECK(found[8 * lane + 5] == words[8 * lane + 1]);
      CHECK(found[8 * lane + 6] == words[8 * lane]);
      // Row lane % 8 of matrix lane / 8 begins with the elements of its first lane; transposed, with a
      // column.
      const u32 q = lane / 8, r = lane % 8;
      const auto element = [&](u32 row, u32 column) {
        return words[8 * (4 * row + column / 2) + q] >> (16 * (column % 2)) & 0xffff;
      };
      CHECK(found[8 * lane + 7] ==
            (trans.empty() ? element(r, 0) | element(r, 1) << 16 : element(0, r) | element(1, r) << 16));
    }
  }
}
