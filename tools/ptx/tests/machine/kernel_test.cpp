// Whole kernels in PTX: branches, calls, shared memory, barriers, shuffles, atomics; in order and in random
// orders.
#include <numeric>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90\n.address_size 64\n";

template <class T>
u64 upload(Machine& m, const std::vector<T>& values) {
  const u64 at = m.memory().allocate(values.size() * sizeof(T));
  m.memory().write(at, values.data(), values.size() * sizeof(T));
  return at;
}
template <class T>
std::vector<T> download(Machine& m, u64 at, std::size_t count) {
  std::vector<T> values(count);
  m.memory().read(at, values.data(), count * sizeof(T));
  return values;
}
/// Calls f in order and in two random orders.
template <class F>
void in_each_order(const std::string& text, F f) {
  for (const u64 seed : {u64{0}, u64{1}, u64{2}}) {
    INFO("seed " << seed);
    Machine m;
    m.options().seed = seed;
    m.load(text);
    f(m);
  }
}

// The steps of the Collatz sequence of %tid + 1: every thread leaves the loop at another time. A function
// computes a step.
const std::string kCollatz = kHead + R"(
.func (.param .b32 result) step(.param .b32 x)
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
ld.param.u32 %r1, [x];
and.b32 %r2, %r1, 1;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra EVEN;
mad.lo.u32 %r3, %r1, 3, 1;
bra.uni END;
EVEN: shr.u32 %r3, %r1, 1;
END:
st.param.b32 [result], %r3;
ret;
}
.visible .entry collatz(.param .u64 out)
.maxntid 128, 1, 1
{
.reg .pred %p<3>;
.reg .b32 %r<9>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [out];
cvta.to.global.u64 %rd1, %rd1;
mov.u32 %r1, %tid.x;
mov.u32 %r5, %ctaid.x;
mad.lo.u32 %r1, %r5, 128, %r1;
add.u32 %r2, %r1, 1;
mov.u32 %r3, 0;
LOOP:
setp.eq.u32 %p1, %r2, 1;
@%p1 bra DONE;
{
.param .b32 param0;
.param .b32 retval0;
st.param.b32 [param0+0], %r2;
call.uni (retval0), step, (param0);
ld.param.b32 %r2, [retval0+0];
}
add.u32 %r3, %r3, 1;
bra LOOP;
DONE:
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r3;
ret;
}
)";

// The sum of the block in shared memory, then one atomic per block; %laneid 0 of each warp adds with
// shuffles.
const std::string kSum = kHead + R"(
.extern .shared .align 16 .b8 dynamic[];
.visible .entry sum(.param .u64 in, .param .u64 out, .param .u32 n)
{
.shared .align 4 .b8 parts[16];
.reg .pred %p<6>;
.reg .b32 %r<20>;
.reg .f32 %f<8>;
.reg .b64 %rd<9>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mad.lo.u32 %r5, %r3, %r4, %r2;
mov.f32 %f1, 0f00000000;
setp.ge.u32 %p1, %r5, %r1;
@%p1 bra LOADED;
mul.wide.u32 %rd3, %r5, 4;
add.s64 %rd4, %rd1, %rd3;
ld.global.nc.f32 %f1, [%rd4];
LOADED:
shl.b32 %r6, %r2, 2;
mov.u32 %r7, dynamic;
add.u32 %r7, %r7, %r6;
st.shared.f32 [%r7], %f1;
bar.sync 0;
xor.b32 %r8, %r6, 4;
mov.u32 %r9, dynamic;
add.u32 %r9, %r9, %r8;
ld.shared.f32 %f2, [%r9];
add.f32 %f1, %f1, %f2;
shfl.sync.down.b32 %f3|%p2, %f1, 16, 31, -1;
add.f32 %f1, %f1, %f3;
shfl.sync.bfly.b32 %f3|%p2, %f1, 8, 31, -1;
add.f32 %f1, %f1, %f3;
shfl.sync.bfly.b32 %f3|%p2, %f1, 4, 31, -1;
add.f32 %f1, %f1, %f3;
shfl.sync.bfly.b32 %f3|%p2, %f1, 2, 31, -1;
add.f32 %f1, %f1, %f3;
and.b32 %r10, %r2, 31;
setp.ne.u32 %p3, %r10, 0;
shr.u32 %r11, %r2, 5;
shl.b32 %r11, %r11, 2;
mov.u32 %r12, parts;
add.u32 %r12, %r12, %r11;
@!%p3 st.shared.f32 [%r12], %f1;
bar.sync 0;
setp.ne.u32 %p4, %r2, 0;
@%p4 bra END;
ld.shared.v4.f32 {%f4, %f5, %f6, %f7}, [parts];
add.f32 %f4, %f4, %f5;
add.f32 %f4, %f4, %f6;
add.f32 %f4, %f4, %f7;
red.global.add.f32 [%rd2], %f4;
atom.global.inc.u32 %r13, [%rd2+4], 100;
END:
ret;
}
)";

}  // namespace

