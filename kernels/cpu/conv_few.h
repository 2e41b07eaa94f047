#pragma once
// Convolutions of bf16 images with few channels, such as a network's first layer. oneDNN computes these wrong
// in bf16 (conv_onednn.cpp), and f32 copies of the images would cost as much as the convolution.
#include "tapestry/core/half.h"
#include "tapestry/kernels/ops/conv.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cpu {

/// Own kernels for at most 4 input channels, windows of at most 5 columns, a stride of 1 along rows, and
/// multiples of 16 output channels, in both layouts. bf16 products are summed in f32 by AVX512_BF16, whose
/// instructions take subnormal numbers for 0. Each returns false, and has done nothing, if the shape or the
/// processor does not fit.
struct FewChannels {
  static bool forward(const LaunchContext& context, const Conv2dShape& s, const BFloat16* x,
                      const BFloat16* weight, const BFloat16* bias, BFloat16* y);
  static bool backward_weight(const LaunchContext& context, const Conv2dShape& s, const BFloat16* dy,
                              const BFloat16* x, BFloat16* dweight, BFloat16* dbias);
};

}  // namespace tapestry::kernels::cpu
