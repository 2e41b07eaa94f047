// Counters of known programs equal what theory says; what an SM holds equals NVIDIA's occupancy calculator.
#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/gpu.h"
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// Runs a kernel with the addresses %rd0 and %rd9 of 1 MiB each; %r0 is the thread of the launch, %r1 that of
/// the block, %r2 the lane. %rd1 and %rd2 are %rd0 and %rd9 + 4 %r0.
Counters count(const std::string& code, Dim grid = {1}, Dim block = {32}) {
  Machine m;
  m.load(R"(.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 out)
{
.shared .align 128 .b8 s[16896];
.local .align 4 .b8 array[16];
.reg .pred %p<9>;
.reg .b16 %h<9>;
.reg .b32 %r<20>;
.reg .f32 %f<9>;
.reg .b64 %rd<20>;
ld.param.u64 %rd0, [p];
ld.param.u64 %rd9, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mad.lo.u32 %r0, %r3, %r4, %r1;
mov.u32 %r2, %laneid;
mul.wide.u32 %rd3, %r0, 4;
add.s64 %rd1, %rd0, %rd3;
add.s64 %rd2, %rd9, %rd3;
mov.u32 %r5, s;
)" + code +
         "\nret;\n}\n");
  m.options().count = true;
  m.options().check_initialised = false;
  constexpr u64 kBytes = 1 << 20;
  const u64 p = m.memory().allocate(kBytes), out = m.memory().allocate(kBytes);
  const Counts counts = m.launch("k", grid, block, 0, p, out);
  const Counters& c = m.counters();
  CHECK(c.warp_instructions == counts.warp_instructions);
  CHECK(c.thread_instructions == counts.thread_instructions);
  return c;
}
/// Lane i accesses shared memory at i * stride + offset, with the instruction.
SharedTraffic shared(const std::string& instruction, u32 stride, bool loads = true) {
  const Counters c = count("mad.lo.u32 %r6, %r2, " + std::to_string(stride) + ", %r5;\n" + instruction);
  return loads ? c.shared_loads : c.shared_stores;
}
const std::string kLoad4 = "ld.shared.u32 %r7, [%r6];", kLoad8 = "ld.shared.v2.u32 {%r7, %r8}, [%r6];",
                  kLoad16 = "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];";

}  // namespace

TEST_CASE("a copy of f32 moves 4 sectors a request, and each byte once") {
  const Counters c = count("ld.global.f32 %f0, [%rd1]; st.global.f32 [%rd2], %f0;", {8}, {256});
  CHECK(c.loads.requests == 64);
  CHECK(c.loads.sectors_per_request() == 4.0);
  CHECK(c.stores.sectors_per_request() == 4.0);
  CHECK(c.loads.bytes == 8192);
  CHECK(c.unique_read == 8192);
  CHECK(c.unique_written == 8192);
  CHECK(c.unique_sectors == 512);
  CHECK(c.moved_over_needed() == 1.0);
  CHECK(c.average_active_lanes() == 32.0);
  CHECK(c.blocks == 8);
  CHECK(c.threads == 2048);
  CHECK(c.by_opcode.at("ld.global.f32") == 64);
  REQUIRE(c.places.size() == 2);
  CHECK(c.places[0].memory.sectors == 256);
  // 16 bytes for each lane are 16 sectors. A warp's 32 words that begin one word behind a sector touch five.
  CHECK(count("mul.wide.u32 %rd4, %r0, 16; add.s64 %rd4, %rd4, %rd0; ld.global.v4.u32 {%r6, %r7, %r8, %r9}, "
              "[%rd4];")
            .loads.sectors_per_request() == 16.0);
  CHECK(count("ld.global.f32 %f0, [%rd1+4];").loads.sectors_per_request() == 5.0);
  CHECK(count("ld.global.f32 %f0, [%rd0];").loads.sectors_per_request() == 1.0);
  CHECK(count("cp.async.ca.shared.global [%r5], [%rd0], 16; cp.async.wait_all;", {1}, {1}).loads.sectors ==
        1);
}

