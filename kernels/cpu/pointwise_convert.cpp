// Conversions between f32 and bf16 by vector instructions that the processor may lack.
#include <cstring>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::cpu {
namespace {

void round_each(const float* x, BFloat16* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = BFloat16(x[i]);
}

#if defined(__x86_64__) && defined(__GNUC__)
// The instruction rounds as BFloat16's constructor does, except that subnormal numbers become 0. The few
// groups with subnormal numbers are rounded one by one.
[[gnu::target("avx512f,avx512dq,avx512bf16")]] void round_by_instruction(const float* x, BFloat16* y,
                                                                         std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    constexpr int kSubnormal = 1 << 5;
    const __m512 v = _mm512_loadu_ps(x + i);
    if (_mm512_fpclass_ps_mask(v, kSubnormal) != 0) [[unlikely]] {
      round_each(x + i, y + i, 16);
      continue;
    }
    const __m256bh rounded = _mm512_cvtneps_pbh(v);
    std::memcpy(static_cast<void*>(y + i), &rounded, sizeof rounded);
  }
  round_each(x + i, y + i, n - i);
}
bool has_instruction() { return isa() >= Isa::avx512_bf16; }
#else
void round_by_instruction(const float* x, BFloat16* y, std::int64_t n) { round_each(x, y, n); }
bool has_instruction() { return false; }
#endif

}  // namespace

void from_float(const float* x, BFloat16* y, std::int64_t n) {
  static const bool has = has_instruction();
  if (has && n >= 16) round_by_instruction(x, y, n);
  else round_each(x, y, n);
}

}  // namespace tapestry::kernels::cpu
