#pragma once
// Runs a few instructions of PTX on many operands.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/tools/ptx/machine.h"

namespace ptx_machine {

struct Operands {
  std::uint64_t a = 0, b = 0, c = 0;
};

/// Executes `code` once for each element of `cases`, and returns what it put into `result`. Its operands are
/// %ha, %hb, %hc (16 bits), %wa ... (32 bits) and %la ... (64 bits), the low parts of a, b and c; its results
/// %hd, %wd, %ld or the predicate %pd.
inline std::vector<std::uint64_t> evaluate(const std::string& code, const std::string& result,
                                           const std::vector<Operands>& cases,
                                           tapestry::ptx::Options options = {}) {
  using namespace tapestry::ptx;
  Machine m;
  m.options() = options;
  std::string text = R"(.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n) {
.reg .pred %p0, %pd, %pe;
.reg .b16 %ha, %hb, %hc, %hd;
.reg .b32 %wa, %wb, %wc, %wd, %we, %i, %n;
.reg .b64 %la, %lb, %lc, %ld, %at, %in, %out;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
ld.param.u32 %n, [n];
mov.u32 %i, %ctaid.x;
mad.lo.u32 %i, %i, 64, 0;
mov.u32 %wa, %tid.x;
add.u32 %i, %i, %wa;
setp.ge.u32 %p0, %i, %n;
@%p0 exit;
mad.wide.u32 %at, %i, 24, %in;
)";
  const char* const names[] = {"a", "b", "c"};
  for (int k = 0; k < 3; ++k) {
    const std::string x = names[k];
    text += "ld.global.u64 %l" + x + ", [%at+" + std::to_string(8 * k) + "];\ncvt.u32.u64 %w" + x + ", %l" +
            x + ";\ncvt.u16.u64 %h" + x + ", %l" + x + ";\n";
  }
  text += "mov.b64 %ld, 0;\nmov.b32 %wd, 0;\nmov.b16 %hd, 0;\n" + code + "\n";
  if (result == "%pd") text += "selp.b64 %ld, 1, 0, %pd;\n";
  else if (result != "%ld")
    text += std::string("cvt.u64.u") + (result == "%wd" ? "32" : "16") + " %ld, " + result + ";\n";
  text += "mad.wide.u32 %at, %i, 8, %out;\nst.global.u64 [%at], %ld;\nret;\n}\n";
  m.load(text);
  const std::uint64_t in = m.memory().allocate(24 * cases.size()),
                      out = m.memory().allocate(8 * cases.size());
  m.memory().write(in, cases.data(), 24 * cases.size());
  const auto n = static_cast<std::uint32_t>(cases.size());
  m.launch("k", {(n + 63) / 64}, {64}, 0, in, out, n);
  std::vector<std::uint64_t> results(cases.size());
  m.memory().read(out, results.data(), 8 * cases.size());
  return results;
}

/// Numbers at the ends of ranges and random ones: all pairs of 24 special values, and 400 random triples.
inline std::vector<Operands> integer_cases() {
  std::vector<std::uint64_t> special = {0,
                                        1,
                                        2,
                                        3,
                                        7,
                                        8,
                                        15,
                                        16,
                                        31,
                                        32,
                                        33,
                                        63,
                                        64,
                                        65,
                                        255,
                                        256,
                                        0x7fff,
                                        0x8000,
                                        0xffff,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        ~std::uint64_t{0}};
  std::vector<Operands> cases;
  for (const std::uint64_t a : special)
    for (const std::uint64_t b : special) cases.push_back({a, b, a ^ (b << 1)});
  std::uint64_t state = 88172645463325252u;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t a = next(), b = next(), c = next();
    cases.push_back({a, i % 2 ? b : b & 63, i % 3 ? c : c & 63});
  }
  return cases;
}

}  // namespace ptx_machine
