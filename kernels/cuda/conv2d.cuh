#pragma once
// conv2d (f32) and its gradients: the host functions choose a kernel from
//   conv2d_gemm.cuh        threadblock tiles, mainloop, split-K reduction, choice of tile and split
//   conv2d_plan.cuh        index mapping of the implicit GEMM for y and dx
//   conv2d_gather.cuh      y and dx as implicit GEMMs
//   conv2d_weight.cuh      dweight as an implicit GEMM
//   conv2d_depthwise.cuh   depthwise convolutions, and dbias
#include "tapestry/kernels/cuda/conv2d_depthwise.cuh"
#include "tapestry/kernels/cuda/conv2d_gather.cuh"
#include "tapestry/kernels/cuda/conv2d_weight.cuh"

namespace tapestry::kernels::cuda {

namespace conv {

inline bool is_depthwise(const Conv2d& s) { return s.groups == s.c && s.groups > 1; }

/// Checks that the kernels' 32-bit indices suffice for one image and for the weight. The batch may be larger,
/// because launches are split along it.
inline void check_sizes(const Conv2d& s) {
  checked_u31("an image", s.h * s.w);
  checked_u31("an image", s.p * s.q);
  checked_u31("a weight", s.k * (s.c / s.groups) * s.r * s.s);
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

/// dweight or dbias may be null. If dweight is null, x may be null too.
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
