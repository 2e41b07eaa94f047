#pragma once
// Normalisation layers.
#include <optional>

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

/// Computes root-mean-square normalisation (Zhang and Sennrich 2019) over the last dimensions:
/// x / sqrt(mean(x^2) + eps) * weight. These dimensions have shape `normalized_shape`. weight has that shape
/// or is undefined. Without an eps, it is the machine epsilon of the dtype in which sums are computed: 2^-52
/// for f64 and 2^-23 for the others. Throws ValueError unless x's shape ends in `normalized_shape`.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                std::optional<double> eps = {});

/// Computes group normalisation (Wu and He 2018). x is (N, C) or (N, C, ...), and its C channels are divided
/// into `num_groups` groups of adjacent channels. Each group of each sample is normalised by its own mean and
/// biased variance. weight and bias are (C) or undefined. The result has x's layout. Throws ValueError unless
/// num_groups divides C.
Tensor group_norm(const Tensor& x, std::int64_t num_groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

/// Computes instance normalisation (Ulyanov, Vedaldi and Lempitsky 2016). x is (N, C, ...) with at least 3
/// dimensions. With `use_input_stats`, each channel of each sample is normalised by its own mean and biased
/// variance. The running statistics (C), if defined, are then updated in place: they move by `momentum`
/// towards the means over the samples of these means and of the unbiased variances. Without
/// `use_input_stats`, x is normalised by the running statistics. Throws ValueError if use_input_stats is set
/// and a channel of a sample has only one value.
Tensor instance_norm(const Tensor& x, const Tensor& running_mean = {}, const Tensor& running_var = {},
                     const Tensor& weight = {}, const Tensor& bias = {}, bool use_input_stats = true,
                     double momentum = 0.1, double eps = 1e-5);

}  // namespace tapestry