TEST_CASE("threads that leave a loop at different times meet again") {
  in_each_order(kCollatz, [](Machine& m) {
    const u64 out = m.memory().allocate(4 * 384);
    const Counts counts = m.launch("collatz", {3}, {128}, 0, out);
    const auto found = download<u32>(m, out, 384);
    for (u32 i = 0; i < 384; ++i) {
      u32 steps = 0;
      for (u32 x = i + 1; x != 1; ++steps) x = x % 2 == 0 ? x / 2 : 3 * x + 1;
      if (found[i] != steps) FAIL("thread " << i << " counts " << found[i] << " instead of " << steps);
    }
    CHECK(counts.thread_instructions > counts.warp_instructions);
  });
}

TEST_CASE("blocks sum by shared memory, shuffles and atomics, with a ragged last block") {
  in_each_order(kSum, [](Machine& m) {
    std::vector<float> values(300);
    std::iota(values.begin(), values.end(), 1.0f);
    const u64 in = upload(m, values), out = upload(m, std::vector<u32>{0, 0});
    m.launch("sum", {3}, {128}, 4 * 128, in, out, u32{300});
    CHECK(download<float>(m, out, 1)[0] == 300 * 301 / 2);
    CHECK(download<u32>(m, out + 4, 1)[0] == 3);
  });
}

TEST_CASE("local arrays, tables in constant memory and indexed branches") {
  const std::string text = kHead + R"(
.const .align 4 .u32 table[4] = {10, 20, 30};
.global .align 4 .u32 counter = 7;
.global .align 8 .u64 address = counter;
.visible .entry k(.param .align 8 .b8 plan[24])
{
.local .align 8 .b8 depot[32];
.reg .pred %p<2>;
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .b64 %SP;
mov.u64 %SP, depot;
cvta.local.u64 %SP, %SP;
mov.b64 %rd1, plan;
ld.param.u64 %rd2, [%rd1+8];
mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 3;
mul.wide.u32 %rd3, %r2, 4;
add.u64 %rd4, %rd3, table;
ld.const.u32 %r3, [%rd4];
add.s64 %rd5, %SP, %rd3;
st.u32 [%rd5+16], %r3;
ts: .branchtargets A, B, C, C;
brx.idx %r2, ts;
A: mov.u32 %r4, 1; bra JOIN;
B: mov.u32 %r4, 2; bra JOIN;
C: mov.u32 %r4, 3;
JOIN:
ld.u32 %r5, [%rd5+16];
add.u32 %r5, %r5, %r4;
ld.global.u64 %rd6, [address];
ld.u32 %r6, [%rd6];
add.u32 %r5, %r5, %r6;
mul.wide.u32 %rd7, %r1, 4;
add.s64 %rd7, %rd7, %rd2;
st.global.u32 [%rd7], %r5;
ret;
}
)";
  in_each_order(text, [](Machine& m) {
    struct Plan {
      u64 unused, out, more;
    } plan{0, m.memory().allocate(4 * 64), 0};
    m.launch("k", {1}, {64}, 0, plan);
    const auto found = download<u32>(m, plan.out, 64);
    for (u32 i = 0; i < 64; i += 4)
      CHECK(std::vector<u32>(found.begin() + i, found.begin() + i + 4) == std::vector<u32>{18, 29, 40, 10});
    CHECK(m.address_of("counter") != 0);
  });
}

TEST_CASE("votes, matches and reductions of lanes") {
  const std::string text = kHead + R"(
.visible .entry k(.param .u64 out)
{
.reg .pred %p<6>;
.reg .b32 %r<16>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %laneid;
mul.wide.u32 %rd2, %r1, 32;
add.s64 %rd1, %rd1, %rd2;
setp.lt.u32 %p1, %r1, 12;
vote.sync.ballot.b32 %r2, %p1, 0xffffffff;
st.global.u32 [%rd1], %r2;
setp.lt.u32 %p2, %r1, 16;
@!%p2 bra UPPER;
vote.sync.all.pred %p3, %p1, 0x0000ffff;
selp.u32 %r3, 1, 0, %p3;
redux.sync.add.u32 %r4, %r1, 0x0000ffff;
bra JOIN;
UPPER:
vote.sync.any.pred %p3, !%p1, 0xffff0000;
selp.u32 %r3, 1, 0, %p3;
redux.sync.max.s32 %r4, %r1, 0xffff0000;
JOIN:
st.global.u32 [%rd1+4], %r3;
st.global.u32 [%rd1+8], %r4;
shr.u32 %r5, %r1, 3;
match.any.sync.b32 %r6, %r5, -1;
st.global.u32 [%rd1+12], %r6;
match.all.sync.b32 %r7|%p4, %r5, -1;
st.global.u32 [%rd1+16], %r7;
shfl.sync.up.b32 %r8|%p5, %r1, 3, 0x1800, -1;
selp.u32 %r9, 1, 0, %p5;
st.global.v2.u32 [%rd1+24], {%r8, %r9};
mov.u32 %r10, %lanemask_lt;
popc.b32 %r10, %r10;
st.global.u32 [%rd1+20], %r10;
ret;
}
)";
  in_each_order(text, [](Machine& m) {
    const u64 out = m.memory().allocate(32 * 32);
    m.launch("k", {1}, {32}, 0, out);
    const auto found = download<u32>(m, out, 256);
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 first = lane / 8 * 8, inside = lane - first >= 3;
      const std::vector<u32> expected = {0xfff,
                                         lane < 16 ? 0u : 1u,
                                         lane < 16 ? 120u : 31u,
                                         0xffu << first,
                                         0,
                                         lane,
                                         inside ? lane - 3 : lane,
                                         inside};
      CHECK(std::vector<u32>(found.begin() + 8 * lane, found.begin() + 8 * lane + 8) == expected);
    }
  });
}

