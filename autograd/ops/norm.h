#pragma once
// Normalisation layers.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Batch normalisation (Ioffe and Szegedy 2015) of x (N, C) or (N, C, ...) over all but the channel
/// dimension. `training`: with the batch's biased variance; the running statistics, if defined, move by
/// `momentum` towards the batch's (the unbiased variance), in place. Otherwise with the running statistics.
/// weight and bias (C) may be undefined. ValueError for one value a channel, or none, in training.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum = 0.1,
                  double eps = 1e-5);

/// Layer normalisation (Ba, Kiros and Hinton 2016) over the last dimensions, `normalized_shape`, biased
/// variance. weight and bias of that shape may be undefined. ValueError unless x ends in that shape.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tapestry
