#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/cpu/wide.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::kernels::cpu {
namespace {

// A row as numbers of the compute type: the row itself, or a converted copy in `memory`.
template <class T>
const Compute<T>* row_of(const T* x, [[maybe_unused]] Compute<T>* memory,
                         [[maybe_unused]] std::int64_t cols) {
  if constexpr (is_half<T>) {
    to_float(x, memory, cols);
    return memory;
  } else {
    return x;
  }
}
// Where a row is computed: in the row y itself, or in `memory`, from which finish_row() rounds it.
template <class T>
Compute<T>* target_of([[maybe_unused]] T* y, [[maybe_unused]] Compute<T>* memory) {
  if constexpr (is_half<T>) return memory;
  else return y;
}
template <class T>
void finish_row([[maybe_unused]] const Compute<T>* from, [[maybe_unused]] T* y,
                [[maybe_unused]] std::int64_t cols) {
  if constexpr (is_half<T>) from_float(from, y, cols);
}

// kCentred is false for rms_norm, whose mean is 0.
template <bool kCentred, class C>
void normalise(const C* x, std::int64_t cols, C eps, const C* weight, const C* bias, C* y, C* mean_out,
               C* inv_std_out) {
  C mean = 0;
  if constexpr (kCentred)
    mean = sum_lanes<C>(cols, [=](std::int64_t i) { return x[i]; }) / static_cast<C>(cols);
  const C squares = sum_lanes<C>(cols, [=](std::int64_t i) {
    const C d = x[i] - mean;
    return d * d;
  });
  const C inv_std = C(1) / std::sqrt(squares / static_cast<C>(cols) + eps);
  if constexpr (kCentred) *mean_out = mean;
  *inv_std_out = inv_std;
  if (weight && bias) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < cols; ++i) y[i] = (x[i] - mean) * inv_std * weight[i] + bias[i];
  } else if (weight && !kCentred) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < cols; ++i) y[i] = x[i] * inv_std * weight[i];
  } else
#pragma GCC ivdep
    for (std::int64_t i = 0; i < cols; ++i)
      y[i] = (x[i] - mean) * inv_std * (weight ? weight[i] : C(1)) + (bias ? bias[i] : C(0));
}

template <class T, bool kCentred>
void forward_kernel(const LaunchContext& context, const LayerNormArgs& s) {
  using C = Compute<T>;
  const std::int64_t rows = s.rows, cols = s.cols;
  const T *const input = s.x.as<T>(), *const residual = s.residual.as<T>();
  const ComputeInput<T> weights(context, s.weight, cols), biases(context, s.bias, cols);
  const C *const weight = weights.data(), *const bias = biases.data();
  T *const output = s.y.as<T>(), *const sums = s.sum.as<T>();
  C *const means = s.mean.as<C>(), *const inv_stds = s.inv_std.as<C>();
  parallel_for(rows, grain_of(2 * cols), [=, &context, eps = s.eps](std::int64_t begin, std::int64_t end) {
    const Scratch<C> scratch(context.device, is_half<T> ? 2 * cols : 0);
    C* const memory = scratch.data();
    for (std::int64_t r = begin; r < end; ++r)
      with_wide_vectors([=] {
        const T* x = input + r * cols;
        T* const y = output + r * cols;
        if (residual) {
          T* const sum = sums + r * cols;
          for (std::int64_t i = 0; i < cols; ++i) sum[i] = T(load(x[i]) + load(residual[r * cols + i]));
          x = sum;
        }
        C* const to = target_of(y, memory + cols);
        normalise<kCentred>(row_of(x, memory, cols), cols, static_cast<C>(eps), weight, bias, to,
                            kCentred ? means + r : nullptr, inv_stds + r);
        finish_row(to, y, cols);
      });
  });
}

