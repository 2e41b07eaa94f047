#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::kernels::cpu {
namespace {

// kCentred is false for rms_norm, whose mean is 0.
template <class T, bool kCentred>
void forward_kernel(const LaunchContext&, const LayerNormArgs& s) {
  using C = Compute<T>;
  const std::int64_t rows = s.rows, cols = s.cols;
  const T *const input = s.x.as<T>(), *const weight = s.weight.as<T>(), *const bias = s.bias.as<T>();
  const T* const residual = s.residual.as<T>();
  T *const output = s.y.as<T>(), *const sums = s.sum.as<T>();
  C *const means = s.mean.as<C>(), *const inv_stds = s.inv_std.as<C>();
  parallel_for(rows, grain_of(2 * cols), [=, eps = s.eps](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = input + r * cols;
      T* const y = output + r * cols;
      if (residual) {
        T* const sum = sums + r * cols;
        for (std::int64_t i = 0; i < cols; ++i) sum[i] = T(load(x[i]) + load(residual[r * cols + i]));
        x = sum;
      }
      C mean = 0;
      if constexpr (kCentred)
        mean = sum_lanes<C>(cols, [=](std::int64_t i) { return load(x[i]); }) / static_cast<C>(cols);
      const C squares = sum_lanes<C>(cols, [=](std::int64_t i) {
        const C d = load(x[i]) - mean;
        return d * d;
      });
      const C inv_std = C(1) / std::sqrt(squares / static_cast<C>(cols) + static_cast<C>(eps));
      if constexpr (kCentred) means[r] = mean;
      inv_stds[r] = inv_std;
      if (weight && bias)
        for (std::int64_t i = 0; i < cols; ++i)
          y[i] = T((load(x[i]) - mean) * inv_std * load(weight[i]) + load(bias[i]));
      else if (weight && !kCentred)
        for (std::int64_t i = 0; i < cols; ++i) y[i] = T(load(x[i]) * inv_std * load(weight[i]));
      else
        for (std::int64_t i = 0; i < cols; ++i)
          y[i] = T((load(x[i]) - mean) * inv_std * (weight ? load(weight[i]) : C(1)) +
                   (bias ? load(bias[i]) : C(0)));
    }
  });
}

template <class T, bool kCentred>
void backward_kernel(const LaunchContext& context, const LayerNormBackwardArgs& s) {
  using C = Compute<T>;
  const std::int64_t cols = s.cols;
  const T *const weight = s.weight.as<T>(), *const dys = s.dy.as<T>(), *const xs = s.x.as<T>();
  const C *const means = s.mean.as<C>(), *const inv_stds = s.inv_std.as<C>();
  const T* const dsums = s.dsum.as<T>();
  T* const dxs = s.dx.as<T>();
  // The gradients of weight and bias are sums over rows. Chunks of a fixed number of rows are summed first
  // and then added in order, so the result does not depend on the number of threads.
  const bool sums = s.dweight || s.dbias;
  const std::int64_t chunk_rows = std::max<std::int64_t>(16, (s.rows + 63) / 64);
  const std::int64_t chunks = (s.rows + chunk_rows - 1) / chunk_rows;
  const Scratch<C> partial(context.device, sums ? 2 * chunks * cols : 0);
  parallel_for(chunks, grain_of(2 * chunk_rows * cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      C* const dweight = partial.data() + 2 * chunk * cols;
      C* const dbias = dweight + cols;
      if (sums) std::fill_n(dweight, 2 * cols, C(0));
      for (std::int64_t r = chunk * chunk_rows; r < std::min(s.rows, (chunk + 1) * chunk_rows); ++r) {
        const T* const dy = dys + r * cols;
        const T* const x = xs + r * cols;
        const C mean = kCentred ? means[r] : C(0), inv_std = inv_stds[r];
        if (sums)
          for (std::int64_t i = 0; i < cols; ++i) {
            dweight[i] += load(dy[i]) * ((load(x[i]) - mean) * inv_std);
            if constexpr (kCentred) dbias[i] += load(dy[i]);
          }
        if (!dxs) continue;
        const auto gradient = [=](std::int64_t i) { return load(dy[i]) * (weight ? load(weight[i]) : C(1)); };
        const auto normal = [=](std::int64_t i) { return (load(x[i]) - mean) * inv_std; };
        const C scale = C(1) / static_cast<C>(cols);
        C plain = 0;  // the gradient through the mean
        if constexpr (kCentred) plain = sum_lanes<C>(cols, gradient) * scale;
        const C along = sum_lanes<C>(cols, [=](std::int64_t i) { return gradient(i) * normal(i); }) * scale;
        T* const dx = dxs + r * cols;
        const T* const dsum = dsums ? dsums + r * cols : nullptr;
        for (std::int64_t i = 0; i < cols; ++i)
          dx[i] = T(inv_std * (gradient(i) - plain - normal(i) * along));
        // A pass of its own over the row in the cache: the product and the sum would otherwise become one
        // FMA, and the bits would differ from those of the norm and the addition by themselves.
        if (dsum)
          for (std::int64_t i = 0; i < cols; ++i) dx[i] = T(load(dx[i]) + load(dsum[i]));
      }
    }
  });
  if (!sums) return;
  const C* const parts = partial.data();
  const auto total = [=](std::int64_t i) {
    C sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += parts[2 * chunk * cols + i];
    return T(sum);
  };
  for (std::int64_t i = 0; i < cols; ++i) {
    if (s.dweight) s.dweight.as<T>()[i] = total(i);
    if (s.dbias) s.dbias.as<T>()[i] = total(cols + i);
  }
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  layer_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T, true>);
  layer_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T, true>);
  rms_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T, false>);
  rms_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T, false>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
