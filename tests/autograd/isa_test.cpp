// Runs the tests of kernels that choose by instruction set again with fewer of them, one by one. What kernels
// were compiled for stays (cmake/processors.cmake).
#include <cstdlib>
#include <utility>

#include "tapestry/kernels/cpu/isa.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using tapestry::kernels::cpu::Isa;

namespace {

// oneDNN's names, and what kernels may use at most.
const std::pair<const char*, Isa> kSets[] = {{"AVX512_CORE_BF16", Isa::avx512_bf16},
                                             {"AVX512_CORE_VNNI", Isa::avx512_vnni},
                                             {"AVX512_CORE", Isa::avx512},
                                             {"AVX2", Isa::avx2},
                                             {"SSE41", Isa::none}};

}  // namespace

TEST_CASE("DNNL_MAX_CPU_ISA limits the instruction set", "[isa]") {
  const char* const text = std::getenv("DNNL_MAX_CPU_ISA");
  for (const auto& [name, most] : kSets)
    if (text && std::string(text) == name) CHECK(tapestry::kernels::cpu::isa() <= most);
}

TEST_CASE("oneDNN's names of instruction sets, in either case; an unknown name allows all") {
  using tapestry::kernels::cpu::isa_allowed_by;
  for (const auto& [name, most] : kSets) CHECK(isa_allowed_by(name) == most);
  for (const char* const name : {"avx512_core_bf16", "AVX512_CORE_FP16", "avx10_1_512"})
    CHECK(isa_allowed_by(name) == Isa::avx512_bf16);
  for (const char* const name : {"AVX512_CORE_AMX", "AVX10_1_512_AMX", "ALL", "DEFAULT", "", "AVX513"})
    CHECK(isa_allowed_by(name) == Isa::amx);
}

TEST_CASE("kernels that choose by instruction set are right with fewer of them") {
  for (const auto& [name, most] : kSets) {
    if (most == Isa::avx512_bf16 && tapestry::kernels::cpu::isa() <= most)
      continue;  // nothing is switched off
    const ChildResult child = run_child("[isa]", std::string("DNNL_MAX_CPU_ISA=") + name);
    INFO(name << "\n" << child.output);
    CHECK(child.status == 0);
  }
}
