#pragma once
// Limits on gradients, applied between backward() and the optimizer's step, in place.
#include <vector>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// Scales all gradients by one factor so that the norm of them together is at most max_norm (Pascanu et al.
/// 2013); returns the norm before, a 0-d tensor. Parameters without gradient count nothing. Replicas, whose
/// gradients are equal, are all scaled by replica 0's factor. With error_if_nonfinite a norm that is infinite
/// or NaN is a ValueError, and nothing is scaled.
Tensor clip_grad_norm_(const std::vector<Parameter>& params, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false);
/// Limits every element of every gradient, in all replicas, to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<Parameter>& params, double clip_value);

}  // namespace tapestry::nn
