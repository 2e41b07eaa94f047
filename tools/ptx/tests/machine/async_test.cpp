// mbarrier, bulk copies and tensor copies: what they do, and the mistakes that the machine finds. The places
// of elements in shared memory are derived from the drawings of the PTX manual, not from the machine's
// formulas.
#include <numeric>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tensor_map.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90a\n.address_size 64\n.file 1 \"planted.cu\"\n";

/// A kernel of one parameter, the address of 4 KiB of words: 0, 1, 2, ... Errors are in line 42.
std::string text(const std::string& code) {
  return kHead + R"(
.visible .entry k(.param .u64 p)
{
.shared .align 128 .b8 tile[2048];
.shared .align 8 .b64 bar;
.shared .align 8 .b64 other;
.reg .pred %p<9>, %done;
.reg .b32 %r<20>, %t;
.reg .b64 %rd<20>;
ld.param.u64 %rd0, [p];
mov.u32 %t, %tid.x;
setp.eq.u32 %p0, %t, 0;
.loc 1 42 7
)" + code +
         "\nret;\n}\n";
}
std::vector<u32> run(const std::string& code, u64 seed = 0, Dim block = {32}, bool races = true) {
  Machine m;
  m.options().check_races = races;
  m.options().seed = seed;
  m.options().max_instructions = 1000000;
  m.load(text(code));
  std::vector<u32> words(1024);
  std::iota(words.begin(), words.end(), 0u);
  const u64 p = m.memory().allocate(4096);
  m.memory().write(p, words.data(), 4096);
  m.launch("k", {1}, block, 0, p);
  m.memory().read(p, words.data(), 4096);
  return words;
}
void fails(const std::string& code, const std::string& words, Dim block = {32}) {
  for (const u64 seed : {u64{0}, u64{7}}) {
    INFO(code << "\nseed " << seed);
    CHECK_THROWS_WITH(run(code, seed, block, false),
                      ContainsSubstring("planted.cu:42") && ContainsSubstring(words));
  }
}

// One thread initialises `bar` for one arrival.
const std::string kInit = R"(
@%p0 mbarrier.init.shared::cta.b64 [bar], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
)";
const std::string kWait = R"(
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
@!%done bra WAIT;
)";
// Thread 0 copies 256 bytes into the tile and expects `expected`.
std::string load(const std::string& expected) {
  return "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], " + expected +
         ";\n@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0], 256, "
         "[bar];\n";
}
const std::string kDouble = R"(
shl.b32 %r1, %t, 2;
mov.u32 %r2, tile;
add.u32 %r2, %r2, %r1;
ld.shared.u32 %r3, [%r2];
add.u32 %r3, %r3, %r3;
mul.wide.u32 %rd1, %t, 4;
add.s64 %rd1, %rd0, %rd1;
st.global.u32 [%rd1], %r3;
)";

}  // namespace

TEST_CASE("an mbarrier's phase completes with its last arrival and its last expected byte") {
  for (const u64 seed : {u64{0}, u64{1}, u64{2}, u64{3}}) {
    const std::vector<u32> loaded = run(kInit + load("256") + kWait + kDouble, seed);
    for (u32 i = 0; i < 32; ++i) CHECK(loaded[i] == 2 * i);
    // 64 threads arrive; the state of thread 0 belongs to the phase that it waits for. One thread leaves with
    // arrive_drop, so that the second phase needs 63 arrivals.
    const std::vector<u32> counted = run(R"(
@%p0 mbarrier.init.shared.b64 [bar], 64;
bar.sync 0;
setp.eq.u32 %p1, %t, 5;
@%p1 mbarrier.arrive_drop.shared.b64 %rd1, [bar];
@!%p1 mbarrier.arrive.shared.b64 %rd1, [bar];
A: mbarrier.test_wait.shared.b64 %done, [bar], %rd1;
@!%done bra A;
@!%p0 bra B;
mbarrier.arrive.shared::cta.b64 %rd2, [bar], 3;
mbarrier.pending_count.b64 %r1, %rd2;
st.global.u32 [%rd0], %r1;
mbarrier.arrive.noComplete.shared.b64 %rd2, [bar], 59;
mbarrier.pending_count.b64 %r1, %rd2;
st.global.u32 [%rd0+4], %r1;
mbarrier.test_wait.parity.shared.b64 %done, [bar], 1;
selp.u32 %r1, 1, 0, %done;
st.global.u32 [%rd0+8], %r1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 12;
mbarrier.arrive.shared::cta.b64 _, [bar];
mbarrier.test_wait.parity.shared.b64 %done, [bar], 1;
selp.u32 %r1, 1, 0, %done;
st.global.u32 [%rd0+12], %r1;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 12;
B: mbarrier.try_wait.parity.shared.b64 %done, [bar], 1, 1000;
@!%done bra B;
bar.sync 0;
@%p0 mbarrier.inval.shared.b64 [bar];
@%p0 mbarrier.init.shared.b64 [bar], 7;
)",
                                         seed, {64});
    CHECK(counted[0] == 63);
    CHECK(counted[1] == 60);
    CHECK(counted[2] == 0);
    CHECK(counted[3] == 0);
  }
}

