// CPU kernels for random numbers, permutations and ranges.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/cpu/philox_block.h"
#include "tapestry/kernels/ops/random.h"
#include "tapestry/kernels/random.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr DeviceType kDevice = DeviceType::cpu;
constexpr std::int64_t kBlockGrain = 128;  // least number of blocks per thread

/// Divides n elements into blocks and calls f(first element, count, words) for each block. An element uses
/// `each` words. `words` always has the words of a whole block, although the last block may have fewer
/// elements.
template <class F>
void for_blocks(std::int64_t n, int each, PhiloxRange range, const F& f) {
  const std::int64_t per = 4 * kPhiloxLanes / each;
  parallel_for(n / per + (n % per != 0), kBlockGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t words[4 * kPhiloxLanes];
    for (std::int64_t b = begin; b < end; ++b) {
      philox_block(range.seed, range.offset + static_cast<std::uint64_t>(b * kPhiloxLanes), words);
      f(b * per, static_cast<int>(std::min(per, n - b * per)), words);
    }
  });
}

template <class T>
void uniform_kernel(const LaunchContext&, const UniformArgs& a) {
  T* const out = a.out.as<T>();
  constexpr int each = sizeof(T) == 8 ? 2 : 1;
  for_blocks(a.n, each, a.range,
             [=, low = a.low, high = a.high](std::int64_t first, int count, const std::uint32_t* words) {
               for (int i = 0; i < count; ++i) {
                 double u;
                 if constexpr (each == 2) u = uniform_double(words[2 * i], words[2 * i + 1]);
                 else u = uniform_from<T>(words[i]);
                 out[first + i] = convert<T>(std::fma(high - low, u, low));
               }
             });
}

template <class T>
void normal_kernel(const LaunchContext&, const NormalArgs& a) {
  T* const out = a.out.as<T>();
  constexpr int each = sizeof(T) == 8 ? 2 : 1;
  for_blocks(a.n, each, a.range,
             [=, mean = a.mean, std = a.std](std::int64_t first, int count, const std::uint32_t* words) {
               for (int i = 0; i < count; i += 2) {
                 NormalPair z;
                 if constexpr (each == 2)
                   z = normal_from(1 - uniform_double(words[2 * i], words[2 * i + 1]),
                                   uniform_double(words[2 * i + 2], words[2 * i + 3]));
                 else z = normal_from(words[i], words[i + 1]);
                 out[first + i] = convert<T>(std::fma(std, z.first, mean));
                 if (i + 1 < count) out[first + i + 1] = convert<T>(std::fma(std, z.second, mean));
               }
             });
}

template <class T>
void randint_kernel(const LaunchContext&, const RandintArgs& a) {
  T* const out = a.out.as<T>();
  for_blocks(a.n, 2, a.range,
             [=, low = a.low, span = a.span](std::int64_t first, int count, const std::uint32_t* words) {
               for (int i = 0; i < count; ++i)
                 out[first + i] = convert<T>(integer_from(wide_word(words, i), low, span));
             });
}

void randperm_kernel(const LaunchContext&, const RandpermArgs& a) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> keys(static_cast<std::size_t>(a.n));
  for_blocks(a.n, 2, a.range, [&](std::int64_t first, int count, const std::uint32_t* words) {
    for (int i = 0; i < count; ++i)
      keys[static_cast<std::size_t>(first + i)] = {wide_word(words, i), first + i};
  });
  std::sort(keys.begin(), keys.end());
  std::int64_t* out = a.out.as<std::int64_t>();
  for (const auto& key : keys) *out++ = key.second;
}

template <class T>
void arange_kernel(const LaunchContext&, const ArangeArgs& a) {
  T* const out = a.out.as<T>();
  const bool real = a.start.is_real() || a.step.is_real();
  const double start = a.start.to_double(), step = a.step.to_double();
  const auto first = static_cast<std::uint64_t>(a.start.to_int()),
             by = static_cast<std::uint64_t>(a.step.to_int());
  parallel_for(a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (real)
      for (std::int64_t i = begin; i < end; ++i) out[i] = convert<T>(start + static_cast<double>(i) * step);
    else
      for (std::int64_t i = begin; i < end; ++i)
        out[i] = convert<T>(static_cast<std::int64_t>(first + static_cast<std::uint64_t>(i) * by));
  });
}

template <class T>
void dropout_kernel(const LaunchContext&, const DropoutArgs& a) {
  using C = Compute<T>;
  T* const out = a.out.as<T>();
  const T* const x = a.x.as<T>();
  const C factor = static_cast<C>(a.scale);
  for_blocks(a.n, 1, a.range,
             [=, threshold = a.threshold](std::int64_t first, int count, const std::uint32_t* words) {
               for (int i = 0; i < count; ++i) {
                 const C kept = convert<C>(x[first + i]) * factor;
                 out[first + i] = convert<T>(words[i] >> 8 >= threshold ? kept : C(0));
               }
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
}  // namespace tapestry::kernels::cpu
