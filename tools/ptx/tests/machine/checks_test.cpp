// Planted bugs: each is caught, and the message says where it is.
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using namespace std::string_literals;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90\n.address_size 64\n.file 1 \"planted.cu\"\n";

/// A kernel with the parameter `p`, an address of `bytes` bytes of memory that is initialised unless `fresh`.
struct Planted {
  std::string code;
  u64 bytes = 256;
  bool fresh = false;
  Dim grid{1}, block{32};
  u64 seed = 0;
  u64 shared = 0;
};
std::string message(const Planted& planted) {
  Machine m;
  m.options().seed = planted.seed;
  m.options().max_instructions = 100000;
  m.load(kHead + R"(
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 p)
{
.shared .align 16 .b8 first[128];
.shared .align 16 .b8 second[128];
.local .align 4 .b8 array[16];
.reg .pred %p<9>;
.reg .b32 %r<9>;
.reg .f32 %f<9>;
.reg .b64 %rd<9>;
ld.param.u64 %rd0, [p];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd2, %rd0, %rd1;
shl.b32 %r1, %r0, 2;
.loc 1 42 7
)" + planted.code +
         "\nret;\n}\n");
  const u64 p = m.memory().allocate(planted.bytes);
  const std::vector<char> zeros(planted.bytes);
  if (!planted.fresh) m.memory().write(p, zeros.data(), planted.bytes);
  try {
    m.launch("k", planted.grid, planted.block, planted.shared, p);
  } catch (const KernelError& e) {
    return e.what();
  }
  return "nothing was found";
}
void caught(const Planted& planted, const std::vector<std::string>& words) {
  Planted in_order = planted;
  for (const u64 seed : {u64{0}, u64{5}}) {
    in_order.seed = seed;
    const std::string text = message(in_order);
    CHECK_THAT(text, ContainsSubstring("[ptx] kernel 'k', planted.cu:42"));
    for (const std::string& word : words) CHECK_THAT(text, ContainsSubstring(word));
  }
}

}  // namespace

TEST_CASE("accesses outside of an allocation are caught") {
  Planted tail{"ld.global.f32 %f0, [%rd2];"};
  tail.bytes = 40;
  tail.block = {11};
  caught(tail, {"(ld.global.f32)", "block (0, 0, 0), thread (10, 0, 0)", "reads 4 bytes of global memory",
                "0 bytes beyond the end of an allocation of 40 bytes"});
  caught({"st.global.u32 [%rd0+-4], %r0;"},
         {"writes 4 bytes", "4 bytes before the beginning of an allocation of 256 bytes"});
  Planted wide{"ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd0+256];"};
  wide.bytes = 264;
  caught(wide, {"8 bytes over the end of an allocation of 264 bytes"});
  caught({"atom.global.add.u32 %r2, [%rd0+260], 1;"}, {"updates 4 bytes", "4 bytes beyond the end"});
  caught({"mov.u64 %rd3, 0; ld.global.u32 %r2, [%rd3];"}, {"at 0x0:"});
  caught({"st.shared.u32 [first+128], %r0;"},
         {"shared memory", "0 bytes beyond the end of 'first' (128 bytes)"});
  caught({"mov.u32 %r2, second; ld.shared.u32 %r2, [%r2];"}, {"of which byte 0 was never written"});
  caught({"st.local.u32 [array+16], %r0;"}, {"local memory", "beyond the end of 'array' (16 bytes)"});
  caught({"mov.u64 %rd3, p; st.param.u64 [%rd3], %rd0;"}, {"which is read-only"});
  Planted dynamic{"mov.u32 %r2, dynamic; st.shared.u32 [%r2+64], %r0;"};
  dynamic.shared = 64;
  caught(dynamic, {"beyond the end of 'dynamic shared memory' (64 bytes)"});
}

TEST_CASE("misaligned accesses and uninitialised bytes are caught") {
  caught({"ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd0+8];"},
         {"not aligned: the address must be a multiple of 16"});
  Planted fresh{"ld.global.u32 %r2, [%rd2];"};
  fresh.fresh = true;
  caught(fresh, {"of which byte 0 was never written"});
  // A missing barrier: a thread reads what its neighbour has not written yet.
  const std::string exchange =
      "mov.u32 %r2, dynamic; add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], %r0; BARRIER xor.b32 %r4, %r1, 252; "
      "add.u32 %r4, %r4, %r2; "
      "ld.shared.u32 %r5, [%r4];";
  Planted missing{exchange};
  missing.code.replace(missing.code.find("BARRIER"), 7, "");
  missing.block = {64};
  missing.shared = 256;
  caught(missing, {"(ld.shared.u32)", "was never written"});
  missing.code = exchange;
  missing.code.replace(missing.code.find("BARRIER"), 7, "bar.sync 0;");
  CHECK(message(missing) == "nothing was found");
  caught({"mov.u32 %r2, first; add.u32 %r2, %r2, %r1; cp.async.ca.shared.global [%r2], [%rd2], 4; "
          "cp.async.commit_group; ld.shared.u32 "
          "%r3, [%r2];"},
         {"which a cp.async is still writing"});
}

