// Races between threads: planted ones are caught and located in every order of the threads, and kernels
// without races stay clean.
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// A kernel with the addresses `p` and `out` of zeros in %rd0 and %rd9. %r0 is the thread, %r1 its offset of
/// 4 bytes, %r2 the block, %rd1 and %rd2 are p and out with this offset; %p0 is true in thread 0.
struct Kernel {
  std::string code;
  Dim grid{1}, block{64};
  bool allow_equal = false, reads_acquire = false;
};
void run(Machine& m, const Kernel& k) {
  m.load(R"(.version 9.0
.target sm_90
.address_size 64
.file 1 "planted.cu"
.visible .entry k(.param .u64 p, .param .u64 out)
{
.shared .align 16 .b8 s[4096];
.reg .pred %p<9>;
.reg .b16 %h<9>;
.reg .b32 %r<20>;
.reg .b64 %rd<20>;
ld.param.u64 %rd0, [p];
ld.param.u64 %rd9, [out];
mov.u32 %r0, %tid.x;
mov.u32 %r2, %ctaid.x;
shl.b32 %r1, %r0, 2;
mul.wide.u32 %rd3, %r0, 4;
add.s64 %rd1, %rd0, %rd3;
add.s64 %rd2, %rd9, %rd3;
setp.eq.u32 %p0, %r0, 0;
mov.u32 %r3, s;
add.u32 %r3, %r3, %r1;
)" + k.code +
         "\nret;\n}\n");
  m.options().check_races = true;
  m.options().check_initialised = false;
  m.options().allow_equal_writes = k.allow_equal;
  m.options().reads_acquire = k.reads_acquire;
  const std::vector<char> zeros(8192);
  const u64 p = m.memory().allocate(8192), out = m.memory().allocate(8192);
  m.memory().write(p, zeros.data(), zeros.size());
  m.memory().write(out, zeros.data(), zeros.size());
  m.launch("k", k.grid, k.block, 0, p, out);
}
std::string message(const Kernel& k, u64 seed) {
  Machine m;
  m.options().seed = seed;
  try {
    run(m, k);
  } catch (const KernelError& e) {
    return e.what();
  }
  return "clean";
}
void races(const Kernel& k, const std::vector<std::string>& words) {
  for (const u64 seed : {0, 1, 2, 3}) {
    INFO("seed " << seed);
    const std::string text = message(k, seed);
    CHECK_THAT(text, ContainsSubstring("race: ") && ContainsSubstring("[ptx] kernel 'k', planted.cu:"));
    for (const std::string& word : words) CHECK_THAT(text, ContainsSubstring(word));
  }
}
void clean(const Kernel& k) {
  for (const u64 seed : {0, 1, 2, 3}) {
    INFO("seed " << seed);
    CHECK(message(k, seed) == "clean");
  }
}

const std::string kWrite = "\n.loc 1 10 1\n", kRead = "\n.loc 1 20 1\n", kOther = "\n.loc 1 30 1\n";
// Each thread writes its word of s, and reads that of the thread ^ DISTANCE.
std::string exchange(int distance, const std::string& between) {
  return kWrite + "st.shared.u32 [%r3], %r0;" + kOther + between + kRead + "xor.b32 %r4, %r1, " +
         std::to_string(4 * distance) + ";\nmov.u32 %r5, s; add.u32 %r5, %r5, %r4; ld.shared.u32 %r6, [%r5];";
}

}  // namespace

