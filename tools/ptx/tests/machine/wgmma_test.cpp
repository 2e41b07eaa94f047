// wgmma: the layouts of operands and fragments, against a derivation from strides and swizzles of tensors,
// and the mistakes that the machine finds.
#include <cmath>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90a\n.address_size 64\n.file 1 \"planted.cu\"\n";

/// What one multiplication is.
struct Case {
  std::string type = "bf16", result = "f32";
  u32 n = 8, element = 2;
  u32 span_a = 0, span_b = 0;  // of swizzling: 0, 32, 64 or 128 bytes
  bool across_a = false, across_b = false, registers = false, accumulate = true;
  int scale_a = 1, scale_b = 1;
};

/// Where an operand's element lies, as a tensor with strides (the canonical layouts of the manual):
/// `contiguous` is the coordinate along the contiguous dimension, `line` the other one.
struct Layout {
  u32 span, element, leading, stride;
  bool across;
  u64 operator()(u32 row, u32 k) const {
    const u32 t = 16 / element;  // elements of a chunk
    u64 at = 0;
    if (!across) {
      // ((8, m), (T, 2)) : ((1T, SBO), (1, LBO)) without swizzle, ((span, SBO), (1, T)) with it
      at = row % 8 * (span == 0 ? 16 : span) + row / 8 * stride + k % t * element +
           k / t * (span == 0 ? leading : 16);
    } else if (span == 0) {
      // ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
      at = row % t * element + row / t * stride + k % 8 * 16 + k / 8 * leading;
    } else {
      // ((T, span / 16, m), (8, k)) : ((1, T, LBO), (span, SBO))
      const u32 wide = span / element;
      at = row % wide * element + row / wide * leading + k % 8 * span + k / 8 * stride;
    }
    // Swizzle<B, 4, 3> with 2^B = span / 16
    const u64 mask = span == 128 ? 0x380 : span == 64 ? 0x180 : span == 32 ? 0x80 : 0;
    return at ^ ((at & mask) >> 3);
  }
};
Layout layout_of(u32 rows, u32 span, u32 element, bool across) {
  Layout l{span, element, 0, 0, across};
  if (!across && span == 0) {
    l.leading = 16 * rows;  // chunks of all rows, then the second chunks
    l.stride = 128;
  } else if (!across) {
    l.stride = 8 * span;
  } else if (span == 0) {
    l.stride = 256;
    l.leading = 128;
  } else {
    l.stride = 8 * span;
    l.leading = 16 * span;
  }
  return l;
}
u64 descriptor(u64 start, const Layout& l) {
  const u64 mode = l.span == 128 ? 1 : l.span == 64 ? 2 : l.span == 32 ? 3 : 0;
  return start >> 4 | u64{l.leading >> 4} << 16 | u64{l.stride >> 4} << 32 | mode << 62;
}

constexpr u32 kImageA = 8192, kImageB = 32768;

