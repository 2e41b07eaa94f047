#include "tapestry/kernels/cpu/isa.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <utility>

namespace tapestry::kernels::cpu {

#if defined(__AVX512F__)
constinit const Isa kCompiledFor = Isa::avx512;
#elif defined(__AVX2__)
constinit const Isa kCompiledFor = Isa::avx2;
#else
constinit const Isa kCompiledFor = Isa::none;
#endif

namespace {

// oneDNN ignores values that it does not know, and so does this function.
Isa allowed() {
  const char* text = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (!text) text = std::getenv("DNNL_MAX_CPU_ISA");
  std::string name = text ? text : "";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const auto& [known, isa] : {std::pair("SSE41", Isa::none),
                                   {"AVX", Isa::none},
                                   {"AVX2", Isa::avx2},
                                   {"AVX2_VNNI", Isa::avx2},
                                   {"AVX512_CORE", Isa::avx512},
                                   {"AVX512_CORE_VNNI", Isa::avx512_vnni}})
    if (name == known) return isa;
  return Isa::avx512_bf16;
}

}  // namespace

Isa isa() {
  static const Isa best = std::min(isa_of_processor(), allowed());
  return best;
}

}  // namespace tapestry::kernels::cpu