TEST_CASE("shared memory is exchanged with the barrier that its distance needs") {
  races({exchange(32, "")}, {"planted.cu:10 (st.shared.u32)", "planted.cu:20 (ld.shared.u32)",
                             "of shared memory", "of 's'", "__syncthreads() is missing"});
  races({exchange(1, "")}, {"planted.cu:10", "planted.cu:20", "__syncwarp() is missing"});
  races({exchange(32, "bar.warp.sync -1;")}, {"__syncthreads() is missing"});
  races({exchange(1, "shfl.sync.bfly.b32 %r7, %r0, 1, 31, -1;")}, {"__syncwarp() is missing"});
  races({exchange(1, "membar.cta;")}, {"planted.cu:10", "planted.cu:20"});
  // Half of the warp synchronises with itself, the other half too.
  races({exchange(16,
                  "setp.lt.u32 %p1, %r0, 16; and.b32 %r8, %r0, 16; setp.ne.u32 %p1, %r8, 0; @%p1 bra A; "
                  "bar.warp.sync 0xffff; bra B; A: bar.warp.sync 0xffff0000; B:")},
        {"__syncwarp() is missing"});
  clean({exchange(1, "bar.warp.sync -1;")});
  clean({exchange(32, "bar.sync 0;")});
  clean({exchange(1, "bar.sync 0;")});
  clean({exchange(8,
                  "and.b32 %r8, %r0, 16; setp.ne.u32 %p1, %r8, 0; @%p1 bra A; bar.warp.sync 0xffff; bra B; "
                  "A: bar.warp.sync 0xffff0000; B:")});
  // Of four warps, two meet at a barrier of their own.
  Kernel named{exchange(32, "shr.u32 %r8, %r0, 6; bar.sync %r8, 64;")};
  named.block = {128};
  clean(named);
  named.code = exchange(64, "shr.u32 %r8, %r0, 6; bar.sync %r8, 64;");
  races(named, {"__syncthreads() is missing"});
}

TEST_CASE("the second barrier of a loop is missing") {
  // Two steps write and read the same buffer.
  const auto steps = [](const std::string& at_the_end) {
    const std::string step = exchange(32, "bar.sync 0;") + at_the_end;
    return Kernel{step + step};
  };
  races(steps(""), {"planted.cu:10 (st.shared.u32)", "planted.cu:20 (ld.shared.u32)"});
  clean(steps("bar.sync 0;"));
}

TEST_CASE("neighbours in a word do not race, and overlapping bytes do") {
  const std::string offset = "mov.u32 %r4, s; shl.b32 %r5, %r0, 1; add.u32 %r4, %r4, %r5;";
  clean({offset + "cvt.u16.u32 %h0, %r0; st.shared.u16 [%r4], %h0; ld.shared.u16 %h1, [%r4];"});
  clean(
      {"mov.u32 %r4, s; add.u32 %r4, %r4, %r0; cvt.u16.u32 %h0, %r0; st.shared.u8 [%r4], %h0; ld.shared.u8 "
       "%h1, "
       "[%r4];"});
  clean(
      {"shl.b32 %r5, %r0, 4; mov.u32 %r4, s; add.u32 %r4, %r4, %r5; st.shared.v4.u32 [%r4], {%r0, %r0, %r0, "
       "%r0};"});
  // Bytes by one warp and words by the other.
  races({offset + "setp.lt.u32 %p1, %r0, 32; cvt.u16.u32 %h0, %r0;" + kWrite +
         "@%p1 st.shared.u16 [%r4], %h0;" + kRead + "mov.u32 %r5, s; @!%p1 ld.shared.u32 %r6, [%r5];"},
        {"planted.cu:10 (st.shared.u16)", "planted.cu:20 (ld.shared.u32)"});
  // Stores of two lanes that overlap: lanes 2 n and 2 n + 1 write the same 8 bytes.
  races({"and.b32 %r4, %r1, 0xfffffff8; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;" + kWrite +
         "st.shared.v2.u32 [%r5], {%r0, %r0};"},
        {"writes 8 bytes", "writes. Nothing orders the two lanes"});
}

TEST_CASE("equal stores are races that can be allowed") {
  Kernel flag{kWrite + "mov.u32 %r4, 1; st.global.u32 [%rd9], %r4;"};
  races(flag, {"planted.cu:10 (st.global.u32)"});
  flag.allow_equal = true;
  clean(flag);
  flag.grid = {4};
  clean(flag);
  flag.code = kWrite + "st.global.u32 [%rd9], %r0;";
  races(flag, {"planted.cu:10"});
  // Strong stores do not race with each other.
  flag = {"st.volatile.global.u32 [%rd9], %r0;"};
  clean(flag);
  flag = {"st.relaxed.gpu.global.u32 [%rd9], %r0; ld.relaxed.gpu.global.u32 %r4, [%rd9];"};
  flag.grid = {3};
  clean(flag);
  flag = {kWrite + "st.relaxed.cta.global.u32 [%rd9], %r0;"};
  clean(flag);
  flag.grid = {3};
  races(flag, {"the scope of one is the block"});
}

