#pragma once
// Sampling of categories, one thread per weight or draw (kernels/multinomial.h).
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/multinomial.h"
#include "tapestry/kernels/ops/multinomial.h"

namespace tapestry::kernels::cuda {

inline constexpr int kMultinomialThreads = 256;

inline unsigned multinomial_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kMultinomialThreads - 1) / kMultinomialThreads);
}
__device__ __forceinline__ std::int64_t multinomial_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kMultinomialThreads + threadIdx.x;
}

template <class = void>
__global__ void __launch_bounds__(kMultinomialThreads)
    integer_weights(std::int64_t total, WideDivisor n, double unit, const float* p, const float* largest,
                    std::int64_t* y) {
  const std::int64_t i = multinomial_thread();
  if (i >= total) return;
  const float most = largest[n.divide(static_cast<std::uint64_t>(i))];
  y[i] = integer_weight(static_cast<double>(p[i]), static_cast<double>(most), unit);
}
template <class = void>
void launch_multinomial_weights(const LaunchContext& context, const MultinomialWeightsArgs& a) {
  const std::int64_t total = a.rows * a.n;
  if (total == 0) return;
  launch(&integer_weights<>, multinomial_blocks(total), kMultinomialThreads, 0, stream_of(context), total,
         WideDivisor(a.n), std::ldexp(1.0, weight_scale(a.n)), a.p.as<float>(), a.largest.as<float>(),
         a.y.as<std::int64_t>());
}

template <class = void>
__global__ void __launch_bounds__(kMultinomialThreads)
    draw_categories(std::int64_t total, std::int64_t n, WideDivisor k, PhiloxRange range,
                    const std::int64_t* cumulative, std::int64_t* out) {
  const std::int64_t i = multinomial_thread();
  if (i >= total) return;
  const auto row = static_cast<std::int64_t>(k.divide(static_cast<std::uint64_t>(i)));
  out[i] = draw_category(cumulative + row * n, n, random_word(range, i));
}
template <class = void>
void launch_multinomial_draw(const LaunchContext& context, const MultinomialDrawArgs& a) {
  const std::int64_t total = a.rows * a.k;
  if (total == 0) return;
  launch(&draw_categories<>, multinomial_blocks(total), kMultinomialThreads, 0, stream_of(context), total,
         a.n, WideDivisor(a.k), a.range, a.cumulative.as<std::int64_t>(), a.out.as<std::int64_t>());
}

template <class = void>
__global__ void __launch_bounds__(kMultinomialThreads)
    category_scores(std::int64_t count, PhiloxRange range, const float* p, std::int64_t* y) {
  const std::int64_t i = multinomial_thread();
  if (i < count) y[i] = category_score(static_cast<double>(p[i]), random_word(range, i));
}
template <class = void>
void launch_multinomial_scores(const LaunchContext& context, const MultinomialScoresArgs& a) {
  if (a.count == 0) return;
  launch(&category_scores<>, multinomial_blocks(a.count), kMultinomialThreads, 0, stream_of(context), a.count,
         a.range, a.p.as<float>(), a.y.as<std::int64_t>());
}

}  // namespace tapestry::kernels::cuda
