// CPU kernel of rotary position embeddings.
#include "tapestry/kernels/ops/rope.h"

#include <algorithm>

#include "tapestry/kernels/convert.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/grain.h"

namespace tapestry::kernels::cpu {
namespace {

// One row. The two layouts have loops of their own, whose accesses the compiler knows.
template <class T, class C = Compute<T>>
void rotate_row(const T* __restrict x, const C* __restrict cos, const C* __restrict sin, C sign,
                T* __restrict y, std::int64_t pairs, bool interleaved) {
  const auto rotate = [=](std::int64_t i, std::int64_t first, std::int64_t second) {
    const C a = static_cast<C>(x[first]), b = static_cast<C>(x[second]), s = sign * sin[i];
    y[first] = convert<T>(a * cos[i] - b * s);
    y[second] = convert<T>(a * s + b * cos[i]);
  };
  if (interleaved)
    for (std::int64_t i = 0; i < pairs; ++i) rotate(i, 2 * i, 2 * i + 1);
  else
    for (std::int64_t i = 0; i < pairs; ++i) rotate(i, i, i + pairs);
}

template <class T>
void rope_kernel(const LaunchContext&, const RopeArgs& a) {
  using C = Compute<T>;
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  const C *const cos = a.cos.as<C>(), *const sin = a.sin.as<C>();
  const C sign = a.inverse ? C(-1) : C(1);
  // Rows are visited in the order of y. Each thread has whole rows.
  parallel_for(
      a.batch * a.heads * a.length, grain_of(2 * a.width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t l = row % a.length, h = row / a.length % a.heads, n = row / a.length / a.heads;
          const T* const from = x + (n * a.x_strides[0] + h * a.x_strides[1] + l * a.x_strides[2]);
          T* const to = y + (n * a.y_strides[0] + h * a.y_strides[1] + l * a.y_strides[2]);
          const std::int64_t at = n * a.table_stride + l * a.pairs;
          rotate_row(from, cos + at, sin + at, sign, to, a.pairs, a.interleaved);
          std::copy(from + 2 * a.pairs, from + a.width, to + 2 * a.pairs);
        }
      });
}

const bool filled = for_types<float, double, Half, BFloat16>(
    []<class T> { rope.set(DeviceType::cpu, dtype_of<T>, &rope_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