TEST_CASE("atomics do not race with each other, but with other accesses") {
  Kernel k{"red.global.add.u32 [%rd9], 1; atom.shared.add.u32 %r4, [s], 1;"};
  k.grid = {3};
  clean(k);
  races(
      {kWrite + "red.global.add.u32 [%rd9], 1;" + kRead + "ld.global.u32 %r4, [%rd9];"},
      {"planted.cu:20 (ld.global.u32)", "planted.cu:10 (red.global.add.u32)", "One of the accesses is weak"});
  races({kWrite + "@%p0 st.shared.u32 [s], %r0;" + kRead + "atom.shared.add.u32 %r4, [s], 1;"},
        {"planted.cu:10", "planted.cu:20 (atom.shared.add.u32)"});
  clean(
      {"@%p0 st.shared.u32 [s], %r0; bar.sync 0; atom.shared.add.u32 %r4, [s], 1; bar.sync 0; ld.shared.u32 "
       "%r5, [s];"});
  races({"@%p0 st.shared.u32 [s], %r0; bar.sync 0;" + kWrite + "atom.shared.add.u32 %r4, [s], 1;" + kRead +
         "ld.shared.u32 %r5, [s];"},
        {"planted.cu:10", "planted.cu:20"});
  // An atomic for the block only.
  k = {kWrite + "red.cta.global.add.u32 [%rd9], 1;"};
  clean(k);
  k.grid = {2};
  races(k, {"the scope of one is the block", "block (0, 0, 0)", "block (1, 0, 0)"});
  // A lost update: read, add, write.
  races({kRead + "ld.global.u32 %r4, [%rd9]; add.u32 %r4, %r4, 1;" + kWrite + "st.global.u32 [%rd9], %r4;"},
        {"planted.cu:10", "planted.cu:20"});
}

TEST_CASE("blocks that write or read the same bytes race") {
  Kernel k{kWrite + "st.global.u32 [%rd2], %r0;"};
  clean(k);
  k.grid = {2};
  races(k, {"planted.cu:10 (st.global.u32)", "of an allocation of 8192 bytes", "block (1, 0, 0)",
            "block (0, 0, 0)", "Nothing orders the two blocks"});
  k.code = "setp.eq.u32 %p1, %r2, 0;" + kWrite + "@%p1 st.global.u32 [%rd2], %r0;" + kRead +
           "@!%p1 ld.global.u32 %r4, [%rd2];";
  races(k, {"planted.cu:10", "planted.cu:20"});
  k.code = "ld.global.u32 %r4, [%rd1]; ld.global.nc.u32 %r4, [%rd1];";
  clean(k);
  // Even in one thread and in order: the read-only cache may hold the old bytes.
  k.grid = {1};
  k.code = kRead + "ld.global.nc.u32 %r4, [%rd1];" + kWrite + "st.global.u32 [%rd1], %r4;";
  CHECK_THAT(message(k, 0), ContainsSubstring("ld.global.nc"));
}

namespace {

// The last block reads what thread 0 of each block wrote.
Kernel last_block(const std::string& before, const std::string& atomic, const std::string& behind,
                  const std::string& write = "st.global.u32", const std::string& read = "ld.global.u32") {
  Kernel k{R"(
mul.wide.u32 %rd4, %r2, 4;
add.s64 %rd4, %rd9, %rd4;
mov.u32 %r10, 0;
@!%p0 bra JOIN;
)" + kWrite +
           write + " [%rd4+64], %r2;\n" + kOther + before + atomic + R"(
JOIN:
@%p0 st.shared.u32 [s], %r10;
bar.sync 0;
ld.shared.u32 %r11, [s];
setp.ne.u32 %p1, %r11, 5;
@%p1 bra END;
)" + behind +
           kRead + R"(
setp.gt.u32 %p2, %r0, 5;
@!%p2 )" + read +
           R"( %r12, [%rd2+64];
