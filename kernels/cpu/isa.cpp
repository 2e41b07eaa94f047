#include "tapestry/kernels/cpu/isa.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <utility>

namespace tapestry::kernels::cpu {
namespace {

Isa of_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
    return Isa::none;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512_vnni;
#else
  return Isa::none;
#endif
}

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
  static const Isa best = std::min(of_processor(), allowed());
  return best;
}

}  // namespace tapestry::kernels::cpu
