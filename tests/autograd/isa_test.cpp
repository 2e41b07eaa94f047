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
const std::pair<const char*, Isa> kSets[] = {{"AVX512_CORE_VNNI", Isa::avx512_vnni},
                                             {"AVX512_CORE", Isa::avx512},
                                             {"AVX2", Isa::avx2},
                                             {"SSE41", Isa::none}};

}  // namespace

TEST_CASE("DNNL_MAX_CPU_ISA limits the instruction set", "[isa]") {
  const char* const text = std::getenv("DNNL_MAX_CPU_ISA");
  for (const auto& [name, most] : kSets)
    if (text && std::string(text) == name) CHECK(tapestry::kernels::cpu::isa() <= most);
}

TEST_CASE("kernels that choose by instruction set are right with fewer of them") {
  for (const auto& [name, most] : kSets) {
    const ChildResult child = run_child("[isa]", std::string("DNNL_MAX_CPU_ISA=") + name);
    INFO(name << "\n" << child.output);
    CHECK(child.status == 0);
  }
}