END:)"};
  k.grid = {6};
  return k;
}

}  // namespace

TEST_CASE("the last block may read what the others released") {
  const std::string fence = "membar.gl;\n", add = "atom.global.add.u32 %r10, [%rd9], 1;\n";
  clean(last_block(fence, add, fence));
  clean(last_block("fence.acq_rel.gpu;\n", add + "fence.acq_rel.gpu;\n", ""));
  clean(last_block("", "atom.acq_rel.gpu.global.add.u32 %r10, [%rd9], 1;\n", ""));
  clean(last_block("", "atom.global.add.acq_rel.gpu.u32 %r10, [%rd9], 1;\n", ""));
  const std::vector<std::string> both = {"planted.cu:10 (st.global.u32)", "planted.cu:20 (ld.global.u32)",
                                         "__threadfence()"};
  races(last_block("", add, fence), both);
  races(last_block("membar.cta;\n", add, fence), both);
  races(last_block(fence, "atom.cta.global.add.u32 %r10, [%rd9+4], 1; atom.global.add.u32 %r10, [%rd9], 0;\n",
                   "membar.cta;\n"),
        {});
  races(last_block("", "atom.relaxed.gpu.global.add.u32 %r10, [%rd9], 1;\n", ""), both);
  // Without a fence behind the atomic, PTX orders nothing. The option trusts today's GPUs.
  Kernel unfenced = last_block(fence, add, "");
  races(unfenced, both);
  unfenced.reads_acquire = true;
  clean(unfenced);
  // The programming guide's example: volatile accesses cannot race.
  clean(last_block(fence, add, "", "st.volatile.global.u32", "ld.volatile.global.u32"));
  // All threads write and fence, and thread 0 adds behind a barrier.
  Kernel all{R"(
mul.wide.u32 %rd4, %r2, 256;
add.s64 %rd4, %rd2, %rd4;
)" + kWrite + "st.global.u32 [%rd4+64], %r2;\nmembar.gl;\nbar.sync 0;\n@!%p0 bra JOIN;\n" +
             add + R"(
st.shared.u32 [s], %r10;
JOIN:
bar.sync 0;
ld.shared.u32 %r11, [s];
setp.ne.u32 %p1, %r11, 5;
@%p1 bra END;
membar.gl;
mov.u32 %r12, 0;
LOOP:
mul.wide.u32 %rd5, %r12, 256;
add.s64 %rd5, %rd5, %rd2;
)" + kRead + R"(
ld.global.u32 %r13, [%rd5+64];
add.u32 %r12, %r12, 1;
setp.lt.u32 %p2, %r12, 6;
@%p2 bra LOOP;
END:)"};
  all.grid = {6};
  clean(all);
  const std::size_t at = all.code.find("membar.gl;");
  all.code.replace(at, 10, "");
  races(all, both);
}

