// The parser: what it reads, the lines that its errors name, and hostile texts.
#include "tapestry/tools/ptx/parser.h"
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
  CHECK_THROWS_AS(parse(kHead + ".entry k() { .reg .b32 %r<99999999>; }"), ParseError);
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