TEST_CASE("mistakes with mbarriers are found") {
  fails("mbarrier.arrive.shared.b64 %rd1, [bar];", "no mbarrier was initialised at");
  fails(kInit + "mbarrier.arrive.shared.b64 %rd1, [other];", "there are mbarriers at");
  fails("mbarrier.init.shared.b64 [bar+4], 1;", "must be a multiple of 8");
  fails("mbarrier.init.shared.b64 [bar], 0;", "an mbarrier of 0 arrivals");
  fails(kInit + "@%p0 mbarrier.init.shared.b64 [bar], 1;", "there is an mbarrier at");
  fails(kInit + "@%p0 st.shared.u32 [bar], 5; @%p0 mbarrier.arrive.shared.b64 %rd1, [bar];",
        "was overwritten");
  fails(kInit + "@%p0 mbarrier.arrive.shared.b64 %rd1, [bar], 2;", "2 arrivals at");
  fails(kInit + "@%p0 mbarrier.arrive.noComplete.shared.b64 %rd1, [bar], 1;", ".noComplete excludes");
  fails(kInit + kWait, "nothing can complete its phase 0: 1 of 1 arrivals are missing");
  fails(kInit +
            "@%p0 mbarrier.arrive.shared.b64 %rd1, [bar]; @%p0 mbarrier.arrive.shared.b64 %rd2, [bar];"
            "@%p0 mbarrier.arrive.shared.b64 %rd2, [bar]; @!%p0 bra E;"
            "mbarrier.test_wait.shared.b64 %done, [bar], %rd1; E:",
        "waits with a state of phase 0");
  fails(kInit + "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048576;", "tx-count");
}