TEST_CASE("strided loads move a sector for each lane from a stride of 32 bytes on") {
  for (const u32 stride : {1, 2, 4, 8, 32}) {
    const Counters c = count("mul.wide.u32 %rd4, %r0, " + std::to_string(4 * stride) +
                                 "; add.s64 %rd4, %rd4, %rd0; ld.global.f32 %f0, [%rd4];",
                             {4}, {64});
    CHECK(c.loads.sectors_per_request() == std::min(32.0, 4.0 * stride));
    CHECK(c.moved_over_needed() == std::min(8.0, 1.0 * stride));
  }
}

TEST_CASE("a transposition conflicts 32 ways without padding, and not at all with it") {
  for (const u32 pitch : {128, 132}) {
    // 32 x 32 threads. A warp writes a row of the tile, and then reads a column.
    const Counters c = count(
        "shr.u32 %r6, %r1, 5; mad.lo.u32 %r7, %r6, " + std::to_string(pitch) +
            ", %r5; shl.b32 %r8, %r2, 2; add.u32 %r7, %r7, %r8; ld.global.u32 %r9, [%rd1]; st.shared.u32 "
            "[%r7], %r9; bar.sync 0; mad.lo.u32 %r10, %r2, " +
            std::to_string(pitch) +
            ", %r5; shl.b32 %r11, %r6, 2; add.u32 %r10, %r10, %r11; ld.shared.u32 %r12, [%r10]; "
            "st.global.u32 [%rd2], %r12;",
        {1}, {1024});
    CHECK(c.shared_stores.requests == 32);
    CHECK(c.shared_stores.conflicts == 0);
    CHECK(c.shared_stores.passes_per_request() == 1.0);
    CHECK(c.shared_loads.passes_per_request() == (pitch == 128 ? 32.0 : 1.0));
    CHECK(c.shared_loads.conflicts == (pitch == 128 ? 32 * 31 : 0));
    CHECK(c.shared_loads.worst == (pitch == 128 ? 32 : 1));
    CHECK(c.loads.sectors_per_request() == 4.0);
    CHECK(c.stores.sectors_per_request() == 4.0);
    CHECK(c.barriers == 1);
  }
  // Without shared memory, the store goes down a column: 32 sectors.
  const Counters direct = count(
      "mul.wide.u32 %rd4, %r2, 128; shr.u32 %r6, %r1, 5; mul.wide.u32 %rd5, %r6, 4; add.s64 "
      "%rd4, %rd4, %rd5; add.s64 %rd4, %rd4, %rd9; ld.global.u32 %r9, [%rd1]; st.global.u32 "
      "[%rd4], %r9;",
      {1}, {1024});
  CHECK(direct.stores.sectors_per_request() == 32.0);
  CHECK(direct.moved_over_needed() == 4.5);
}