TEST_CASE("what follows an atomic comes after the atomics that it has observed") {
  // The last of six blocks to take a ticket uses the counter without an atomic.
  const auto ticket = [](const std::string& atomic, const std::string& use,
                         const std::string& leave = "setp.ne.u32 %p1, %r11, 5; @%p1 bra END;\n") {
    Kernel k{"mov.u32 %r10, 9; mov.u32 %r4, 0; @!%p0 bra JOIN;" + kWrite + atomic +
             "\nJOIN: @%p0 st.shared.u32 [s], %r10; bar.sync 0; ld.shared.u32 %r11, [s];\n" + leave + kRead +
             use + "\nEND:"};
    k.grid = {6};
    return k;
  };
  const std::string add = "atom.global.add.u32 %r10, [%rd9], 1;", reset = "@%p0 st.global.u32 [%rd9], %r4;";
  for (const std::string& use : {reset, std::string("ld.global.u32 %r5, [%rd9];"),
                                 std::string("setp.eq.u32 %p2, %r0, 33; @%p2 st.global.u32 [%rd9], %r4;")}) {
    INFO(use);
    clean(ticket(add, use));
    clean(ticket("membar.gl;" + add + "membar.gl;", use));
    clean(ticket("fence.acq_rel.gpu;" + add + "fence.acq_rel.gpu;", "membar.gl;" + use));
    clean(ticket("atom.relaxed.gpu.global.inc.u32 %r10, [%rd9], 100;", use));
    clean(ticket("atom.acq_rel.gpu.global.add.u32 %r10, [%rd9], 1;", use));
  }
  // A block that has not taken the last ticket, and a counter for the threads of one block.
  const std::vector<std::string> both = {"planted.cu:10 (atom", "planted.cu:20 (st.global.u32)"};
  races(ticket(add, reset, ""), both);
  races(ticket("atom.cta.global.add.u32 %r10, [%rd9], 1;", reset, ""), {"planted.cu:10 (atom"});
  // A reduction returns nothing, so its thread has observed nothing; but an atomic observes it.
  Kernel reduces{kWrite + "red.global.add.u32 [%rd9], 1;" + kRead + "@%p0 st.global.u32 [%rd9], %r0;"};
  races(reduces, {"planted.cu:10 (red.global.add.u32)", "planted.cu:20 (st.global.u32)"});
  reduces.code.replace(reduces.code.find("red.global.add.u32 "), 19,
                       "atom.global.add.u32 %r7, ");  // as nvcc writes it
  races(reduces, {"planted.cu:10 (atom.global.add.u32)", "planted.cu:20 (st.global.u32)"});
  clean(
      {"setp.eq.u32 %p1, %r0, 32; @%p0 red.global.add.u32 [%rd9], 1; @!%p1 bra END; WAIT: "
       "atom.global.or.b32 %r5, [%rd9], 0; setp.eq.u32 %p2, %r5, 0; @%p2 bra WAIT; st.global.u32 [%rd9], "
       "%r0; END:"});
  // In shared memory, the last thread of the block.
  const std::string zero = "mov.u32 %r4, 0; @%p0 st.shared.u32 [s], %r4; bar.sync 0;";
  clean({zero +
         "atom.shared.add.u32 %r5, [s], 1; setp.ne.u32 %p1, %r5, 63; @%p1 bra END; st.shared.u32 [s], %r4; "
         "ld.shared.u32 %r6, [s]; END:"});
  races({zero + kWrite + "atom.shared.add.u32 %r5, [s], 1;" + kRead + "@%p0 st.shared.u32 [s], %r4;"},
        {"planted.cu:10 (atom.shared.add.u32)", "planted.cu:20 (st.shared.u32)"});
  // A strong read that returns the value of a strong write comes after it, as an atomic does. What such a
  // thread knows, others know only behind a barrier with it: thread 40 has not read, so its store races.
  const auto poll = [](const std::string& behind) {
    return Kernel{
        "setp.eq.u32 %p1, %r0, 32; mov.u32 %r4, 1; @!%p0 bra POLL;" + kWrite +
        "st.volatile.global.u32 [%rd9], %r4; bra END;\nPOLL: @!%p1 bra OTHER; WAIT: ld.volatile.global.u32 "
        "%r5, [%rd9]; setp.eq.u32 %p2, %r5, 0; @%p2 bra WAIT;\nOTHER: " +
        behind + "\nEND:"};
  };
  clean(poll("@!%p1 bra END; ld.global.u32 %r6, [%rd9]; st.global.u32 [%rd9], %r0;"));
  clean(poll(
      "setp.lt.u32 %p3, %r0, 32; @%p3 bra END; bar.warp.sync -1; setp.ne.u32 %p3, %r0, 40; @%p3 bra END; "
      "st.global.u32 [%rd9], %r0;"));
  races(poll("setp.ne.u32 %p3, %r0, 40; @%p3 bra END;" + kRead + "st.global.u32 [%rd9], %r0;"),
        {"planted.cu:10 (", "planted.cu:20 (st.global.u32)"});
}