TEST_CASE("mistakes with bulk copies are found") {
  fails(kInit + load("256") + kDouble, "no wait for its mbarrier came before");
  fails(kInit + load("512") + kWait + kDouble, "256 bytes were expected that no copy brings");
  fails(kInit + load("128") + kWait + kDouble, "copies brought 128 bytes more than expected");
  // The first copy completes the phase; the second does not belong to it.
  fails(kInit + load("256") +
            "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+256], [%rd0], 256, "
            "[bar];" +
            kWait,
        "256 bytes too few");
  fails("@%p0 mbarrier.init.shared::cta.b64 [bar], 1;\nbar.sync 0;" + load("256") + kWait,
        "was initialised at planted.cu:42, but its thread did not make this visible to the async proxy");
  fails(
      kInit +
          "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0], 24, [bar];",
      "is no multiple of 16");
  fails(kInit +
            "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0+8], 16, "
            "[bar];",
        "is no multiple of 16");
  fails(
      kInit +
          "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0+4000], 256, "
          "[bar];",
      "160 bytes over the end of an allocation of 4096 bytes");
  fails(kInit + load("256") + "@%p0 st.shared.u32 [tile+8], 1;", "is still writing");
  fails(kInit + load("256"), "the block ended while this operation was still using its shared memory");
  // Stores read shared memory until a wait; threads write it through another proxy.
  const std::string
      fill = "shl.b32 %r1, %t, 2;\nmov.u32 %r2, tile;\nadd.u32 %r2, %r2, %r1;\nst.shared.u32 [%r2], %t;\n",
      fence = "fence.proxy.async.shared::cta;\nbar.sync 0;\n",
      store =
          "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [tile], 128;\n"
          "@%p0 cp.async.bulk.commit_group;\n",
      wait = "@%p0 cp.async.bulk.wait_group.read 0;\nbar.sync 0;\n";
  fails(fill + "bar.sync 0;\n" + store + wait, "executed no fence.proxy.async after that");
  fails(fill + "bar.sync 0;\n@%p0 fence.proxy.async;" + store + wait, "thread (1, 0, 0) wrote it");
  fails(fill + fence + store + "bar.sync 0;\n" + fill,
        "is still reading: no cp.async.bulk.wait_group came before");
  fails(fill + fence + store, "the block ended before this copy had read its shared memory");
  fails("@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [tile], 128;", "was never written");
  const std::vector<u32> stored = run(fill + fence + store + wait + fill);
  CHECK(stored[31] == 31);
  // A reduction adds to what is there: 0, 1, 2, ...
  const std::vector<u32> added =
      run(fill + fence +
          "@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], "
          "[tile], 128;\n@%p0 cp.async.bulk.commit_group;\n" +
          "@%p0 cp.async.bulk.wait_group 0;\n@%p0 ld.global.u32 %r5, [%rd0+12];\n"
          "@%p0 st.global.u32 [%rd0+128], %r5;\n");
  for (u32 i = 0; i < 32; ++i) CHECK(added[i] == 2 * i);
  CHECK(added[32] == 6);
  // Without the wait, a read may come before the write: this machine writes as late as it may.
  const std::string early =
      fill + fence + store + wait + "@%p0 ld.global.u32 %r5, [%rd0+4]; @%p0 st.global.u32 [%rd0+128], %r5;";
  CHECK(run(early, 0, {32}, false)[32] == 1);
  CHECK_THROWS_WITH(run(early), ContainsSubstring("race: reads 4 bytes of global memory"));
}

TEST_CASE("cp.async.mbarrier.arrive arrives when the copies of its thread are complete") {
  for (const std::string kind : {"", ".noinc"}) {
    const u32 count = kind.empty() ? 33 : 32 + 1;
    const std::string code = "@%p0 mbarrier.init.shared::cta.b64 [bar], " + std::to_string(count) + R"(;
bar.sync 0;
shl.b32 %r1, %t, 2;
mov.u32 %r2, tile;
add.u32 %r2, %r2, %r1;
mul.wide.u32 %rd1, %t, 4;
add.s64 %rd1, %rd0, %rd1;
cp.async.ca.shared.global [%r2], [%rd1], 4;
cp.async.mbarrier.arrive)" + kind +
                             ".shared::cta.b64 [bar];\n" +
                             (kind.empty() ? "mbarrier.arrive.shared.b64 _, [bar];\n" : "") +
                             "@%p0 mbarrier.arrive.shared.b64 _, [bar];\n";
    for (const u64 seed : {u64{0}, u64{1}}) {
      const std::vector<u32> found = run(code + kWait + kDouble, seed);
      for (u32 i = 0; i < 32; ++i) CHECK(found[i] == 2 * i);
    }
    fails(code + kDouble, "which a cp.async is still writing");
  }
}