std::string list(const std::string& name, u32 count, u32 first = 0) {
  std::string text = "{";
  for (u32 i = 0; i < count; ++i) text += (i ? ", " : "") + name + std::to_string(first + i);
  return text + "}";
}
/// Copies both images into shared memory, loads the accumulators and A from `fragments` (128 words a thread
/// and 4), multiplies, and stores the accumulators.
std::string text(
    const Case& c, const std::string& before = "wgmma.fence.sync.aligned;",
    const std::string& after = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;") {
  const u32 count = c.result == "f16" ? c.n / 4 : c.n / 2;
  std::string loads, stores;
  for (u32 i = 0; i < count; ++i) {
    loads += "ld.global.b32 %d" + std::to_string(i) + ", [%f+" + std::to_string(4 * i) + "];\n";
    stores += "st.global.b32 [%f+" + std::to_string(4 * i) + "], %d" + std::to_string(i) + ";\n";
  }
  const bool half = c.type == "f16" || c.type == "bf16", integer = c.type == "s8" || c.type == "u8";
  std::string operands =
      list("%d", count) + ", " + (c.registers ? "{%a0, %a1, %a2, %a3}" : "%da") + ", %db, %p";
  if (!integer) operands += ", " + std::to_string(c.scale_a) + ", " + std::to_string(c.scale_b);
  if (half && !c.registers) operands += c.across_a ? ", 1" : ", 0";
  if (half) operands += c.across_b ? ", 1" : ", 0";
  const std::string multiply = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(c.n) + "k" +
                               std::to_string(32 / c.element) + "." + c.result + "." + c.type + "." + c.type +
                               " " + operands + ";\n";
  return kHead + R"(
.visible .entry k(.param .u64 images, .param .u64 fragments, .param .u64 da, .param .u64 db, .param .u32 accumulate)
{
.shared .align 1024 .b8 image[40960];
.shared .align 8 .b64 bar;
.reg .pred %p, %p0, %done;
.reg .b32 %t, %i, %d<128>, %a<4>, %x, %y;
.reg .b64 %images, %f, %da, %db, %rd;
ld.param.u64 %images, [images];
ld.param.u64 %f, [fragments];
ld.param.u64 %da, [da];
ld.param.u64 %db, [db];
mov.u64 %rd, image;
shr.u64 %rd, %rd, 4;
add.u64 %da, %da, %rd;
add.u64 %db, %db, %rd;
ld.param.u32 %i, [accumulate];
setp.ne.u32 %p, %i, 0;
mov.u32 %t, %tid.x;
mad.wide.u32 %f, %t, 528, %f;
setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared::cta.b64 [bar], 1;
@%p0 fence.mbarrier_init.release.cluster;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 40960;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [image], [%images], 40960, [bar];
bar.sync 0;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
@!%done bra WAIT;
)" + loads +
         R"(
ld.global.b32 %a0, [%f+512];
ld.global.b32 %a1, [%f+516];
ld.global.b32 %a2, [%f+520];
ld.global.b32 %a3, [%f+524];
.loc 1 42 7
)" + before +
         "\n" + multiply + after + "\n" + stores + "ret;\n}\n";
}

u32 encode(const std::string& type, int value) {
  if (type == "f16") return narrow(value, kHalf, kNearestEven);
  if (type == "bf16") return narrow(value, kBrain, kNearestEven);
  if (type == "tf32")
    return std::bit_cast<u32>(static_cast<float>(value)) | 0x1234;  // the lower bits are ignored
  if (type == "e5m2") return narrow(value, Format{5, 2}, kNearestEven);
  if (type == "e4m3") return narrow(value, Format{4, 3}, kNearestEven);
  return static_cast<u32>(value) & 0xff;
}

