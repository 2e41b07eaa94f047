#pragma once
// Initial values of tensors. A function whose name ends in _ fills its tensor in place and returns it, and
// the tape does not record it. Random values come from current_generator() of the tensor's device. How many
// are taken depends on the shape and dtype alone, so that a tensor on the meta device can remember the fill
// (autograd/deferred.h). Throws ValueError, before anything is changed, for a shard of fully_shard() or
// ShardedDataParallel, its views included: initial values are defined for the whole parameter. Inside
// unshard() the parameters are whole.
#include "tapestry/core/tensor.h"

namespace tapestry::nn::init {

enum class Fan : std::uint8_t { in, out };
enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };

struct Fans {
  std::int64_t in, out;
};
/// Returns the fan-in and fan-out of a weight of shape (out, in, receptive field ...). Throws ValueError if
/// it has fewer than two dimensions.
Fans fans(const Tensor& weight);
/// Returns the factor that preserves the variance through the nonlinearity. `slope` is the negative slope of
/// leaky ReLU.
double gain(Nonlinearity nonlinearity, double slope = 0.01);

const Tensor& uniform_(const Tensor& t, double low = 0, double high = 1);
const Tensor& normal_(const Tensor& t, double mean = 0, double std = 1);
/// Fills with a normal distribution truncated to [low, high]: the quantiles of uniform numbers, as in
/// PyTorch. Throws ValueError if the bounds keep less than 1% of the distribution, because the quantiles of
/// its tails are inaccurate.
const Tensor& trunc_normal_(const Tensor& t, double mean = 0, double std = 1, double low = -2,
                            double high = 2);
const Tensor& constant_(const Tensor& t, double value);
const Tensor& zeros_(const Tensor& t);
/// Fills a matrix with ones on its diagonal and zeros elsewhere. Throws ValueError unless `t` is 2-d.
const Tensor& eye_(const Tensor& t);
const Tensor& ones_(const Tensor& t);

/// Uses variance gain^2 / fan (He et al., "Delving deep into rectifiers", 2015).
const Tensor& kaiming_uniform_(const Tensor& t, double slope = 0, Fan fan = Fan::in,
                               Nonlinearity nonlinearity = Nonlinearity::leaky_relu);
const Tensor& kaiming_normal_(const Tensor& t, double slope = 0, Fan fan = Fan::in,
                              Nonlinearity nonlinearity = Nonlinearity::leaky_relu);
/// Uses variance gain^2 * 2 / (fan in + fan out) (Glorot and Bengio, "Understanding the difficulty of
/// training deep feedforward neural networks", 2010).
const Tensor& xavier_uniform_(const Tensor& t, double gain = 1);
const Tensor& xavier_normal_(const Tensor& t, double gain = 1);

/// Fills with a random matrix whose rows or columns are orthonormal, times `gain` (Saxe et al., "Exact
/// solutions to the nonlinear dynamics of learning in deep linear neural networks", 2014). The matrix has
/// size(0) rows; the other dimensions are flattened. The rows are orthonormal if there are at most as many
/// rows as columns, otherwise the columns are. The host computes the QR decomposition in f64, also for a
/// tensor on a GPU. Throws ValueError if the tensor has fewer than two dimensions.
const Tensor& orthogonal_(const Tensor& t, double gain = 1);
/// Fills a 2-d tensor with a normal distribution of mean 0, and sets the fraction `sparsity` of each column,
/// rounded up, to zero (Martens, "Deep learning via Hessian-free optimization", 2010). A tensor on the meta
/// device remembers which ones, in one byte of host memory for each element. Throws ValueError for other
/// tensors, or if `sparsity` is outside [0, 1].
const Tensor& sparse_(const Tensor& t, double sparsity, double std = 0.01);
/// Fills the weight of a convolution (3-d to 5-d) so that the layer passes as many input channels unchanged
/// as possible, in each of `groups` groups. Throws ValueError for other tensors, or if `groups` does not
/// divide the number of output channels.
const Tensor& dirac_(const Tensor& t, std::int64_t groups = 1);

}  // namespace tapestry::nn::init