TEST_CASE("one lane is elected, setmaxnreg is checked, and a cluster has one block") {
  for (const u64 seed : {u64{0}, u64{5}}) {
    const std::vector<u32> elected = run(R"(
elect.sync %r1|%p1, -1;
@%p1 st.global.u32 [%rd0+128], %t;
@%p1 st.global.u32 [%rd0+132], %r1;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
mov.u32 %r2, %cluster_nctarank;
mapa.shared::cluster.u32 %r3, tile, 0;
@%p1 st.shared::cluster.u32 [%r3], %r2;
bar.sync 0;
@%p0 ld.shared.u32 %r4, [tile];
@%p0 st.global.u32 [%rd0], %r4;
)",
                                         seed);
    CHECK(elected[32] == elected[33]);
    CHECK(elected[32] < 32);
    CHECK(elected[0] == 1);
  }
  run("setp.ge.u32 %p1, %t, 128; @%p1 bra C; setmaxnreg.dec.sync.aligned.u32 24; bra E;"
      "C: setmaxnreg.inc.sync.aligned.u32 240; E:",
      3, {384});
  fails("setmaxnreg.inc.sync.aligned.u32 250;", "must be a multiple of 8", {128});
  fails("setmaxnreg.inc.sync.aligned.u32 240;", "more than the block has", {384});
  fails("mapa.shared::cluster.u32 %r3, tile, 1;", "which has one block");
  fails("barrier.cluster.wait.aligned;", "waits without barrier.cluster.arrive");
}

// ---- tensor copies ----

namespace {

struct Tensor {
  TensorMap map;
  std::vector<std::uint8_t> bytes;
};

/// Loads a box into shared memory and copies the shared memory as it is to `out`; or the other way round.
std::string tensor_text(u32 rank, bool load) {
  std::string coordinates, parameters, reads;
  for (u32 d = 0; d < rank; ++d) {
    parameters += ", .param .u32 c" + std::to_string(d);
    reads += "ld.param.u32 %c" + std::to_string(d) + ", [c" + std::to_string(d) + "];\n";
    coordinates += (d ? ", %c" : "%c") + std::to_string(d);
  }
  const std::string dim = std::to_string(rank) + "d", box = "[%map, {" + coordinates + "}]";
  const std::string body = load ? R"(mbarrier.init.shared::cta.b64 [bar], 1;
fence.proxy.async;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], %n;
cp.async.bulk.tensor.)" + dim + ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], " +
                                      box + R"(, [bar];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
@!%done bra WAIT;
cp.async.bulk.global.shared::cta.bulk_group [%out], [tile], %n;
)"
                                : R"(mbarrier.init.shared::cta.b64 [bar], 1;
fence.proxy.async;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], %n;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%out], %n, [bar];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0;
@!%done bra WAIT;
cp.async.bulk.tensor.)" + dim + ".global.shared::cta.tile.bulk_group " +
                                      box + ", [tile];\n";
  return kHead + ".visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 n" +
         parameters + R"()
{
.shared .align 1024 .b8 tile[32768];
.shared .align 8 .b64 bar;
.reg .pred %done;
.reg .b32 %n, %c<5>;
.reg .b64 %map, %out;
ld.param.u64 %out, [out];
ld.param.u32 %n, [n];
)" + reads +
         R"(mov.b64 %map, map;
cvta.param.u64 %map, %map;
.loc 1 42 7
prefetch.tensormap [%map];
cp.async.bulk.prefetch.tensor.)" +
         dim + ".L2.global.tile " + box + ";\n" + body +
         "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nret;\n}\n";
}

