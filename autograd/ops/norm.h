#pragma once
// Normalisation layers.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes batch normalisation (Ioffe and Szegedy 2015) over all dimensions except the channels. x is (N, C)
/// or (N, C, ...). weight and bias are (C) or undefined. With `training`, x is normalised by the batch's mean
/// and biased variance. The running statistics, if defined, are then updated in place: they move by
/// `momentum` towards the batch's mean and unbiased variance. Without `training`, x is normalised by the
/// running statistics. Throws ValueError in training if a channel has fewer than 2 values.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum = 0.1,
                  double eps = 1e-5);

/// Computes layer normalisation (Ba, Kiros and Hinton 2016) over the last dimensions, with the biased
/// variance. These dimensions have shape `normalized_shape`. weight and bias have that shape or are
/// undefined. Throws ValueError unless x's shape ends in `normalized_shape`.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tapestry