TEST_CASE("bar.red reduces predicates, and bar.arrive does not wait") {
  in_each_order(kHead + R"(
.visible .entry k(.param .u64 out)
{
.shared .align 4 .b8 word[4];
.reg .pred %p<6>;
.reg .b32 %r<9>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 40;
bar.red.popc.u32 %r2, 0, %p1;
bar.red.and.pred %p2, 1, 64, %p1;
bar.red.or.pred %p3, 2, !%p1;
selp.u32 %r3, 1, 0, %p2;
selp.u32 %r4, 2, 0, %p3;
// Warp 0 waits for what warp 1 stores.
setp.lt.u32 %p4, %r1, 32;
@%p4 bra WAIT;
st.shared.u32 [word], 100;
bar.arrive 3, 64;
mov.u32 %r5, 0;
bra JOIN;
WAIT:
bar.sync 3, 64;
ld.shared.u32 %r5, [word];
JOIN:
add.u32 %r2, %r2, %r3;
add.u32 %r2, %r2, %r4;
add.u32 %r2, %r2, %r5;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd2, %rd1, %rd2;
st.global.u32 [%rd2], %r2;
ret;
}
)",
                [](Machine& m) {
                  m.options().check_races = true;
                  m.options().allow_equal_writes = true;  // the lanes of warp 1 store the same word
                  const u64 out = m.memory().allocate(256);
                  m.launch("k", {2}, {64}, 0, out);
                  const auto found = download<u32>(m, out, 64);
                  for (u32 i = 0; i < 64; ++i) CHECK(found[i] == 42 + (i < 32 ? 100 : 0));
                });
}

TEST_CASE("printf reaches the options' print, and a failed assertion is an error") {
  Machine m;
  std::string printed;
  m.options().print = [&](const std::string& text) { printed += text; };
  m.load(kHead + R"(
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 format[] = {100, 61, 37, 53, 100, 32, 37, 108, 108, 120, 32, 37, 46, 50, 102, 32, 37, 115, 37, 37, 10, 0};
.global .align 1 .b8 name[] = {97, 98, 0};
.visible .entry print()
{
.local .align 8 .b8 buffer[32];
.reg .b64 %rd<9>;
.reg .b32 %r<3>;
mov.u64 %rd1, buffer;
cvta.local.u64 %rd2, %rd1;
mov.b32 %r1, -7;
st.local.u32 [%rd1], %r1;
mov.b64 %rd3, 0x123456789ab;
st.local.u64 [%rd1+8], %rd3;
mov.f64 %rd4, 0d4004000000000000;
st.local.f64 [%rd1+16], %rd4;
mov.u64 %rd5, name;
st.local.u64 [%rd1+24], %rd5;
mov.u64 %rd6, format;
{
.param .b64 p0;
st.param.b64 [p0], %rd6;
.param .b64 p1;
st.param.b64 [p1], %rd2;
.param .b32 r0;
call.uni (r0), vprintf, (p0, p1);
ld.param.b32 %r2, [r0];
}
ret;
}
.visible .entry check()
{
.reg .b64 %rd<3>;
.reg .b32 %r<3>;
mov.u64 %rd1, name;
mov.b32 %r1, 33;
{
.param .b64 a;
st.param.b64 [a], %rd1;
.param .b64 b;
st.param.b64 [b], %rd1;
.param .b32 c;
st.param.b32 [c], %r1;
.param .b64 d;
st.param.b64 [d], %rd1;
.param .b64 e;
st.param.b64 [e], 1;
call.uni __assertfail, (a, b, c, d, e);
}
ret;
}
)");
  m.launch("print", {1}, {2}, 0);
  const std::string line = "d=   -7 123456789ab 2.50 ab%\n";
  CHECK(printed == line + line);
  CHECK_THROWS_WITH(m.launch("check", {1}, {1}, 0), ContainsSubstring("the assertion 'ab' of ab:33 failed"));
}