TEST_CASE("a compare-and-swap confirms the plain read before it") {
  // The programming guide's loop: a plain read, and then the values that the atomic returns.
  const auto loop = [](const std::string& before) {
    Kernel k{kRead + "ld.global.u32 %r4, [%rd9];\n" + before + kWrite +
             "LOOP: mov.u32 %r5, %r4; max.u32 %r6, %r5, %r0; atom.global.cas.b32 %r4, [%rd9], %r5, %r6; "
             "setp.ne.u32 "
             "%p1, %r4, %r5; @%p1 bra LOOP;\nEND:"};
    k.grid = {3};
    return k;
  };
  clean(loop(""));
  Kernel shared{
      "mov.u32 %r4, 0; @%p0 st.shared.u32 [s], %r4; bar.sync 0; ld.shared.u32 %r4, [s]; LOOP: mov.u32 %r5, "
      "%r4; add.u32 %r6, %r5, 1; atom.shared.cas.b32 %r4, [s], %r5, %r6; setp.ne.u32 %p1, %r4, %r5; @%p1 bra "
      "LOOP;"};
  clean(shared);
  // Threads that leave before the exchange have only read; so has one whose atomic is another one.
  const std::vector<std::string> both = {
      "planted.cu:20 (ld.global.u32)", "planted.cu:10 (atom.global.cas.b32)", "One of the accesses is weak"};
  races(loop("setp.ge.u32 %p2, %r4, %r0; @%p2 bra END;"), both);
  races({kRead + "ld.global.u32 %r4, [%rd9];" + kWrite + "atom.global.add.u32 %r5, [%rd9], %r4;"},
        {"planted.cu:20", "planted.cu:10"});
  // Its own plain store is no read.
  races({kRead + "@%p0 st.global.u32 [%rd9], %r0;" + kWrite + "atom.global.cas.b32 %r4, [%rd9], %r0, 1;"},
        {"planted.cu:20", "planted.cu:10"});
  // An endless loop that waits for a plain read ends with the race, not with the limit of instructions.
  Kernel spins{
      "setp.eq.u32 %p1, %r0, 32; mov.u32 %r5, 2; @%p1 ld.global.u32 %r5, [%rd9]; setp.ne.u32 %p2, %r5, 2;" +
      kWrite + "@!%p1 st.volatile.global.u32 [%rd9], %r0;\nLOOP: @%p2 bra LOOP;"};
  CHECK_THAT(message(spins, 0), ContainsSubstring("race: "));
}

TEST_CASE("a flag hands data from thread to thread of a block") {
  // Thread 0 writes, releases; thread 32 spins on the flag.
  const auto hand = [](const std::string& release, const std::string& acquire, const std::string& behind) {
    Kernel k{"setp.eq.u32 %p1, %r0, 32; mov.u32 %r4, 1;" + kWrite + "@%p0 st.shared.u32 [s+64], %r4;" +
             kOther + release + "@!%p1 bra END;\nWAIT:\n" + acquire +
             "setp.eq.u32 %p2, %r5, 0;\n@%p2 bra WAIT;\n" + behind + kRead +
             "ld.shared.u32 %r6, [s+64];\nEND:"};
    // The flag is in global memory, which is 0.
    return k;
  };
  clean(
      hand("@%p0 st.release.cta.global.u32 [%rd0], %r4;\n", "ld.acquire.cta.global.u32 %r5, [%rd0];\n", ""));
  clean(hand("membar.cta;\n@%p0 st.volatile.global.u32 [%rd0], %r4;\n",
             "ld.volatile.global.u32 %r5, [%rd0];\n", "membar.cta;\n"));
  races(hand("@%p0 st.volatile.global.u32 [%rd0], %r4;\n", "ld.volatile.global.u32 %r5, [%rd0];\n", ""),
        {"planted.cu:10", "planted.cu:20"});
  races(hand("@%p0 st.release.cta.global.u32 [%rd0], %r4;\n", "ld.relaxed.cta.global.u32 %r5, [%rd0];\n", ""),
        {"planted.cu:10", "planted.cu:20"});
}

