#pragma once
// What batch normalization's elementwise kernels (norm_batch.cuh) compute from the numbers of a channel.
#include <cstdint>

#include "tapestry/kernels/cuda/sums.cuh"

namespace tapestry::kernels::cuda {

/// Computes y = (x - mean) inv_std weight + bias + residual, with a relu at the end if `relu` is set. mean,
/// weight, bias and residual may be null.
template <class T>
struct MapNormal {
  using Type = T;
  static constexpr int kInputs = 2;
  static constexpr bool kLastMayBeNull = true;
  const T* in[2];  // x, residual
  T* out;
  const float *mean, *inv_std;
  const T *weight, *bias;
  bool relu;
  struct Channel {
    float mean, scale, shift;
  };
  __device__ Channel channel(std::int64_t c) const {
    return {mean ? mean[c] : 0.0f, weight ? inv_std[c] * load(weight[c]) : inv_std[c],
            bias ? load(bias[c]) : 0.0f};
  }
  __device__ float result(const Channel& c, const float (&x)[2]) const {
    float y = (x[0] - c.mean) * c.scale + c.shift;
    if (in[1]) y += x[1];
    return relu && y < 0 ? 0.0f : y;
  }
};
/// Computes dx in training mode: dx = slope dy - centred (x - mean) - offset. slope, centred and offset are
/// numbers per channel. The last two terms are the gradient through the batch statistics. dy counts as 0
/// where the result of relu is not positive; `also`, unless it is null, receives that gradient.
template <class T>
struct MapGradient {
  using Type = T;
  static constexpr int kInputs = 3;
  static constexpr bool kLastMayBeNull = true;
  const T* in[3];  // dy, x, and the result of relu, which may be null
  T* out;
  const float *mean, *slope, *centred, *offset;
  T* also;
  struct Channel {
    float mean, slope, centred, offset;
  };
  __device__ Channel channel(std::int64_t c) const { return {mean[c], slope[c], centred[c], offset[c]}; }
  __device__ float counted(const float (&x)[3]) const { return in[2] && x[2] <= 0 ? 0.0f : x[0]; }
  __device__ float result(const Channel& c, const float (&x)[3]) const {
    return c.slope * counted(x) - c.centred * (x[1] - c.mean) - c.offset;
  }
};

}  // namespace tapestry::kernels::cuda