TEST_CASE("atomics of 16 bits, pairs and vectors") {
  const std::string text = kHead + R"(
.visible .entry k(.param .u64 p)
{
.reg .b16 %h<9>;
.reg .b32 %r<9>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [p];
mov.b16 %h1, 0x3c00;
atom.global.add.noftz.f16 %h2, [%rd1], %h1;
mov.b16 %h3, 0x3f80;
red.global.add.noftz.bf16 [%rd1+2], %h3;
mov.b32 %r1, 0x40003c00;
atom.global.gpu.add.noftz.f16x2 %r2, [%rd1+4], %r1;
mov.b32 %r3, 0f40000000;
red.global.add.v2.f32 [%rd1+8], {%r3, %r3};
mov.b16 %h4, 7;
mov.b16 %h5, 0;
atom.global.cas.b16 %h6, [%rd1+16], %h5, %h4;
ret;
}
)";
  in_each_order(text, [](Machine& m) {
    const u64 p = upload(m, std::vector<u32>(8, 0));
    m.launch("k", {1}, {32}, 0, p);
    // 32 times 1.0; 1.0 and 2.0; 2.0; and 7 once.
    CHECK(download<u32>(m, p, 5) == std::vector<u32>{0x42005000, 0x54005000, 0x42800000, 0x42800000, 7});
    CHECK_THROWS_WITH(m.launch("k", {1}, {32}, 0, p + 4), ContainsSubstring("no multiple of 8"));
  });
}

TEST_CASE("a cooperative launch runs all blocks at the same time, with a counter for their barrier") {
  const std::string text = kHead + R"(
.visible .entry k(.param .u64 out)
{
.reg .pred %p<3>;
.reg .b32 %r<9>;
.reg .b64 %rd<6>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %envreg1;
mov.u32 %r2, %envreg2;
mov.b64 %rd2, {%r2, %r1};
setp.eq.u64 %p1, %rd2, 0;
@%p1 exit;
mov.u32 %r3, %ctaid.x;
mul.wide.u32 %rd3, %r3, 4;
add.s64 %rd3, %rd1, %rd3;
st.global.u32 [%rd3], %r3;
atom.add.release.gpu.u32 %r4, [%rd2+4], 1;
WAIT: ld.acquire.gpu.u32 %r4, [%rd2+4];
setp.lt.u32 %p2, %r4, 5;
@%p2 bra WAIT;
ld.global.u32 %r5, [%rd1+12];
st.global.u32 [%rd3+20], %r5;
ret;
}
)";
  in_each_order(text, [](Machine& m) {
    m.options().check_races = true;
    const u64 out = upload(m, std::vector<u32>(10, 9));
    m.launch("k", {5}, {1}, 0, out);  // not cooperative: there is no workspace
    CHECK(download<u32>(m, out, 10) == std::vector<u32>(10, 9));
    m.options().cooperative = true;
    for (int launch = 0; launch < 2; ++launch) m.launch("k", {5}, {1}, 0, out);
    CHECK(download<u32>(m, out, 10) == std::vector<u32>{0, 1, 2, 3, 4, 3, 3, 3, 3, 3});
  });
}

TEST_CASE("clocks go on, and each launch has a number") {
  Machine m;
  m.options().multiprocessors = 7;
  m.load(kHead + R"(
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<5>;
.reg .b64 %rd<9>;
ld.param.u64 %rd1, [out];
mov.u64 %rd2, %clock64;
mov.u64 %rd3, %globaltimer;
mov.u32 %r1, %clock;
mov.u32 %r2, %nsmid;
mov.u64 %rd4, %gridid;
cvt.u64.u32 %rd5, %r1;
cvt.u64.u32 %rd6, %r2;
add.u64 %rd6, %rd6, WARP_SZ;
st.global.u64 [%rd1], %rd2;
st.global.u64 [%rd1+8], %rd3;
st.global.u64 [%rd1+16], %rd5;
st.global.u64 [%rd1+24], %rd4;
st.global.u64 [%rd1+32], %rd6;
ret;
}
)");
  const u64 out = upload(m, std::vector<u64>(5, 0));
  m.launch("k", {1}, {1}, 0, out);
  const std::vector<u64> first = download<u64>(m, out, 5);
  m.launch("k", {1}, {1}, 0, out);
  const std::vector<u64> second = download<u64>(m, out, 5);
  CHECK(first[0] < first[1]);
  CHECK(first[1] < first[2]);
  CHECK(first[2] < second[0]);
  CHECK(first[3] != second[3]);
  CHECK(first[4] == 7 + 32);
}