/// Runs tensor_text on a tensor of random bytes; returns the tensor before, after, and the image of the box.
struct Result {
  std::vector<std::uint8_t> before, after, image;
};
Result copy(TensorMap map, const std::vector<int>& at, bool load, u64 bytes) {
  Machine m;
  m.load(tensor_text(map.rank, load));
  Result r;
  const u64 n = map.box_bytes();
  r.before.resize(bytes);
  r.image.resize(n);
  u32 state = 12345;
  for (auto* list : {&r.before, &r.image})
    for (auto& b : *list) b = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  map.address = m.memory().allocate(bytes);
  const u64 out = m.memory().allocate(n);
  m.memory().write(map.address, r.before.data(), bytes);
  if (!load) m.memory().write(out, r.image.data(), n);
  struct alignas(64) {
    std::uint8_t bytes[128];
  } encoded;
  encode_tensor_map(map, encoded.bytes);
  const auto words = static_cast<u32>(n);
  const auto launch = [&](auto... c) { m.launch("k", {1}, {1}, 0, encoded, out, words, c...); };
  if (at.size() == 1) launch(at[0]);
  else if (at.size() == 2) launch(at[0], at[1]);
  else if (at.size() == 3) launch(at[0], at[1], at[2]);
  else launch(at[0], at[1], at[2], at[3], at[4]);
  m.memory().read(out, r.image.data(), n);
  r.after.resize(bytes);
  m.memory().read(map.address, r.after.data(), bytes);
  return r;
}
/// For each element of the box, in the order of rows in shared memory: calls f(its number, the offset of the
/// element in the tensor or -1 if it lies outside).
template <class F>
void each_element(const TensorMap& map, const std::vector<int>& at, F f) {
  u32 index[5] = {}, number = 0;
  for (;;) {
    long long offset = 0;
    bool inside = true;
    for (u32 d = 0; d < map.rank; ++d) {
      const long long x = at[d] + static_cast<long long>(index[d]) * (d == 0 ? 1 : map.element_strides[d]);
      inside = inside && x >= 0 && x < static_cast<long long>(map.sizes[d]);
      offset += x * static_cast<long long>(d == 0 ? map.element_bytes() : map.strides[d - 1]);
    }
    f(number++, inside ? offset : -1);
    u32 d = 0;
    for (; d < map.rank; ++d) {
      const u32 step = d == 0 ? 1 : map.element_strides[d];
      if (++index[d] < (map.box[d] + step - 1) / step) break;
      index[d] = 0;
    }
    if (d == map.rank) return;
  }
}
/// Where the manual's drawings of swizzling put a byte of a box whose rows are as long as the span.
u64 drawn(u64 byte, u32 span) {
  if (span == 0) return byte;
  const u64 line = byte / 128, chunk = byte / 16 % 8, within = byte % 16;
  // 128: chunk c of line r stands at c xor r. 64: halves of a line keep their places, and two lines share a
  // pattern entry of four; 32: pairs of chunks change places in every second line.
  const u64 moved = span == 128 ? chunk ^ (line % 8) : span == 64 ? chunk ^ (line % 4) : chunk ^ (line % 2);
  return line * 128 + moved * 16 + within;
}

}  // namespace

TEST_CASE("tensor copies place each element of a box, and fill or skip what is outside") {
  struct Case {
    TensorMap map;
    std::vector<int> at;
  };
  std::vector<Case> cases;
  TensorMap one;
  one.type = TensorType::kU8;
  one.sizes[0] = 100;
  one.box[0] = 64;
  for (const int at : {0, 50, -20, 200}) cases.push_back({one, {at}});
  for (const TensorSwizzle swizzle :
       {TensorSwizzle::kNone, TensorSwizzle::k32, TensorSwizzle::k64, TensorSwizzle::k128}) {
    TensorMap two;
    two.type = TensorType::kBf16;
    two.rank = 2;
    two.sizes[0] = 75;
    two.sizes[1] = 40;
    two.strides[0] = 160;
    two.box[0] = swizzle == TensorSwizzle::kNone ? 24 : 8u << static_cast<int>(swizzle);
    two.box[1] = 16;
    two.swizzle = swizzle;
    two.fill_nan = swizzle == TensorSwizzle::k64;
    for (const auto& at : {std::vector<int>{0, 0}, {13, 5}, {-3, 30}, {70, -7}}) cases.push_back({two, at});
  }
  TensorMap five;
  five.type = TensorType::kF32;
  five.rank = 5;
  five.fill_nan = true;
  const u32 sizes[] = {12, 5, 4, 3, 6}, box[] = {8, 2, 3, 2, 5}, steps[] = {1, 1, 2, 1, 3};
  u64 stride = 64;
  for (u32 d = 0; d < 5; ++d) {
    five.sizes[d] = sizes[d];
    five.box[d] = box[d];
    five.element_strides[d] = steps[d];
    if (d > 0) five.strides[d - 1] = stride;
    if (d > 0) stride *= sizes[d];
  }
  cases.push_back({five, {0, 0, 0, 0, 0}});
  cases.push_back({five, {7, 4, 2, -1, 3}});
  TensorMap three = five;
  three.rank = 3;
  three.element_strides[2] = 1;
  cases.push_back({three, {4, -1, 2}});
  for (const Case& c : cases) {
    const u64 bytes = c.map.rank == 1 ? 112 : c.map.strides[c.map.rank - 2] * c.map.sizes[c.map.rank - 1];
    const u32 element = c.map.element_bytes();
    const Result loaded = copy(c.map, c.at, true, bytes), stored = copy(c.map, c.at, false, bytes);
    std::vector<std::uint8_t> expected = stored.before;
    int wrong = 0;
    each_element(c.map, c.at, [&](u32 number, long long offset) {
      for (u32 b = 0; b < element; ++b) {
        const u64 at = drawn(u64{number} * element + b, c.map.span());
        const std::uint8_t outside = !c.map.fill_nan ? 0 : b + 1 == element ? 0x7f : 0xff;
        wrong +=
            loaded.image[at] != (offset < 0 ? outside : loaded.before[static_cast<std::size_t>(offset) + b]);
        if (offset >= 0) expected[static_cast<std::size_t>(offset) + b] = stored.image[at];
      }
    });
    INFO("rank " << c.map.rank << ", span " << c.map.span() << ", at " << c.at[0]);
    CHECK(wrong == 0);
    CHECK(stored.after == expected);
    CHECK(loaded.after == loaded.before);
  }
}

