// Random numbers, permutations and ranges.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "tapestry/core/philox.h"
#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/ops/random.h"

namespace tapestry::kernels {
namespace {

using cpu::convert;

constexpr DeviceType kDevice = DeviceType::cpu;
constexpr std::int64_t kCounterGrain = 2048;

/// Calls f(first element, words) for each counter that n elements of `per` elements a counter need.
template <class F>
void for_counters(std::int64_t n, int per, PhiloxRange range, const F& f) {
  const std::int64_t counters = n / per + (n % per != 0);
  parallel_for(counters, kCounterGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      f(c * per, philox(range.seed, range.offset + static_cast<std::uint64_t>(c)));
  });
}

// The 64-bit number of words 2i and 2i + 1, the first in the upper half.
std::uint64_t wide(const Philox4& words, int i) {
  return static_cast<std::uint64_t>(words.v[2 * i]) << 32 | words.v[2 * i + 1];
}

template <class T>
void uniform_kernel(void* data, std::int64_t n, PhiloxRange range, double low, double high) {
  T* const out = static_cast<T*>(data);
  constexpr int per = sizeof(T) == 8 ? 2 : 4;
  for_counters(n, per, range, [=](std::int64_t first, const Philox4& words) {
    const int count = static_cast<int>(std::min<std::int64_t>(per, n - first));
    for (int i = 0; i < count; ++i) {
      double u;
      if constexpr (per == 2) {
        u = uniform_double(words.v[2 * i], words.v[2 * i + 1]);
      } else {
        // As many bits as the mantissa holds, so that no value rounds up to 1.
        constexpr int bits = std::is_same_v<T, Half> ? 11 : std::is_same_v<T, BFloat16> ? 8 : 24;
        u = (words.v[i] >> (32 - bits)) * (1.0 / (1 << bits));
      }
      out[first + i] = convert<T>(std::fma(high - low, u, low));
    }
  });
}

template <class T>
void normal_kernel(void* data, std::int64_t n, PhiloxRange range, double mean, double std) {
  T* const out = static_cast<T*>(data);
  constexpr int per = sizeof(T) == 8 ? 2 : 4;
  for_counters(n, per, range, [=](std::int64_t first, const Philox4& words) {
    for (int pair = 0; pair < per / 2 && first + 2 * pair < n; ++pair) {
      double u, v;
      if constexpr (per == 2) {
        u = 1 - uniform_double(words.v[0], words.v[1]);
        v = uniform_double(words.v[2], words.v[3]);
      } else {
        u = (words.v[2 * pair] + 1.0) * 0x1p-32;
        v = words.v[2 * pair + 1] * 0x1p-32;
      }
      const double r = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
      T* const at = out + first + 2 * pair;
      at[0] = convert<T>(std::fma(std, r * std::cos(angle), mean));
      if (first + 2 * pair + 1 < n) at[1] = convert<T>(std::fma(std, r * std::sin(angle), mean));
    }
  });
}

template <class T>
void randint_kernel(void* data, std::int64_t n, PhiloxRange range, std::int64_t low, std::uint64_t span) {
  T* const out = static_cast<T*>(data);
  for_counters(n, 2, range, [=](std::int64_t first, const Philox4& words) {
    for (int i = 0; i < 2 && first + i < n; ++i) {
      const auto step =
          static_cast<std::uint64_t>(static_cast<unsigned __int128>(wide(words, i)) * span >> 64);
      out[first + i] = convert<T>(static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step));
    }
  });
}

void randperm_kernel(void* data, std::int64_t n, PhiloxRange range) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> keys(static_cast<std::size_t>(n));
  for_counters(n, 2, range, [&](std::int64_t first, const Philox4& words) {
    for (int i = 0; i < 2 && first + i < n; ++i)
      keys[static_cast<std::size_t>(first + i)] = {wide(words, i), first + i};
  });
  std::sort(keys.begin(), keys.end());
  std::int64_t* out = static_cast<std::int64_t*>(data);
  for (const auto& key : keys) *out++ = key.second;
}

template <class T>
void arange_kernel(void* data, std::int64_t n, Scalar start, Scalar step) {
  T* const out = static_cast<T*>(data);
  const bool real = start.is_real() || step.is_real();
  const double a = start.to_double(), s = step.to_double();
  const auto ia = static_cast<std::uint64_t>(start.to_int()), is = static_cast<std::uint64_t>(step.to_int());
  parallel_for(n, cpu::kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (real)
      for (std::int64_t i = begin; i < end; ++i) out[i] = convert<T>(a + static_cast<double>(i) * s);
    else
      for (std::int64_t i = begin; i < end; ++i)
        out[i] = convert<T>(static_cast<std::int64_t>(ia + static_cast<std::uint64_t>(i) * is));
  });
}

template <class T>
void dropout_kernel(void* result, const void* data, std::int64_t n, PhiloxRange range,
                    std::uint32_t threshold, double scale) {
  using C = cpu::Compute<T>;
  T* const out = static_cast<T*>(result);
  const T* const x = static_cast<const T*>(data);
  const C factor = static_cast<C>(scale);
  for_counters(n, 4, range, [=](std::int64_t first, const Philox4& words) {
    const int count = static_cast<int>(std::min<std::int64_t>(4, n - first));
    for (int i = 0; i < count; ++i)
      out[first + i] =
          words.v[i] >> 8 >= threshold ? convert<T>(convert<C>(x[first + i]) * factor) : convert<T>(C(0));
  });
}

const bool for_floats = for_types<float, double, Half, BFloat16>([]<class T>() {
  uniform.set(kDevice, dtype_of<T>, &uniform_kernel<T>);
  normal.set(kDevice, dtype_of<T>, &normal_kernel<T>);
  dropout.set(kDevice, dtype_of<T>, &dropout_kernel<T>);
});
const bool for_numbers =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
      randint.set(kDevice, dtype_of<T>, &randint_kernel<T>);
      arange.set(kDevice, dtype_of<T>, &arange_kernel<T>);
    });
const bool for_indices = (randperm.set(kDevice, DType::i64, &randperm_kernel), true);

}  // namespace
}  // namespace tapestry::kernels
