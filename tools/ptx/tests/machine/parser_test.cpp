// The parser: what it reads, the lines that its errors name, and hostile texts.
#include "tapestry/tools/ptx/parser.h"

#include <algorithm>
#include <sstream>

#include "tapestry/tools/ptx/decode.h"
#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;

namespace {

const std::string kHead = ".version 9.0\n.target sm_90\n.address_size 64\n";
const std::string kText = kHead + R"(
.file 1 "a.cu"
.global .align 8 .b8 data[16] = {1, 2, 0x3};
.func (.param .b32 r) f(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r1, [x]; st.param.b32 [r], %r1; ret; }
.visible .entry k(.param .u64 .ptr .global .align 4 out, .param .align 4 .b8 plan[12])
.maxntid 128, 2
.minnctapersm 3
{
.reg .pred %p<3>; /* a comment
of two lines */ .reg .b32 %r<5>, %x;
.reg .b64 %rd<3>;
.loc 1 7 3, function_name $L__info_string0, inlined_at 1 9 3
ld.param.u64 %rd1, [out];
{ .reg .b32 %r<9>, %x; mov.u32 %r8, 0x1F; mov.b32 %x, 0f3F800000; }
LOOP:
setp.eq.or.s32 %p1|%p2, %r1, -5, !%p1;
@!%p1 bra LOOP; // back
mov.b64 {%r1, _}, %rd1;
ret;
}
.section .debug_str
{
$L__info_string0:
.b8 95,0
}
)";

int line_of(const std::string& text) {
  try {
    const Module module = parse(kHead + text);
    for (const auto& f : module.functions)
      if (f->is_entry && f->has_body) decode(module, *f, nullptr);
  } catch (const ParseError& e) {
    CHECK_THAT(std::string(e.what()), ContainsSubstring("[ptx] line " + std::to_string(e.line()) + ": "));
    return e.line() - 3;
  }
  return -1;
}
int body(const std::string& code) {
  return line_of(".entry k() {\n.reg .b32 %r<4>; .reg .b64 %l<2>; .reg .pred %p;\n" + code + "\n}");
}

}  // namespace

TEST_CASE("a module has its functions, variables, bounds and source lines") {
  const Module m = parse(kText);
  CHECK(m.version == "9.0");
  CHECK(m.target == "sm_90");
  CHECK(m.files.at(1) == "a.cu");
  CHECK(m.variables.at(0).bytes == 16);
  CHECK(m.variables.at(0).initial == std::vector<std::uint8_t>{1, 2, 3});
  const Function& k = *m.find("k");
  CHECK(k.max_threads[0] * k.max_threads[1] * k.max_threads[2] == 256);
  CHECK(k.min_blocks == 3);
  CHECK(k.instructions.at(0).source_line == 7);
  CHECK(k.instructions.at(3).opcode == "setp.eq.or.s32");
  CHECK(k.labels.at("LOOP") == 3);
  const Program p = decode(m, k, nullptr);
  CHECK(p.parameters.at(1).offset == 8);
  CHECK(p.parameter_bytes == 20);
  CHECK(m.find("f")->results.size() == 1);
}

TEST_CASE("errors name the line") {
  CHECK(line_of(".entry k() {\n.reg .b32 %r<2>;\nmov.u32 %r1, %r2;\n}") == 3);
  CHECK(line_of("\n.unknown 3;") == 2);
  CHECK(body("frobnicate.s32 %r1, %r2;") == 3);
  CHECK(body("add.s32 %r1, %r2, %r3;\nadd.s33 %r1, %r2, %r3;") == 4);
  CHECK(body("add.s32 %r1, %r2;") == 3);
  CHECK(body("add.s32 %r1, %r2, %r3, %r1;") == 3);
  CHECK(body("add.s32 %r1, %r2, %l1;") == 3);
  CHECK(body("add.s32 5, %r2, %r1;") == 3);
  CHECK(body("bra NOWHERE;") == 3);
  CHECK(body("@%r1 bra L; L:") == 3);
  CHECK(body("L:\nL: ret;") == 4);
  CHECK(body("ld.global.v2.u32 {%r1, %r2, %r3}, [%l1];") == 3);
  CHECK(body("ld.global.u64 %r1, [%l1];") == 3);
  CHECK(body("ld.global.u32 %r1, %l1;") == 3);
  CHECK(body("ld.shared.u32 %r1, [absent];") == 3);
  CHECK(body("mov.u32 %r1, %bogus;") == 3);
  CHECK(body("call.uni absent, ();") == 3);
  CHECK(body("cvt.f16.f32 %r1, %r2;") == 3);  // the rounding is missing
  CHECK(body("cvt.s32.f32 %r1, %r2;") == 3);
  CHECK(body("tex.2d.v4.f32.s32 {%r1, %r1, %r1, %r1}, [t, {%r1, %r1}];") == 3);
  CHECK(body("tcgen05.wait::ld.sync.aligned;") == 3);
  CHECK(line_of(".entry k() {\n/* open") == 2);
  CHECK(line_of(".entry k() { ret;") == 1);
  CHECK(line_of(".extern .func vprintf(.param .b64 a);\n.entry k() {\ncall vprintf, ();\n}") == 3);
  CHECK(line_of(".func f() {\ncall.uni f, ();\n}\n.entry k() { call.uni f, (); }") >= 1);  // recursion
}