TEST_CASE("address arithmetic wraps at the width of its space") {
  // nvcc keeps the base minus 1024 in a register of 32 bits, and adds 1024 in the instruction.
  const std::string low = "mov.u32 %r2, first; sub.u32 %r2, %r2, 1024; add.u32 %r3, %r2, %r1; ",
                    filled =
                        "st.shared.u32 [%r3+1024], %r0; bar.warp.sync -1; and.b32 %r4, %r1, 112; "
                        "add.u32 %r4, %r4, %r2; ";
  for (
      const std::string& use :
      {"st.shared.u32 [%r3+1024], %r0; ld.shared.u32 %r4, [%r3+1024];"s,
       "st.shared.u32 [%r3+1024], %r0; atom.shared.add.u32 %r4, [%r3+1024], 1; red.shared.add.u32 [%r3+1024], 1;"s,
       "st.shared.u32 [%r3+1024], %r0; atom.shared.add.noftz.f16x2 %r4, [%r3+1024], %r0;"s,
       "cp.async.ca.shared.global [%r3+1024], [%rd2], 4; cp.async.wait_all; ld.shared.u32 %r4, [%r3+1024];"s,
       "cvt.u64.u32 %rd3, %r3; st.shared.u32 [%rd3+1024], %r0;"s,
       "cvt.s64.s32 %rd3, %r3; st.shared.u32 [%rd3+1024], %r0;"s,
       filled + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4+1024];",
       filled + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4+1024], {%r0};",
       "setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r3+1024], 1;"s,
       "mov.u32 %r4, array; sub.u32 %r4, %r4, 64; st.local.u32 [%r4+64], %r0; ld.local.u32 %r5, [%r4+64];"s}) {
    INFO(use);
    CHECK(message({low + use}) == "nothing was found");
  }
  caught({"mov.u32 %r2, first; st.shared.u32 [%r2+-8], %r0;"},
         {"writes 4 bytes of shared memory", "8 bytes before the beginning of 'first' (128 bytes)"});
}

TEST_CASE("lanes and threads that never come are named") {
  caught(
      {"setp.lt.u32 %p0, %r0, 16; @%p0 bra L; bar.warp.sync -1; exit; L: bar.sync 0; shfl.sync.bfly.b32 %r2, "
       "%r0, 1, 31, 0xffff;"},
      {"(bar.warp.sync)", "the lanes 0xffff0000 wait for lanes that never come", "waiting at planted.cu:42"});
  caught({"shfl.sync.idx.b32 %r2, %r0, 20, 31, 0xffff;"},
         {"thread (16, 0, 0)", "does not name the lane itself"});
  caught({"setp.lt.u32 %p0, %r0, 16; @!%p0 exit; shfl.sync.bfly.b32 %r2, %r0, 16, 31, 0xffff;"},
         {"reads lane 16, which the mask 0xffff does not name"});
  Planted barrier{"setp.lt.u32 %p0, %r0, 32; @%p0 bra L; bar.sync 1; exit; L: bar.sync 2;"};
  barrier.block = {64};
  caught(barrier, {"waits for all threads of the block, but others wait at"});
  barrier.code = "setp.lt.u32 %p0, %r0, 32; @%p0 bra L; bar.sync 0; exit; L: bar.sync 0;";
  caught(barrier, {"the threads of a block must wait at the same barrier"});
  barrier.code = "setp.lt.u32 %p0, %r0, 32; @%p0 bar.sync 0, 64;";
  caught(barrier, {"waits for 64 threads, and only 32 of its warp came"});
  barrier.code = "setp.lt.u32 %p0, %r0, 32; @%p0 bar.sync 3, 32;";
  CHECK(message(barrier) == "nothing was found");
}