struct Launched {
  std::vector<u32> words;
  double reference[64][256];
};
void check(const Case& c) {
  INFO(c.type << " n " << c.n << " spans " << c.span_a << ", " << c.span_b << " across " << c.across_a
              << c.across_b << " registers " << c.registers << " to " << c.result);
  const u32 k = 32 / c.element;
  std::vector<std::uint8_t> images(kImageA + kImageB, 0xcd);
  std::vector<u32> fragments(128 * 132);
  u32 state = 99;
  const auto number = [&] {
    const int value = static_cast<int>((state = state * 1664525 + 1013904223) >> 29);  // exact in all types
    return c.type == "u8" ? value : value - 4;
  };
  static int a[64][32], b[256][32], d[64][256];
  const Layout la = layout_of(64, c.span_a, c.element, c.across_a),
               lb = layout_of(c.n, c.span_b, c.element, c.across_b);
  const auto put = [&](u64 at, u32 bits) {
    for (u32 i = 0; i < c.element; ++i) images[at + i] = static_cast<std::uint8_t>(bits >> (8 * i));
  };
  for (u32 i = 0; i < 64; ++i)
    for (u32 x = 0; x < k; ++x) {
      a[i][x] = number();
      const u32 bits = encode(c.type, a[i][x]);
      put(la(i, x), bits);
      // Fragment of A: warp i / 16; in it, thread 4 (row % 8) + the place of the column in its half.
      const u32 byte = x * c.element, thread = i / 16 * 32 + i % 8 * 4 + byte % 16 / 4,
                word = (i % 16 >= 8 ? 1u : 0u) + (byte >= 16 ? 2u : 0u);
      fragments[thread * 132 + 128 + word] |= bits << (8 * (byte % 4));
    }
  for (u32 j = 0; j < c.n; ++j)
    for (u32 x = 0; x < k; ++x) put(kImageA + lb(j, x), encode(c.type, b[j][x] = number()));
  // Accumulators: of columns 8 g to 8 g + 7, a thread has two neighbours in row 4 (thread / 4) and two 8 rows
  // below.
  const auto place = [&](u32 i, u32 j) {
    const u32 thread = i / 16 * 32 + i % 8 * 4 + j % 8 / 2;
    return std::pair(thread, 4 * (j / 8) + (i % 16 >= 8 ? 2u : 0u) + j % 2);
  };
  for (u32 i = 0; i < 64; ++i)
    for (u32 j = 0; j < c.n; ++j) {
      d[i][j] = number();
      const auto [thread, index] = place(i, j);
      if (c.result == "f16")
        fragments[thread * 132 + index / 2] |= narrow(d[i][j], kHalf, kNearestEven) << (16 * (index % 2));
      else
        fragments[thread * 132 + index] =
            c.result == "s32" ? static_cast<u32>(d[i][j]) : std::bit_cast<u32>(static_cast<float>(d[i][j]));
    }
  Machine m;
  m.load(text(c));
  const u64 in = m.memory().allocate(images.size()), at = m.memory().allocate(4 * fragments.size());
  m.memory().write(in, images.data(), images.size());
  m.memory().write(at, fragments.data(), 4 * fragments.size());
  m.launch("k", {1}, {128}, 0, in, at, descriptor(0, la), descriptor(kImageA, lb), u32{c.accumulate});
  m.memory().read(at, fragments.data(), 4 * fragments.size());
  int wrong = 0;
  for (u32 i = 0; i < 64; ++i)
    for (u32 j = 0; j < c.n; ++j) {
      int sum = c.accumulate ? d[i][j] : 0;
      for (u32 x = 0; x < k; ++x) sum += c.scale_a * a[i][x] * c.scale_b * b[j][x];
      const auto [thread, index] = place(i, j);
      const u32 word = fragments[thread * 132 + (c.result == "f16" ? index / 2 : index)];
      const double found = c.result == "f16"   ? widen(word >> (16 * (index % 2)) & 0xffff, kHalf)
                           : c.result == "s32" ? static_cast<int>(word)
                                               : static_cast<double>(std::bit_cast<float>(word));
      wrong += found != sum;
    }
  CHECK(wrong == 0);
}

void fails(const std::string& code, const std::string& words, u32 threads = 128) {
  for (const u64 seed : {u64{0}, u64{3}}) {
    Machine m;
    m.options().seed = seed;
    m.load(code);
    const std::vector<u32> zeros(20000);
    const u64 in = m.memory().allocate(80000), at = m.memory().allocate(80000);
    m.memory().write(in, zeros.data(), 80000);
    m.memory().write(at, zeros.data(), 80000);
    INFO(code);
    CHECK_THROWS_WITH(m.launch("k", {1}, {threads}, 0, in, at, u64{1} << 32, u64{1} << 32, u32{1}),
                      ContainsSubstring("planted.cu:42") && ContainsSubstring(words));
  }
}

}  // namespace

TEST_CASE("wgmma reads operands in all layouts") {
  for (const u32 span : {0u, 32u, 64u, 128u})
    for (const bool across : {false, true}) {
      Case c;
      c.n = 64;
      c.span_a = span;
      c.across_a = across;
      c.across_b = !across;
      c.span_b = span == 0 ? 128 : span / 2 == 16 ? 0 : span / 2;
      check(c);
      c.type = "f16";
      c.across_b = across;
      check(c);
    }
  // Every n that wgmma allows, with two layouts of B in turns.
  for (u32 n = 8; n <= 256; n += 8) {
    Case c;
    c.n = n;
    c.registers = n % 16 == 0;
    c.span_b = n % 3 == 0 ? 128 : 64;
    check(c);
  }
}

