// Ends a process whose processor lacks instructions for which the library was compiled. This file is compiled
// for any x86-64 (cmake/processors.cmake).
#include <unistd.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <cstring>

#include "tapestry/kernels/cpu/isa.h"

namespace tapestry::kernels::cpu {
namespace {

#if defined(__x86_64__) && defined(__GNUC__)
// AMX-TILE and AMX-BF16, whose names g++ and clang do not know in __builtin_cpu_supports. The operating
// system must save the tile registers. A processor with AVX-512 has XGETBV.
bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kTiles = 3u << 17;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kAmxBf16) || !(d & kAmxTile)) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTiles) == kTiles;
}
#endif

}  // namespace

Isa isa_of_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  // Processors with AVX2 have F16C, whose name clang 14 does not know here.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2"))
    return Isa::none;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512_vnni;
  return has_amx() ? Isa::amx : Isa::avx512_bf16;
#else
  return Isa::none;
#endif
}

namespace {

// Kernels register themselves when the library is loaded, by code that may have these instructions. A
// constructor with a priority runs before that. It must not throw, so it prints a message and ends the
// process, which would otherwise die of SIGILL.
[[gnu::constructor(101)]] void check_processor() {
  if (isa_of_processor() >= kCompiledFor) return;
  const char* const text = kCompiledFor == Isa::avx2
                               ? "tapestry: this processor has no AVX2, for which the library was compiled. "
                                 "Compile it on this machine, or with -DTAPESTRY_CPU_ARCH=any.\n"
                               : "tapestry: this processor has no AVX-512, for which the library was "
                                 "compiled. Compile it on this machine, or with -DTAPESTRY_CPU_ARCH=any.\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  ::_exit(1);
}

}  // namespace
}  // namespace tapestry::kernels::cpu
