#pragma once
// Resampling of images and volumes. One thread computes one element of the output. It reads the elements of
// the input that the compressed rows of the three matrices name, in their order, so results are
// deterministic.
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/ops/resample.h"

namespace tapestry::kernels::cuda {

inline constexpr int kResampleThreads = 256;

struct ResampleMatrix {
  WideDivisor out;
  std::int64_t in;
  const std::int32_t *begin, *index;  // begin is null for the identity
  const float* weight;

  explicit ResampleMatrix(const ResampleAxis& a)
      : out(a.out),
        in(a.in),
        begin(a.begin.as<std::int32_t>()),
        index(a.index.as<std::int32_t>()),
        weight(a.weight.as<float>()) {}
  /// The entries of row o are first(o) to end(o) - 1. For the identity the only entry is o.
  __device__ std::int32_t first(std::int32_t o) const { return begin ? begin[o] : o; }
  __device__ std::int32_t end(std::int32_t o) const { return begin ? begin[o + 1] : o + 1; }
  __device__ std::int64_t input(std::int32_t entry) const { return begin ? index[entry] : entry; }
  __device__ float scale(std::int32_t entry) const { return begin ? weight[entry] : 1.0f; }
};

struct ResamplePlan {
  std::int64_t total;  // elements of the output
  WideDivisor inner;
  ResampleMatrix depth, height, width;
};

template <class T>
__global__ void __launch_bounds__(kResampleThreads) resample_elements(ResamplePlan s, const T* x, T* y) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kResampleThreads + threadIdx.x;
  if (thread >= s.total) return;
  auto rest = static_cast<std::uint64_t>(thread);
  const auto split = [&](const WideDivisor& d) {
    const std::uint64_t quotient = d.divide(rest);
    const auto own = static_cast<std::int32_t>(rest - quotient * d.value);
    rest = quotient;
    return own;
  };
  const std::int32_t c = split(s.inner), w = split(s.width.out), h = split(s.height.out),
                     d = split(s.depth.out);
  const auto inner = static_cast<std::int64_t>(s.inner.value), image = static_cast<std::int64_t>(rest);
  const std::int32_t first_h = s.height.first(h), end_h = s.height.end(h), first_w = s.width.first(w),
                     end_w = s.width.end(w), end_d = s.depth.end(d);
  float sum = 0;
  for (std::int32_t i = s.depth.first(d); i < end_d; ++i)
    for (std::int32_t j = first_h; j < end_h; ++j) {
      const float scale = s.depth.scale(i) * s.height.scale(j);
      const T* const row =
          x +
          ((image * s.depth.in + s.depth.input(i)) * s.height.in + s.height.input(j)) * s.width.in * inner +
          c;
      for (std::int32_t k = first_w; k < end_w; ++k)
        sum += scale * s.width.scale(k) * load(row[s.width.input(k) * inner]);
    }
  y[thread] = store<T>(sum);
}

template <class T>
void launch_resample(const LaunchContext& context, const ResampleArgs& a) {
  const ResamplePlan plan{a.n * a.axes[0].out * a.axes[1].out * a.axes[2].out * a.inner, WideDivisor(a.inner),
                          ResampleMatrix(a.axes[0]), ResampleMatrix(a.axes[1]), ResampleMatrix(a.axes[2])};
  if (plan.total == 0) return;
  launch(&resample_elements<T>, static_cast<unsigned>((plan.total + kResampleThreads - 1) / kResampleThreads),
         kResampleThreads, 0, stream_of(context), plan, a.x.as<T>(), a.y.as<T>());
}

}  // namespace tapestry::kernels::cuda