TEST_CASE("tensor maps that the driver refuses are refused, and wrong uses of them are found") {
  TensorMap map;
  map.type = TensorType::kF16;
  map.rank = 2;
  map.address = 4096;
  map.sizes[0] = map.sizes[1] = 64;
  map.strides[0] = 128;
  map.box[0] = 64;
  map.box[1] = 8;
  map.swizzle = TensorSwizzle::k128;
  alignas(64) std::uint8_t bytes[129];
  encode_tensor_map(map, bytes);
  TensorMap read;
  CHECK(decode_tensor_map(bytes, read));
  CHECK(read.box[1] == 8);
  bytes[20] ^= 1;
  CHECK_FALSE(decode_tensor_map(bytes, read));
  const auto refused = [&](auto change, const char* words) {
    TensorMap wrong = map;
    change(wrong);
    CHECK_THROWS_WITH(encode_tensor_map(wrong, bytes), ContainsSubstring(words));
  };
  refused([](TensorMap& m) { m.rank = 6; }, "a rank of 6");
  refused([](TensorMap& m) { m.address += 8; }, "multiple of 16");
  refused([](TensorMap& m) { m.sizes[1] = 0; }, "size of dimension 1 is 0");
  refused([](TensorMap& m) { m.strides[0] = 130; }, "stride of dimension 1 is 130");
  refused([](TensorMap& m) { m.box[1] = 257; }, "box size of dimension 1 is 257");
  refused(
      [](TensorMap& m) {
        m.box[0] = 12;
        m.swizzle = TensorSwizzle::kNone;
      },
      "24 bytes");
  refused([](TensorMap& m) { m.box[0] = 128; }, "more than the 128 of its swizzle");
  refused([](TensorMap& m) { m.element_strides[1] = 9; }, "element stride of dimension 1 is 9");
  refused([](TensorMap& m) { m.interleave = 1; }, "interleaved");
  refused(
      [](TensorMap& m) {
        m.type = TensorType::kU16;
        m.fill_nan = true;
      },
      "NaN");
  CHECK_THROWS_WITH(encode_tensor_map(map, bytes + 1), ContainsSubstring("multiple of 64"));

  Machine m;
  m.load(tensor_text(2, true));
  struct alignas(64) {
    std::uint8_t bytes[128];
  } encoded = {};
  const u64 out = m.memory().allocate(1024);
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, encoded, out, 1024u, 0, 0),
                    ContainsSubstring("planted.cu:42") && ContainsSubstring("there is no tensor map at"));
  map.rank = 1;
  encode_tensor_map(map, encoded.bytes);
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, encoded, out, 1024u, 0, 0),
                    ContainsSubstring("2 coordinates of a tensor of 1 dimensions"));
  map.rank = 2;
  map.address = m.memory().allocate(2048);
  encode_tensor_map(map, encoded.bytes);
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, encoded, out, 1024u, 0, 16),
                    ContainsSubstring("beyond the end of an allocation of 2048 bytes"));
}