TEST_CASE("passes through the banks depend on stride and width") {
  const auto passes = [](const std::string& load, u32 stride) {
    const SharedTraffic t = shared(load, stride);
    CHECK(t.requests == 1);
    return t.passes;
  };
  CHECK(passes(kLoad4, 4) == 1);
  CHECK(passes(kLoad4, 0) == 1);  // one word for all
  CHECK(passes(kLoad4, 8) == 2);
  CHECK(passes(kLoad4, 12) == 1);
  CHECK(passes(kLoad4, 16) == 4);
  CHECK(passes(kLoad4, 64) == 16);
  CHECK(passes("ld.shared.u8 %h0, [%r6];", 1) == 1);
  CHECK(passes("ld.shared.u16 %h0, [%r6];", 2) == 1);
  CHECK(passes("ld.shared.u16 %h0, [%r6];", 128) == 32);
  // Halves of the warp: 16 lanes of 8 bytes fill the banks.
  CHECK(passes(kLoad8, 8) == 2);
  CHECK(passes(kLoad8, 16) == 4);
  CHECK(passes(kLoad8, 128) == 32);
  CHECK(shared(kLoad8, 8).conflicts == 0);
  CHECK(shared(kLoad8, 16).conflicts == 2);
  // Quarters: 8 lanes of 16 bytes.
  CHECK(passes(kLoad16, 16) == 4);
  CHECK(passes(kLoad16, 32) == 8);
  CHECK(passes(kLoad16, 144) == 4);
  CHECK(passes(kLoad16, 128) == 32);
  CHECK(shared(kLoad16, 16).conflicts == 0);
  CHECK(shared("st.shared.v4.u32 [%r6], {%r7, %r7, %r7, %r7};", 128, false).conflicts == 28);
  // Rows of 8 x 8 matrices: a pitch of 128 bytes lets all rows of a matrix meet in four banks.
  const std::string matrices = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r7, %r8, %r9, %r10}, [%r6];";
  CHECK(passes(matrices, 16) == 4);
  CHECK(passes(matrices, 144) == 4);
  CHECK(passes(matrices, 128) == 32);
  CHECK(passes(matrices, 64) == 16);
  // Half of the lanes.
  CHECK(count("setp.lt.u32 %p0, %r2, 16; shl.b32 %r6, %r2, 3; add.u32 %r6, %r6, %r5; @%p0 ld.shared.v2.u32 "
              "{%r7, %r8}, "
              "[%r6];")
            .shared_loads.passes == 1);
  // Atomics on one word come one after another.
  const Counters c = count("atom.shared.add.u32 %r7, [%r5], 1; red.global.add.u32 [%rd0], 1;");
  CHECK(c.shared_atomics.passes == 32);
  CHECK(c.atomics == 64);
  CHECK(c.global_atomics.sectors == 1);
}

TEST_CASE("divergence, pipes and floating-point operations") {
  const Counters c = count(
      "setp.lt.u32 %p0, %r2, 8; @%p0 bra A; add.f32 %f0, %f1, %f2; add.f32 %f0, %f0, %f2; bra B; A: "
      "fma.rn.f32 %f0, %f1, %f2, %f3; B: ex2.approx.f32 %f0, %f0;",
      {1}, {64});
  CHECK(c.branches == 4);
  CHECK(c.diverged == 2);
  CHECK(c.flops == 2 * (24 * 2 + 8 * 2));
  CHECK(c.warps_by_pipe[static_cast<std::size_t>(Pipe::kFma)] == 6);
  CHECK(c.threads_by_pipe[static_cast<std::size_t>(Pipe::kFma)] == 2 * (48 + 8));
  CHECK(c.warps_by_pipe[static_cast<std::size_t>(Pipe::kSpecial)] == 2);
  CHECK(c.average_active_lanes() < 32);
  // A predicate does not diverge: the lanes stay together.
  const Counters p = count("setp.lt.u32 %p0, %r2, 8; @%p0 add.f32 %f0, %f1, %f2;");
  CHECK(p.diverged == 0);
  CHECK(p.active_lanes == 32 * p.warp_instructions);
  CHECK(p.thread_instructions == p.active_lanes - 24);
  const Counters m = count(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r6, %r7, %r8, %r9}, "
      "{%r10, %r11}, {%f0, %f1, %f2, %f3};");
  CHECK(m.tensor_products == 16 * 8 * 16);
  CHECK(tensor_products_of("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16") == 64 * 128 * 16 / 4);
  CHECK(flops_of("fma.rn.bf16x2") == 4);
  CHECK(pipe_of("add.s32") == Pipe::kAlu);
  CHECK(pipe_of("fma.rn.f64") == Pipe::kDouble);
  // A word of local memory of 32 lanes is one line.
  CHECK(count("st.local.u32 [array], %r0;").local.sectors == 4);
  Counters sum = c;
  sum.add(c);
  CHECK(sum.flops == 2 * c.flops);
  CHECK(sum.launches == 2);
  CHECK(sum.by_opcode.at("ex2.approx.f32") == 4);
}

