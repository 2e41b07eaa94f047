#include "tapestry/kernels/cpu/isa.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

Isa isa_allowed_by(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const auto& [known, isa] : {std::pair("SSE41", Isa::none),
                                   {"AVX", Isa::none},
                                   {"AVX2", Isa::avx2},
                                   {"AVX2_VNNI", Isa::avx2},
                                   {"AVX2_VNNI_2", Isa::avx2},
                                   {"AVX512_CORE", Isa::avx512},
                                   {"AVX512_CORE_VNNI", Isa::avx512_vnni},
                                   {"AVX512_CORE_BF16", Isa::avx512_bf16},
                                   {"AVX512_CORE_FP16", Isa::avx512_bf16},
                                   {"AVX10_1_512", Isa::avx512_bf16}})
    if (name == known) return isa;
  return Isa::amx;
}

namespace {

// The tile registers would enlarge the frame of every signal, so Linux gives them only to processes that ask
// (Linux's documentation, arch/x86/xstate.rst). It refuses if a thread's alternate signal stack is too small.
bool ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

Isa isa() {
  static const Isa best = [] {
    const char* text = std::getenv("ONEDNN_MAX_CPU_ISA");
    if (!text) text = std::getenv("DNNL_MAX_CPU_ISA");
    const Isa most = std::min(isa_of_processor(), isa_allowed_by(text ? text : ""));
    return most == Isa::amx && !ask_for_tiles() ? Isa::avx512_bf16 : most;
  }();
  return best;
}

}  // namespace tapestry::kernels::cpu