// Adds a row's parts of the gradients of weight and bias to dweight and dbias, which are both null or not,
// and computes dx unless it is null.
template <bool kCentred, bool kWeighted, class C>
void row_gradients(const C* dy, const C* x, const C* weight, std::int64_t cols, C mean, C inv_std, C* dweight,
                   C* dbias, C* dx) {
  if (dweight) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < cols; ++i) {
      dweight[i] += dy[i] * ((x[i] - mean) * inv_std);
      if constexpr (kCentred) dbias[i] += dy[i];
    }
  }
  if (!dx) return;
  const auto gradient = [=](std::int64_t i) {
    if constexpr (kWeighted) return dy[i] * weight[i];  // a condition here would keep loops from vectors
    else return dy[i];
  };
  const auto normal = [=](std::int64_t i) { return (x[i] - mean) * inv_std; };
  const C scale = C(1) / static_cast<C>(cols);
  C plain = 0;  // the gradient through the mean
  if constexpr (kCentred) plain = sum_lanes<C>(cols, gradient) * scale;
  const C along = sum_lanes<C>(cols, [=](std::int64_t i) { return gradient(i) * normal(i); }) * scale;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < cols; ++i) dx[i] = inv_std * (gradient(i) - plain - normal(i) * along);
}

template <class T, bool kCentred>
void backward_kernel(const LaunchContext& context, const LayerNormBackwardArgs& s) {
  using C = Compute<T>;
  const std::int64_t cols = s.cols;
  const T *const dys = s.dy.as<T>(), *const xs = s.x.as<T>();
  const ComputeInput<T> weights(context, s.weight, cols);
  const C* const weight = weights.data();
  const C *const means = s.mean.as<C>(), *const inv_stds = s.inv_std.as<C>();
  const T* const dsums = s.dsum.as<T>();
  T* const dxs = s.dx.as<T>();
  // The gradients of weight and bias are sums over rows. Chunks of a fixed number of rows are summed first
  // and then added in order, so the result does not depend on the number of threads.
  const bool sums = s.dweight || s.dbias;
  const std::int64_t chunk_rows = std::max<std::int64_t>(16, (s.rows + 63) / 64);
  const std::int64_t chunks = (s.rows + chunk_rows - 1) / chunk_rows;
  const Scratch<C> partial(context.device, sums ? 2 * std::max<std::int64_t>(chunks, 1) * cols : 0);
  if (sums && chunks == 0) std::fill_n(partial.data(), 2 * cols, C(0));
  parallel_for(chunks, grain_of(2 * chunk_rows * cols), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<C> scratch(context.device, is_half<T> ? 3 * cols : 0);
    C* const memory = scratch.data();
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      C* const dweight = sums ? partial.data() + 2 * chunk * cols : nullptr;
      C* const dbias = sums ? dweight + cols : nullptr;
      if (sums) std::fill_n(dweight, 2 * cols, C(0));
      for (std::int64_t r = chunk * chunk_rows; r < std::min(s.rows, (chunk + 1) * chunk_rows); ++r)
        with_wide_vectors([=] {
          T* const dx = dxs ? dxs + r * cols : nullptr;
          C* const to = dx ? target_of(dx, memory + 2 * cols) : nullptr;
          const auto run = [&]<bool kWeighted>() {
            row_gradients<kCentred, kWeighted>(row_of(dys + r * cols, memory, cols),
                                               row_of(xs + r * cols, memory + cols, cols), weight, cols,
                                               kCentred ? means[r] : C(0), inv_stds[r], dweight, dbias, to);
          };
          weight ? run.template operator()<true>() : run.template operator()<false>();
          if (!dx) return;
          finish_row(to, dx, cols);
          // A pass of its own over the row in the cache: the product and the sum would otherwise become one
          // FMA, and the bits would differ from those of the norm and the addition by themselves.
          if (dsums)
            for (std::int64_t i = 0; i < cols; ++i) dx[i] = T(load(dx[i]) + load(dsums[r * cols + i]));
        });
    }
  });
  if (!sums) return;
  // Whole rows are added, chunk after chunk, because the elements of a column are far apart.
  C* const total = partial.data();
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
    const C* const part = total + 2 * chunk * cols;
    for (std::int64_t i = 0; i < 2 * cols; ++i) total[i] += part[i];
  }
  const auto write = [cols](const MutableArray& to, const C* from) {
    if (to)
      for (std::int64_t i = 0; i < cols; ++i) to.as<T>()[i] = T(from[i]);
  };
  write(s.dweight, total);
  write(s.dbias, total + cols);
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  layer_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T, true>);
  layer_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T, true>);
  rms_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T, false>);
  rms_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T, false>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