TEST_CASE("asynchronous copies are ordered by their wait and a barrier") {
  const auto copy = [](const std::string& before, const std::string& between) {
    return Kernel{before + kWrite + "cp.async.ca.shared.global [%r3], [%rd1], 4;\ncp.async.commit_group;\n" +
                  kOther + between + kRead +
                  "xor.b32 %r4, %r1, 128; mov.u32 %r5, s; add.u32 %r5, %r5, %r4; ld.shared.u32 %r6, [%r5];"};
  };
  clean(copy("", "cp.async.wait_group 0;\nbar.sync 0;\n"));
  races(copy("", "cp.async.wait_group 0;\n"), {"planted.cu:20 (ld.shared.u32)"});
  // A stage is filled again while others read it.
  const std::string read_before =
      "st.shared.u32 [%r3], %r0; bar.sync 0; xor.b32 %r4, %r1, 128; mov.u32 %r5, s; add.u32 %r5, %r5, %r4;" +
      kOther + "ld.shared.u32 %r6, [%r5];";
  races(copy(read_before, "cp.async.wait_group 0;\nbar.sync 0;\n"),
        {"planted.cu:10 (cp.async", "planted.cu:30"});
  clean(copy(read_before + "bar.sync 0;", "cp.async.wait_group 0;\nbar.sync 0;\n"));
  // The barrier comes before the wait: the other warp reads while the copy is under way.
  CHECK(message(copy("", "bar.sync 0;\ncp.async.wait_group 0;\n"), 0) != "clean");
  // Another warp writes the source after a barrier, but before the wait.
  races(
      copy(
          "",
          "bar.sync 0; xor.b32 %r4, %r1, 128; cvt.u64.u32 %rd5, %r4; add.s64 %rd5, %rd5, %rd0; st.global.u32 "
          "[%rd5], %r0; bar.sync 0; cp.async.wait_group 0; bar.sync 0;\n"),
      {"planted.cu:30 (st.global.u32)"});
  // And the thread itself writes the destination.
  CHECK_THAT(message(copy("", "st.shared.u32 [%r3], %r0; cp.async.wait_group 0;\nbar.sync 0;\n"), 0),
             ContainsSubstring("which a cp.async is still writing"));
}

TEST_CASE("all pairs of racing lines can be collected, each once") {
  Machine m;
  m.options().collect_races = true;
  std::string second = exchange(1, "bar.sync 0;");
  for (const std::string line : {"10", "20"})
    second.replace(second.find(".loc 1 " + line), 9, ".loc 1 4" + line.substr(0, 1));
  const Kernel k{exchange(32, "") + exchange(32, "") + second};
  run(m, k);
  CHECK(m.findings().size() >= 2);
  for (const std::string& f : m.findings()) CHECK_THAT(f, ContainsSubstring("[ptx] kernel 'k', planted.cu:"));
  const std::size_t found = m.findings().size();
  const u64 p = m.memory().allocate(8192);
  m.launch("k", k.grid, k.block, 0, p, p);
  CHECK(m.findings().size() == found);
}

TEST_CASE("launches have no races with each other") {
  Machine m;
  run(m, {"st.global.u32 [%rd2], %r0;"});
  const u64 p = m.memory().allocate(8192);
  m.launch("k", {1}, {64}, 0, p, p);
  m.launch("k", {1}, {64}, 0, p, p);
}

TEST_CASE("a thread that spins does not keep others from running") {
  // Lane 1 spins on what lane 0 writes behind the loop, and block 0 on what block 1 writes.
  const std::string spin =
      "WAIT:\nld.acquire.gpu.global.u32 %r5, [%rd0];\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra WAIT;\n";
  Kernel lanes{"mov.u32 %r4, 1; setp.ne.u32 %p1, %r0, 1; @%p1 bra SET;\n" + spin +
               "bra END;\nSET: @%p0 st.release.gpu.global.u32 "
               "[%rd0], %r4;\nEND:"};
  lanes.block = {32};
  clean(lanes);
  Kernel blocks{"mov.u32 %r4, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra SET;\n" + spin +
                "ld.global.u32 %r6, [%rd9];\nbra END;\n"
                "SET: @%p0 st.global.u32 [%rd9], %r4; @%p0 st.release.gpu.global.u32 [%rd0], %r4;\nEND:"};
  blocks.grid = {2};
  for (const u64 seed : {0, 1, 2}) {
    Machine m;
    m.options().seed = seed;
    m.options().resident_blocks = 2;
    CHECK_NOTHROW(run(m, blocks));
  }
}