TEST_CASE("modifiers may stand in any order in which ptxas takes them") {
  // The number is that of the words that ptxas wants in front.
  const std::pair<const char*, std::size_t> opcodes[] = {
      {"vote.sync.ballot.b32", 1},
      {"vote.sync.all.pred", 1},
      {"shfl.sync.up.b32", 1},
      {"match.any.sync.b32", 1},
      {"redux.sync.add.u32", 1},
      {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", 1},
      {"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 1},
      {"movmatrix.sync.aligned.m8n8.trans.b16", 1},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 1},
      {"add.rn.ftz.sat.f32", 1},
      {"add.cc.s32", 1},
      {"mad.lo.cc.s32", 2},
      {"setp.eq.and.s32", 1},
      {"set.eq.ftz.u32.f32", 1},
      {"slct.ftz.f32.f32", 1},
      {"shf.l.wrap.b32", 2},
      {"prmt.b32.f4e", 1},
      {"lop3.or.b32", 1},
      {"cvt.rn.ftz.sat.f32.f64", 1},
      {"cvt.rn.relu.bf16x2.f32", 1},
      {"ex2.approx.ftz.f32", 1},
      {"min.ftz.NaN.f32", 1},
      {"fma.rn.relu.bf16x2", 1},
      {"ld.volatile.global.v2.u32", 1},
      {"ld.global.nc.L1::no_allocate.v4.f32", 1},
      {"st.release.gpu.global.u32", 1},
      {"atom.acq_rel.gpu.global.add.u32", 1},
      {"atom.global.add.noftz.f16x2", 1},
      {"red.relaxed.gpu.global.add.f32", 1},
      {"cp.async.cg.shared.global.L2::128B", 2},
      {"cvta.to.shared.u64", 2},
      {"mbarrier.arrive.release.cta.shared.b64", 2},
      {"mbarrier.try_wait.parity.shared.b64", 3},
      {"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", 2}};
  for (const auto& [name, first] : opcodes) {
    INFO(name);
    Entry documented;
    REQUIRE(find_entry(name, documented));
    std::vector<std::string> parts;
    std::istringstream text(name);
    for (std::string part; std::getline(text, part, '.');) parts.push_back(part);
    const bool copies = parts[0] == "cp";  // its spaces belong to operands, as types do
    const auto is_type = [&](const std::string& part) {
      Type type;
      return parse_type(part, type) || part == "bf16x2" || part == "f16x2" ||
             (copies && (part == "shared" || part == "global"));
    };
    std::vector<std::size_t> order(parts.size() - first);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = first + i;
    do {
      std::vector<std::size_t> types;  // they keep their order
      std::copy_if(order.begin(), order.end(), std::back_inserter(types),
                   [&](std::size_t i) { return is_type(parts[i]); });
      if (!std::is_sorted(types.begin(), types.end())) continue;
      std::string opcode = parts[0];
      for (std::size_t i = 1; i < first; ++i) opcode += "." + parts[i];
      for (const std::size_t i : order) opcode += "." + parts[i];
      Entry found;
      const bool same = find_entry(opcode, found) && found.run == documented.run &&
                        found.signature == documented.signature && found.flags == documented.flags &&
                        found.order == documented.order;
      if (!same) FAIL_CHECK(opcode);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  for (const char* const code :
       {"barrier.aligned.sync 0;", "barrier.red.aligned.u32.popc %r1, 0, %p;", "bar.red.pred.and %p, 0, %p;",
        "fence.gpu.acq_rel;", "barrier.arrive.aligned 1, 64;"}) {
    INFO(code);
    CHECK(body(code) == -1);
  }
  CHECK(body("vote.sync.b32 %r1, %p, -1;") == 3);
  CHECK(body("mad.f32.lo.rn %r1, %r1, %r1, %r1;") == 3);
}

TEST_CASE("special registers and WARP_SZ are read in their widths") {
  for (const char* const code :
       {"mov.u32 %r1, %clock;", "mov.u32 %r1, %clock_hi;", "mov.u64 %l1, %clock64;",
        "mov.u64 %l1, %globaltimer;", "mov.u32 %r1, %globaltimer_lo;", "mov.u32 %r1, %globaltimer_hi;",
        "mov.u64 %l1, %gridid;", "mov.u32 %r1, %gridid;", "mov.u32 %r1, %nsmid;", "mov.u32 %r1, %envreg0;",
        "mov.u32 %r1, %envreg2;", "mov.u32 %r1, %envreg31;", "mov.b32 %r1, %aggr_smem_size;",
        "mov.pred %p, %is_explicit_cluster;", "mov.u32 %r1, WARP_SZ;", "add.u32 %r1, %r1, WARP_SZ;",
        "mov.u64 %l1, WARP_SZ;", "ld.global.u32 %r1, [%l1+WARP_SZ];", "@%p mov.u64 %l1, %clock64;"}) {
    INFO(code);
    CHECK(body(code) == -1);
  }
  for (const char* const code :
       {"mov.u32 %r1, %clock64;", "mov.u64 %l1, %nsmid;", "mov.u32 %r1, %envreg32;",
        "mov.u32 %r1, %envreg01;", "mov.u32 %r1, %envreg;", "mov.u32 %r1, %envregx;"}) {
    INFO(code);
    CHECK(body(code) == 3);
  }
}

TEST_CASE("what the machine does not know refuses its kernel, and not the module") {
  const std::string good = ".entry good() { ret; }\n";
  for (const char* const text :
       {".entry bad()\n.blocksareclusters\n{ ret; }", ".entry bad()\n.reqnctapercluster 2, 1, 1\n{ ret; }",
        ".entry bad() {\nprototype: .callprototype _ (.param .b32 _); ret; }",
        ".entry bad() {\n.unknown { a, b; }; ret; }", ".entry bad() {\nfrobnicate {1, 2}, ; }",
        ".func helper() {\n.unknown 3; ret; }\n.entry bad() { call.uni helper, (); }",
        ".global .texref image;\n.entry bad() { .reg .b64 %l<2>; mov.u64 %l1, image; }",
        ".global .attribute(.managed) .align 4 .u32 x;\n.entry bad() { .reg .b64 %l<2>; mov.u64 %l1, x; }"}) {
    INFO(text);
    for (const std::string& all : {kHead + text + "\n" + good, kHead + good + text}) {
      const Module m = parse(all);
      CHECK_NOTHROW(decode(m, *m.find("good"), nullptr));
      CHECK_THROWS_AS(decode(m, *m.find("bad"), nullptr), ParseError);
    }
  }
  const Module m =
      parse(kHead + ".global .texref image;\n.entry bad() { .reg .b64 %l<2>; mov.u64 %l1, image; }");
  CHECK_THROWS_WITH(decode(m, *m.find("bad"), nullptr), ContainsSubstring("'.texref'"));
  // Clusters of one block are blocks.
  CHECK(line_of(".entry k()\n.explicitcluster\n.reqnctapercluster 1, 1, 1\n.maxclusterrank 4\n{ ret; }") ==
        -1);
  CHECK(line_of(".global .attribute(.unified(1, 2)) .align 4 .u32 x;\n.entry k() { ret; }") == -1);
}

TEST_CASE("hostile texts end with an error, not with a crash") {
  // Mutations of a valid text: bytes changed, removed, repeated, and swapped with others.
  std::uint32_t state = 12345;
  const auto below = [&](std::size_t n) {
    return (state = state * 1664525 + 1013904223) / 65536 % static_cast<std::uint32_t>(n);
  };
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = kText;
    for (std::uint32_t changes = 1 + below(4); changes > 0; --changes) {
      const std::size_t at = kHead.size() + below(text.size() - kHead.size()), length = 1 + below(12);
      switch (below(4)) {
        case 0:
          text[at] = " {}()[];,.%@!|<>+-0129abrx\"\n"[below(28)];
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), length));
          break;
        default:
          std::swap(text[at], text[kHead.size() + below(text.size() - kHead.size())]);
      }
    }
    try {
      const Module m = parse(text);
      for (const auto& f : m.functions)
        if (f->is_entry && f->has_body) decode(m, *f, nullptr);
    } catch (const ParseError&) {
      ++refused;
    }
  }
  CHECK(refused > 700);
  CHECK_THROWS_AS(parse(""), ParseError);
  CHECK_THROWS_AS(parse(kHead + std::string(100000, '{')), ParseError);
  CHECK_THROWS_AS(parse(kHead + ".entry k() " + std::string(100000, '{')), ParseError);
  CHECK_THROWS_AS(parse(kHead + ".global .b8 x[99999999999];"), ParseError);
  CHECK(line_of(".entry k() { .reg .b32 %r<99999999>; }") == 1);
}

TEST_CASE("the output of cuobjdump is split into its modules") {
  const std::string output = "\nFatbin elf code:\n====\n\nFatbin ptx code:\n====\narch = sm_90\n\n\n" +
                             kHead + ".entry a() { ret; }\n\nFatbin ptx code:\n====\narch = sm_90\n\n" +
                             kHead + ".entry b() { ret; }\n";
  const auto modules = split_modules(output);
  REQUIRE(modules.size() == 2);
  CHECK(parse(modules[0]).find("a"));
  CHECK(parse(modules[1]).find("b"));
  CHECK(split_modules(kText).size() == 1);
}
