#include "tapestry/kernels/cpu/bf16_dot.h"

#include <atomic>

#include "tapestry/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace tapestry::kernels::cpu {
namespace {

// Whether the processor multiplies tiles of bf16, even if the system or the environment forbids it.
bool processor_has_amx() {
#if defined(__x86_64__) && defined(__GNUC__)
  constexpr unsigned kAmxBf16 = 1u << 22;  // in EDX of CPUID's leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0;
#else
  return false;
#endif
}

std::atomic<bool>& dot_pays() {
  static std::atomic<bool> pays{!processor_has_amx()};
  return pays;
}

}  // namespace

bool bf16_dot_pays() { return isa() >= Isa::avx512_bf16 && dot_pays().load(std::memory_order_relaxed); }
void set_bf16_dot_pays(bool pays) { dot_pays() = pays; }

}  // namespace tapestry::kernels::cpu
