#pragma once
// conv2d (f32) and its gradients: the host functions choose a kernel from
//   conv_gemm.cuh        threadblock tiles, mainloop, split-K reduction, choice of tile and split
//   conv_plan.cuh        index mapping of the implicit GEMM for y and dx
//   conv_gather.cuh      y and dx as implicit GEMMs
//   conv_weight.cuh      dweight as an implicit GEMM
//   conv_depthwise.cuh   depthwise convolutions, and dbias
#include "tapestry/kernels/cuda/conv_depthwise.cuh"
#include "tapestry/kernels/cuda/conv_gather.cuh"
#include "tapestry/kernels/cuda/conv_weight.cuh"

namespace tapestry::kernels::cuda {

template <class = void>
void launch_conv2d(const LaunchContext& context, const Conv2dArgs& a, const conv::Tuning& tuning = {}) {
  const Conv2dShape& s = a.shape;
  conv::check_sizes(s);
  if (s.n * s.k * s.p * s.q == 0) return;
  const float *const x = a.x.as<float>(), *const weight = a.weight.as<float>(),
                     *const bias = a.bias.as<float>();
  float* const y = a.y.as<float>();
  if (conv::is_depthwise(s))
    return conv::launch_depthwise(conv::forward_classes(s), s, false, x, weight, bias, y, tuning, context);
  conv::launch_gather(conv::forward_classes(s), {x, weight, bias, y, s.relu, false, false}, s, true, tuning,
                      context);
}

template <class = void>
void launch_conv2d_backward_input(const LaunchContext& context, const Conv2dBackwardInputArgs& a,
                                  const conv::Tuning& tuning = {}) {
  const Conv2dShape& s = a.shape;
  conv::check_sizes(s);
  if (s.n * s.c * s.h * s.w == 0) return;
  const float *const dy = a.dy.as<float>(), *const weight = a.weight.as<float>();
  float* const dx = a.dx.as<float>();
  if (conv::is_depthwise(s))
    return conv::launch_depthwise(conv::gradient_classes(s), s, true, dy, weight, nullptr, dx, tuning,
                                  context);
  conv::launch_gather(conv::gradient_classes(s), {dy, weight, nullptr, dx, false, false, false}, s, false,
                      tuning, context);
}

/// dweight or dbias may be null. If dweight is null, x may be null too.
template <class = void>
void launch_conv2d_backward_weight(const LaunchContext& context, const Conv2dBackwardWeightArgs& a,
                                   const conv::Tuning& tuning = {}) {
  const Conv2dShape& s = a.shape;
  conv::check_sizes(s);
  const float *const dy = a.dy.as<float>(), *const x = a.x.as<float>();
  float* const dweight = a.dweight.as<float>();
  if (a.dbias && s.k > 0) conv::launch_bias_gradient(s, dy, a.dbias.as<float>(), tuning, context);
  if (!dweight || s.k * (s.c / s.groups) * s.r * s.s == 0) return;
  if (conv::is_depthwise(s)) conv::launch_depthwise_weight(s, dy, x, dweight, tuning, context);
  else conv::launch_weight_tiles(s, dy, x, dweight, tuning, context);
}

}  // namespace tapestry::kernels::cuda
