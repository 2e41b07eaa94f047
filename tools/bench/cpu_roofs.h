#pragma once
// Measures what the processor can do at most: fused multiply-adds of f32, products of bf16 by vdpbf16ps and
// by AMX's tiles, and copies of memory. tools/bench_cpu gives each training step's share of these roofs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TAPESTRY_BENCH_X86 1
#endif

namespace tapestry::bench {

/// GFLOP/s (a multiply-add is two) of f32 multiply-adds, of vdpbf16ps and of AMX's tdpbf16ps, and GB/s (read
/// and written bytes) of copies, of all threads together; and the clock in GHz while all threads compute. 0:
/// this processor, system or compiler has no such instruction.
struct Roofs {
  double f32 = 0, bf16 = 0, amx = 0, copy = 0, ghz = 0;
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

/// 12 products of a 16 x 32 and a 32 x 16 tile a step, for six sums. Four sums would hide the latency of 52
/// cycles, at 16 cycles a product (Intel's optimization manual, chapter on AMX).
[[gnu::target("amx-tile,amx-bf16")]] inline void tiles_bf16(long steps) {
  struct Layout {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  // Static, because g++ 12 takes ldtilecfg to read 8 of the 64 bytes, and does not write the others of a
  // local.
  alignas(64) static constexpr Layout layout;
  static_assert(sizeof layout == 64);
  static const std::vector<std::uint16_t> numbers(16 * 32, 0x3c00);  // 2^-7
  _tile_loadconfig(&layout);                                         // also zeroes the tiles
  _tile_loadd(6, numbers.data(), 64);
  _tile_loadd(7, numbers.data(), 64);
  for (long i = 0; i < 2 * steps; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
}

/// 12 additions a step that wait for each other, so 12 cycles.
inline void additions(long steps) {
  long sum = 0, one = 1;
  for (long i = 0; i < steps; ++i)
    asm volatile(
        "add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n"
        "add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n add %1, %0\n"
        : "+r"(sum)
        : "r"(one));
}

/// Whether the processor has AMX's bf16 products, and the system saves tiles and lets this process use them.
/// Asks Linux for the permission.
inline bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1))
    return false;  // BF16, TILE
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr long kAskForState = 0x1023, kTileData = 18;                              // ARCH_REQ_XCOMP_PERM
  return (low >> 17 & 3) == 3 && !syscall(SYS_arch_prctl, kAskForState, kTileData);  // TILECFG and TILEDATA
}
#endif

/// Runs f(thread) on each of `threads` threads at once, and returns the seconds that the slowest thread of
/// the fastest run needs. On a machine with other load, many short runs find one that nothing disturbs.
inline double fastest(int threads, int runs, const std::function<void(int)>& f) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    std::vector<std::thread> team;
    std::atomic<int> missing = threads;
    for (int t = 0; t < threads; ++t)
      team.emplace_back([&, t] {
        --missing;
        while (missing) std::this_thread::yield();
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
  // The GFLOP/s of a loop whose step has 12 instructions of `flops` each.
  const auto rate = [&](double flops, long steps, void (*loop)(long)) {
    return 12e-9 * flops * static_cast<double>(steps) * threads /
           fastest(threads, 100, [&](int) { loop(steps); });
  };
  constexpr long kSteps = 200'000;  // 0.3 to 1 ms
  if (__builtin_cpu_supports("avx512f")) r.f32 = rate(32, kSteps, fma_512);
  else if (__builtin_cpu_supports("fma")) r.f32 = rate(16, kSteps, fma_256);
  if (__builtin_cpu_supports("avx512bf16")) r.bf16 = rate(64, kSteps, dot_bf16);
  if (may_use_tiles()) r.amx = rate(2 * 16 * 16 * 32, kSteps / 16, tiles_bf16);
  r.ghz = rate(1, kSteps / 2, additions) / threads;
#endif
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(kBytes, 1)),
      to = from;
  r.copy = 2e-9 * static_cast<double>(kBytes) * threads / fastest(threads, 20, [&](int t) {
             const auto i = static_cast<std::size_t>(t);
             std::memcpy(to[i].data(), from[i].data(), kBytes);
           });
  return r;
}

}  // namespace tapestry::bench