TEST_CASE("the blocks that an SM holds are those of NVIDIA's calculator") {
  const Gpu &a = gpu_of(80), &h = gpu_of(90);
  struct Row {
    const Gpu& gpu;
    u32 registers;
    u64 shared;
    u32 threads, blocks;
    std::string limit;
  };
  const Row rows[] = {{a, 32, 0, 256, 8, "warps"},
                      {a, 33, 0, 256, 6, "registers"},
                      {a, 64, 0, 256, 4, "registers"},
                      {a, 255, 0, 256, 1, "registers"},
                      {a, 128, 0, 128, 4, "registers"},
                      {a, 16, 0, 32, 32, "blocks"},
                      {a, 32, 48 * 1024, 128, 3, "shared memory"},
                      {h, 32, 48 * 1024, 128, 4, "shared memory"},
                      {a, 32, 163 * 1024, 128, 1, "shared memory"},
                      {a, 32, 164 * 1024, 128, 0, "shared memory"},
                      {h, 168, 227 * 1024, 384, 1, "registers"},
                      {h, 40, 0, 1024, 1, "registers"},
                      {h, 32, 0, 1024, 2, "warps"}};
  for (const Row& r : rows) {
    INFO(r.gpu.name << ", " << r.registers << " registers, " << r.shared << " bytes, " << r.threads
                    << " threads");
    const Residency o = residency(r.gpu, r.registers, r.shared, r.threads);
    CHECK(o.blocks == r.blocks);
    CHECK(o.limit == r.limit);
    CHECK(o.warps == r.blocks * ((r.threads + 31) / 32));
  }
  CHECK_THROWS_AS(gpu_of(75), UsageError);

  const auto by_ptxas = parse_resources(
      "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_80'\nptxas info    "
      ": Function "
      "properties for k\n    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\nptxas info    "
      ": Used 40 "
      "registers, used 1 barriers, 384 bytes smem, 372 bytes cmem[0]\nptxas info    : Compiling entry "
      "function 'k' for "
      "'sm_90'\nptxas info    : Used 50 registers, 380 bytes cmem[0]\n",
      80);
  CHECK(by_ptxas.at("k").registers == 40);
  CHECK(by_ptxas.at("k").shared == 384);
  CHECK(by_ptxas.at("k").spilled == 12);
  const auto by_cuobjdump = parse_resources(
      "Fatbin elf code:\n================\narch = sm_80\n\nResource usage:\n Common:\n  GLOBAL:0\n Function "
      "k:\n  REG:12 STACK:0 "
      "SHARED:256 LOCAL:0 CONSTANT[0]:380 TEXTURE:0 SURFACE:0 SAMPLER:0\narch = sm_90\n Function k:\n  "
      "REG:14 STACK:0 "
      "SHARED:0 LOCAL:0\n",
      90);
  CHECK(by_cuobjdump.at("k").registers == 14);
}

TEST_CASE("a verdict says what dominates") {
  const Gpu& gpu = gpu_of(80);
  const auto bound = [&](Counters c, u32 registers = 32) {
    c.launches = 1;
    c.blocks = 4096;
    c.threads = c.blocks * 256;
    return verdict(gpu, c, residency(gpu, registers, 0, 256));
  };
  Counters copy;
  copy.warp_instructions = 8 * 4096 * 10;
  copy.loads = {32768, 4 * 32768, 128 * 32768};
  copy.stores = copy.loads;
  copy.unique_sectors = 8 * 32768;
  const Verdict v = bound(copy);
  CHECK(v.bound == Bound::kBytes);
  CHECK_THAT(v.text, ContainsSubstring("bytes dominates on A100"));
  // 32 bytes for each of 262144 sectors at 1555 GB/s and 1.41 GHz.
  CHECK(v.clocks[0] == Approx(262144.0 * 32 / (1555e9 / 1.41e9)));
  CHECK(bound(copy, 255).bound == Bound::kLatency);  // 8 warps on an SM
  Counters fma = copy;
  fma.threads_by_pipe[static_cast<std::size_t>(Pipe::kFma)] = u64{1} << 34;
  CHECK(bound(fma).bound == Bound::kFma);
  Counters tensor = fma;
  tensor.tensor_products = u64{1} << 42;
  CHECK(bound(tensor, 255).bound == Bound::kTensor);
  Counters banks = copy;
  banks.shared_loads.passes = u64{1} << 30;
  CHECK(bound(banks).bound == Bound::kShared);
}
