#pragma once
// Measures what the processor can do at most: fused multiply-adds of f32, products of pairs of bf16, and
// copies of memory. tools/bench_cpu gives each training step's share of these roofs.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TAPESTRY_BENCH_X86 1
#endif

namespace tapestry::bench {

/// GFLOP/s (a multiply-add is two) and GB/s (read and written bytes), of all threads together. 0: this
/// processor or compiler has no such instruction.
struct Roofs {
  double f32 = 0, bf16 = 0, copy = 0;
};

// 12 independent sums hide the latency of the instruction. The asm statement keeps the compiler from merging
// them.
#ifdef TAPESTRY_BENCH_X86
#define TAPESTRY_BENCH_SUMS(STEP)                                                                      \
  for (long i = 0; i < steps; ++i) {                                                                   \
    for (int j = 0; j < 12; ++j) s[j] = STEP;                                                          \
    asm volatile(""                                                                                    \
                 : "+v"(s[0]), "+v"(s[1]), "+v"(s[2]), "+v"(s[3]), "+v"(s[4]), "+v"(s[5]), "+v"(s[6]), \
                   "+v"(s[7]), "+v"(s[8]), "+v"(s[9]), "+v"(s[10]), "+v"(s[11]));                      \
  }
[[gnu::target("avx512f"), gnu::optimize("O3")]] inline void fma_512(long steps) {
  __m512 s[12], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (__m512& x : s) x = a;
  TAPESTRY_BENCH_SUMS(_mm512_fmadd_ps(s[j], a, b))
}
[[gnu::target("avx2,fma"), gnu::optimize("O3")]] inline void fma_256(long steps) {
  __m256 s[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (__m256& x : s) x = a;
  TAPESTRY_BENCH_SUMS(_mm256_fmadd_ps(s[j], a, b))
}
[[gnu::target("avx512f,avx512bf16"), gnu::optimize("O3")]] inline void dot_bf16(long steps) {
  __m512 s[12];
  for (__m512& x : s) x = _mm512_set1_ps(1);
  const __m512i bits = _mm512_set1_epi16(0x3c00);  // 2^-7
  const __m512bh a = reinterpret_cast<__m512bh>(bits);
  TAPESTRY_BENCH_SUMS(_mm512_dpbf16_ps(s[j], a, a))
}
#undef TAPESTRY_BENCH_SUMS
#endif

/// Runs f(thread) on each of `threads` threads at once, and returns the seconds of the fastest of 20 runs.
inline double fastest(int threads, const std::function<void(int)>& f) {
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t)
      team.emplace_back([&, t] {
        const auto start = std::chrono::steady_clock::now();
        f(t);
        seconds[static_cast<std::size_t>(t)] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      });
    for (std::thread& t : team) t.join();
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

inline Roofs measure_roofs(int threads) {
  Roofs r;
#ifdef TAPESTRY_BENCH_X86
  constexpr long kSteps = 1'000'000;
  const auto rate = [&](double flops, void (*loop)(long)) {
    return 12e-9 * flops * kSteps * threads / fastest(threads, [&](int) { loop(kSteps); });
  };
  if (__builtin_cpu_supports("avx512f")) r.f32 = rate(32, fma_512);
  else if (__builtin_cpu_supports("fma")) r.f32 = rate(16, fma_256);
  if (__builtin_cpu_supports("avx512bf16")) r.bf16 = rate(64, dot_bf16);
#endif
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(kBytes, 1)),
      to = from;
  r.copy = 2e-9 * static_cast<double>(kBytes) * threads / fastest(threads, [&](int t) {
             const auto i = static_cast<std::size_t>(t);
             std::memcpy(to[i].data(), from[i].data(), kBytes);
           });
  return r;
}

}  // namespace tapestry::bench
