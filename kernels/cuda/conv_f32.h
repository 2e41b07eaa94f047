#pragma once
// The own convolutions in f32, for those in bf16 and f16 that tensor cores do not take. conv.cu compiles
// them.
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cuda {

struct ConvInF32 {
  void (*forward)(const LaunchContext&, const Conv2dArgs&);
  void (*backward_input)(const LaunchContext&, const Conv2dBackwardInputArgs&);
  void (*backward_weight)(const LaunchContext&, const Conv2dBackwardWeightArgs&);
};
extern const ConvInF32 kConvInF32;

}  // namespace tapestry::kernels::cuda
