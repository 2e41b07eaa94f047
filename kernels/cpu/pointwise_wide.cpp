#include "tapestry/kernels/cpu/wide.h"

#include <atomic>

#include "tapestry/kernels/cpu/isa.h"

namespace tapestry::kernels::cpu {
namespace {

bool has_avx512() {
#ifdef TAPESTRY_WIDE_LOOPS
  return isa() >= Isa::avx512;
#else
  return false;
#endif
}
std::atomic<bool>& enabled() {
  static std::atomic<bool> on{has_avx512()};
  return on;
}

}  // namespace

bool wide_loops() { return enabled().load(std::memory_order_relaxed); }
void set_wide_loops(bool on) { enabled() = on && has_avx512(); }

}  // namespace tapestry::kernels::cpu