TEST_CASE("lanes that have ended or do not exist count as arrived") {
  const auto right = [](const std::string& code, u32 threads) {
    for (const u64 seed : {0, 1, 2, 3}) {
      INFO(code << " with " << threads << " threads, seed " << seed);
      Planted planted{code};
      planted.block = {threads};
      planted.seed = seed;
      CHECK(message(planted) == "nothing was found");
    }
  };
  const std::string leave = "setp.lt.u32 %p0, %r0, 20; @!%p0 exit; ";
  const std::string instructions[] = {
      "vote.sync.ballot.b32 %r2, %p0, -1; setp.ne.u32 %p1, %r2, 0xfffff; @%p1 trap;",
      "vote.sync.all.pred %p1, %p0, -1; @!%p1 trap;",
      "match.any.sync.b32 %r2, %r1, -1;",
      "match.all.sync.b32 %r2|%p1, 7, -1; @!%p1 trap; setp.ne.u32 %p1, %r2, 0xfffff; @%p1 trap;",
      "redux.sync.add.u32 %r2, %r0, -1; setp.ne.u32 %p1, %r2, 190; @%p1 trap;",
      "shfl.sync.up.b32 %r2, %r0, 1, 0, -1;",
      "bar.warp.sync -1;",
      "elect.sync %r2|%p1, -1;",
      "bar.sync 0;",
      "bar.sync 1, 32;",
      "bar.arrive 1, 32;",
      "bar.red.popc.u32 %r2, 0, %p0; setp.ne.u32 %p1, %r2, 20; @%p1 trap;",
      "barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.arrive; barrier.cluster.wait;"};
  for (const std::string& one : instructions) {
    right(leave + one, 32);
    right("setp.lt.u32 %p0, %r0, 20; " + one, 20);
    // They end while the others wait.
    right("setp.lt.u32 %p0, %r0, 20; @!%p0 bra LATER; " + one + " exit; LATER: nanosleep.u32 9; exit;", 32);
  }
  // Whole warps, too; a warp may end behind the first barrier.
  right("setp.lt.u32 %p0, %r0, 20; @!%p0 exit; bar.sync 0; bar.sync 0;", 128);
  right("setp.lt.u32 %p0, %r0, 20; bar.sync 0; @!%p0 exit; bar.sync 0;", 128);
  right("bar.sync 1, 64;", 48);
  // What an absent lane would give is undefined, and a matrix instruction needs all lanes.
  caught({leave + "shfl.sync.bfly.b32 %r2, %r0, 16, 31, -1;"},
         {"(shfl.sync.bfly.b32)", "reads lane", "which has ended or does not exist"});
  const std::string matrix = "mov.u32 %r2, first; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r2];";
  Planted few{matrix};
  few.block = {8};
  caught(few,
         {"all 32 lanes of the warp must execute it, but the lanes 0xffffff00 have ended or do not exist"});
  caught({leave + matrix}, {"but the lanes 0xfff00000 have ended"});
}

TEST_CASE("loops without end, traps and indices without a target end the kernel") {
  caught({"L: bra L;"}, {"did not end within 100000 instructions"});
  caught({"trap;"}, {"the kernel stopped itself"});
  caught({"t: .branchtargets A, B; brx.idx %r0, t; A: mov.u32 %r2, 1; B: mov.u32 %r2, 2;"},
         {"thread (2, 0, 0)", "index 2 has no target"});
}

TEST_CASE("launches that a GPU would refuse are refused") {
  Machine m;
  m.load(kHead + ".visible .entry k(.param .u64 p, .param .u32 n)\n.maxntid 64, 1, 1\n{ ret; }\n");
  const u64 p = 0;
  const u32 n = 0;
  CHECK_THROWS_WITH(m.launch("absent", {1}, {1}, 0), ContainsSubstring("has a kernel 'absent'"));
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, p), ContainsSubstring("has 2 parameters, and 1 were passed"));
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 0, p, p),
                    ContainsSubstring("parameter 1 of kernel 'k' has 4 bytes, and 8 were passed"));
  CHECK_THROWS_WITH(m.launch("k", {1}, {65}, 0, p, n), ContainsSubstring("more than its .maxntid"));
  CHECK_THROWS_WITH(m.launch("k", {0}, {1}, 0, p, n), ContainsSubstring("the grid is empty"));
  CHECK_THROWS_WITH(m.launch("k", {1}, {2000}, 0, p, n), ContainsSubstring("2000 threads"));
  CHECK_THROWS_WITH(m.launch("k", {1}, {1}, 1 << 20, p, n), ContainsSubstring("bytes of shared memory"));
  const u64 memory = m.memory().allocate(16);
  CHECK_THROWS_WITH(m.memory().write(memory + 8, &p, 9), ContainsSubstring("1 byte over the end"));
  CHECK_THROWS_AS(m.memory().remove(memory + 1), UsageError);
  m.memory().remove(memory);
  CHECK_THROWS_AS(m.memory().remove(memory), UsageError);
}