namespace {

// Thread 0 starts a bulk copy of 256 bytes to s + 64; all threads wait for its mbarrier, which is at s, and
// read.
Kernel bulk(const std::string& wait, const std::string& behind = "") {
  Kernel k{R"(
mov.u32 %r3, s;
@!%p0 bra STARTED;
mbarrier.init.shared.b64 [%r3], 1;
fence.proxy.async;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3], 256;
)" + kWrite +
           R"(
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+64], [%rd0], 256, [%r3];
STARTED:
bar.sync 0;
)" + wait + kRead +
           R"(
add.u32 %r4, %r3, %r1;
ld.shared.u32 %r5, [%r4+64];
)" + behind};
  return k;
}

}  // namespace

TEST_CASE("bulk copies are ordered by their mbarrier") {
  const std::string wait = "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;\n@!%p2 bra WAIT;\n";
  clean(bulk(wait));
  // Only thread 0 waits. Others find the bytes in flight, or complete but not ordered.
  const std::string one = "@!%p0 bra DONE;\n" + wait + "DONE:\n";
  for (const u64 seed : {0, 1, 2, 3})
    CHECK_THAT(message(bulk(one), seed), ContainsSubstring("planted.cu:20"));
  clean(bulk(one + "bar.sync 0;\n"));
  // Initialised by thread 0, and used by others without a barrier.
  Kernel early{"@%p0 mbarrier.init.shared.b64 [s], 64;\n" + kRead +
               "mov.u32 %r3, s; setp.ne.u32 %p1, %r0, 0; mbarrier.arrive.shared.b64 %rd5, [%r3];"};
  CHECK(message(early, 0) != "clean");
  // The arrival of writers and the wait of a reader order their accesses.
  const auto arrivals = [](const std::string& behind_wait) {
    return Kernel{
        "mov.u32 %r4, s; @%p0 mbarrier.init.shared.b64 [%r4], 64; bar.sync 0; add.u32 %r5, %r4, %r1;" +
        kWrite + "st.shared.u32 [%r5+64], %r0; mbarrier.arrive.shared.b64 %rd5, [%r4];\n" + behind_wait +
        kRead + "xor.b32 %r6, %r1, 128; add.u32 %r6, %r6, %r4; ld.shared.u32 %r7, [%r6+64];"};
  };
  clean(arrivals("WAIT:\nmbarrier.test_wait.shared.b64 %p2, [%r4], %rd5;\n@!%p2 bra WAIT;\n"));
  races(arrivals(""), {"planted.cu:10 (st.shared.u32)", "planted.cu:20 (ld.shared.u32)"});
  // A store to global memory goes on until its wait.
  const auto store = [](const std::string& waits) {
    return Kernel{
        kOther +
        "st.shared.u32 [%r3], %r0; fence.proxy.async; bar.sync 0; mov.u32 %r4, s; @!%p0 bra STORED;" +
        kWrite +
        "cp.async.bulk.global.shared::cta.bulk_group [%rd9], [%r4], 256; cp.async.bulk.commit_group;\n" +
        waits + "STORED: bar.sync 0;" + kRead +
        "ld.global.u32 %r5, [%rd2]; bar.sync 0; @%p0 cp.async.bulk.wait_group 0;"};
  };
  clean(store("cp.async.bulk.wait_group 0;\n"));
  races(store("cp.async.bulk.wait_group.read 0;\n"),
        {"issued at planted.cu:10", "a wait for it is missing", "planted.cu:20 (ld.global.u32)"});
}
