#pragma once
// conv2d (f32) and its gradients. Where each way is:
//   conv2d_gemm.cuh        tiles, the loop that multiplies, the sum over parts, the choice of tile and parts
//   conv2d_plan.cuh        what is summed, for y and for dx
//   conv2d_gather.cuh      y and dx as implicit GEMMs
//   conv2d_weight.cuh      dweight as an implicit GEMM
//   conv2d_depthwise.cuh   one channel a group; dbias
#include "tapestry/kernels/cuda/conv2d_depthwise.cuh"
#include "tapestry/kernels/cuda/conv2d_gather.cuh"
#include "tapestry/kernels/cuda/conv2d_weight.cuh"

namespace tapestry::kernels::cuda {

namespace conv {

inline bool is_depthwise(const Conv2d& s) { return s.groups == s.c && s.groups > 1; }

/// That what kernels number with 32 bits fits: the pixels of an image, and the weight. The batch need not: it
/// is cut.
inline void check_sizes(const Conv2d& s) {
  numbered("an image", s.h * s.w);
  numbered("an image", s.p * s.q);
  numbered("a weight", s.k * (s.c / s.groups) * s.r * s.s);
}

}  // namespace conv

inline void launch_conv2d(const Conv2d& s, const float* x, const float* weight, const float* bias, float* y,
                          cudaStream_t stream, const conv::Tuning& tuning = {}) {
  conv::check_sizes(s);
  if (s.n * s.k * s.p * s.q == 0) return;
  if (conv::is_depthwise(s))
    return conv::launch_depthwise(conv::forward_classes(s), s, false, x, weight, bias, y, tuning, stream);
  conv::launch_gather(conv::forward_classes(s), {x, weight, bias, y, s.relu, false, false}, s, true, tuning,
                      stream);
}

inline void launch_conv2d_backward_input(const Conv2d& s, const float* dy, const float* weight, float* dx,
                                         cudaStream_t stream, const conv::Tuning& tuning = {}) {
  conv::check_sizes(s);
  if (s.n * s.c * s.h * s.w == 0) return;
  if (conv::is_depthwise(s))
    return conv::launch_depthwise(conv::gradient_classes(s), s, true, dy, weight, nullptr, dx, tuning,
                                  stream);
  conv::launch_gather(conv::gradient_classes(s), {dy, weight, nullptr, dx, false, false, false}, s, false,
                      tuning, stream);
}

/// dweight or dbias may be null, and x with dweight.
inline void launch_conv2d_backward_weight(const Conv2d& s, const float* dy, const float* x, float* dweight,
                                          float* dbias, cudaStream_t stream,
                                          const conv::Tuning& tuning = {}) {
  conv::check_sizes(s);
  if (dbias && s.k > 0) conv::launch_bias_gradient(s, dy, dbias, tuning, stream);
  if (!dweight || s.k * (s.c / s.groups) * s.r * s.s == 0) return;
  if (conv::is_depthwise(s)) conv::launch_depthwise_weight(s, dy, x, dweight, tuning, stream);
  else conv::launch_weight_tiles(s, dy, x, dweight, tuning, stream);
}

}  // namespace tapestry::kernels::cuda