TEST_CASE("wgmma multiplies all types, with signs and without accumulating") {
  for (const std::string type : {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"})
    for (const bool registers : {false, true}) {
      Case c;
      c.type = type;
      c.element = type == "tf32" ? 4 : type[0] == 'f' || type[0] == 'b' ? 2 : 1;
      c.n = 24;
      c.registers = registers;
      c.span_a = 32;
      c.span_b = 128;
      const bool integer = type == "s8" || type == "u8";
      if (integer) c.result = "s32";
      check(c);
      c.accumulate = false;
      if (!integer) {
        c.scale_a = -1;
        check(c);
        c.scale_b = -1;
      }
      check(c);
      if (type == "f16" || type[0] == 'e') {
        c.result = "f16";
        c.accumulate = true;
        check(c);
      }
    }
}

TEST_CASE("mistakes with wgmma are found") {
  Case c;
  const std::string fence = "wgmma.fence.sync.aligned;", commit = "wgmma.commit_group.sync.aligned;",
                    wait = "wgmma.wait_group.sync.aligned 0;";
  fails(text(c, fence, commit), "reads a register that is an accumulator");
  fails(text(c, fence, wait), "reads a register that is an accumulator");  // no commit
  fails(text(c, fence, commit + "wgmma.wait_group.sync.aligned 1;"), "wgmma.wait_group must come before");
  fails(text(c, fence, commit + "mov.b32 %d0, 0;" + wait), "writes a register that is an accumulator");
  fails(text(c, fence, commit + "mov.b32 %x, %d0; add.u32 %y, %x, 1;" + wait), "reads a register");
  fails(text(c, ""), "no wgmma.fence came before");
  fails(text(c, fence + "add.u32 %d1, %d1, 0;"), "accumulator 1 was read by another instruction");
  fails(text(c, fence + "popc.b32 %d1, %t;"), "accumulator 1 was written by another instruction");
  fails(text(c, fence + "add.u32 %x, %d1, 1;"), "accumulator 1 was read by another instruction");
  fails(text(c, fence, commit + "st.shared.u32 [image], %t;" + wait), "is still reading");
  fails(text(c, "st.shared.u32 [image], %t; bar.sync 0;" + fence),
        "executed no fence.proxy.async after that");
  fails(text(c, "bar.sync 0; and.b32 %x, %t, 31; setp.eq.u32 %p0, %x, 9; @%p0 add.u64 %da, %da, 1;" + fence),
        "passes another descriptor than lane 0");
  fails(text(c, "setp.ge.u32 %p0, %t, 64; @%p0 add.u64 %da, %da, 1;" + fence),
        "passes another descriptor than another warp");
  fails(text(c, "setp.ge.u32 %p0, %t, 96; @%p0 bra END;" + fence,
             commit + wait + "bra GO; END: " + fence + " GO:"),
        "waits for the other warps of its warpgroup");
  fails(text(c), "has 128 threads, but the block has fewer", 96);
  c.registers = true;
  fails(text(c, fence + "popc.b32 %a2, %t;"), "register 2 of matrix A was written");
  fails(text(c, fence, commit + "mov.b32 %a2, 0;" + wait), "writes a register that is matrix A");
  // A chain on the same accumulators needs no fence; a copy of accumulators is only a copy of names.
  Machine m;
  m.load(text(c, fence, commit + "mov.b32 %x, %d0;" + wait + "add.u32 %y, %x, 1;"));
  const std::vector<u32> zeros(20000);
  const u64 in = m.memory().allocate(80000);
  m.memory().write(in, zeros.data(), 80000);
  m.launch("k", {1}, {128}, 0, in, in, u64{1} << 32, u64{1} << 32, u32{1});
  for (const char* wrong : {"m64n12k16.f32.bf16.bf16", "m64n264k16.f32.bf16.bf16", "m64n8k8.f32.bf16.bf16",
                            "m64n8k16.f16.bf16.bf16", "m64n8k16.f32.bf16.f16", "m64n8k32.f32.s8.s8"}) {
    Machine refusing;
    refusing.load(kHead +
                  ".visible .entry k()\n{\n.reg .b32 %d<4>;\n.reg .b64 %da;\nwgmma.mma_async.sync.aligned." +
                  wrong + " {%d0, %d1, %d2, %d3}, %da, %da, 1, 1, 1, 0, 0;\nret;\n}\n");
    CHECK_THROWS_WITH(refusing.program("k"), ContainsSubstring("unknown instruction 'wgmma.mma_async"));
  }
}
