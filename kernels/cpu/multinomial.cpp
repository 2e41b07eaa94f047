// CPU kernels that sample categories.
#include "tapestry/kernels/ops/multinomial.h"

#include "tapestry/kernels/cpu/grain.h"
#include "tapestry/kernels/multinomial.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void weights_kernel(const LaunchContext&, const MultinomialWeightsArgs& a) {
  const T *const p = a.p.as<T>(), *const largest = a.largest.as<T>();
  std::int64_t* const y = a.y.as<std::int64_t>();
  const double unit = std::ldexp(1.0, weight_scale(a.n));
  parallel_for(a.rows, grain_of(4 * a.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t i = row * a.n; i < (row + 1) * a.n; ++i)
        y[i] = integer_weight(static_cast<double>(p[i]), static_cast<double>(largest[row]), unit);
  });
}

void draw_kernel(const LaunchContext&, const MultinomialDrawArgs& a) {
  const std::int64_t* const cumulative = a.cumulative.as<std::int64_t>();
  std::int64_t* const out = a.out.as<std::int64_t>();
  parallel_for(a.rows * a.k, grain_of(64), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = draw_category(cumulative + i / a.k * a.n, a.n, random_word(a.range, i));
  });
}

template <class T>
void scores_kernel(const LaunchContext&, const MultinomialScoresArgs& a) {
  const T* const p = a.p.as<T>();
  std::int64_t* const y = a.y.as<std::int64_t>();
  parallel_for(a.count, grain_of(32), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      y[i] = category_score(static_cast<double>(p[i]), random_word(a.range, i));
  });
}

const bool filled = for_types<float, double>([]<class T> {
                      multinomial_weights.set(DeviceType::cpu, dtype_of<T>, &weights_kernel<T>);
                      multinomial_scores.set(DeviceType::cpu, dtype_of<T>, &scores_kernel<T>);
                    }) &&
                    (multinomial_draw.set(DeviceType::cpu, DType::i64, &draw_kernel), true);

}  // namespace
}  // namespace tapestry::kernels::cpu
