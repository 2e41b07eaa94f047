#pragma once
// Helpers of the layers that normalise.
#include "tapestry/autograd/ops/creation.h"

namespace tapestry::nn::detail {

/// The end of the text of an input's shape, after the channels.
inline const char* sizes_text(int dims) { return dims == 1 ? ", L)" : dims == 2 ? ", H, W)" : ", D, H, W)"; }
/// Ones or zeros, or an undefined tensor if the layer has none.
inline Tensor ones_if(bool wanted, const Shape& sizes) { return wanted ? ones(sizes) : Tensor(); }
inline Tensor zeros_if(bool wanted, const Shape& sizes) { return wanted ? zeros(sizes) : Tensor(); }

}  // namespace tapestry::nn::detail
