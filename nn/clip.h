#pragma once
// Gradient clipping, in place, between backward() and the optimizer's step.
#include <vector>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// Scales all gradients by one factor, so that their joint norm is at most max_norm (Pascanu et al. 2013).
/// Returns the norm before scaling, as a 0-d f32 tensor, or f64 if a gradient is f64. Parameters without a
/// gradient are ignored. All replicas are scaled by replica 0's factor, because their gradients are equal. If
/// error_if_nonfinite is set and the norm is infinite or NaN, throws ValueError and scales nothing; only then
/// does the host wait for a GPU. If parameters are sharded, the norm is that of all ranks' shards together
/// with the other parameters, and the call is a collective: all ranks pass the same parameters, also ranks
/// whose shards are empty. It takes one sum over the ranks for each group of ranks. On CUDA, dense gradients
/// of f32, f16 and bf16 that are not sharded take three launches, however many there are. Throws ValueError
/// for the parameters of a Pipeline over ranks, whose clip_grad_norm_() knows the norms of all stages.
Tensor clip_grad_norm_(const std::vector<Parameter>& params, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false);
/// Clamps every element of every gradient to [-clip_value, clip_value], in all replicas. On CUDA this is one
/// launch for dense gradients of f32, f16 and bf16.
void clip_grad_value_(const std::vector<Parameter>& params, double clip_value);

}  // namespace tapestry::nn
