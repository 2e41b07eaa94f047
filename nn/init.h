#pragma once
// Filling tensors with the initial values of training, in place and outside the tape. All return their
// argument; random values come from the generator of its device.
#include "tapestry/core/tensor.h"

namespace tapestry::nn::init {

enum class Fan : std::uint8_t { in, out };
enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };

struct Fans {
  std::int64_t in, out;
};
/// Inputs and outputs of one unit of a weight (out, in, receptive field ...). ValueError below two
/// dimensions.
Fans fans(const Tensor& weight);
/// The factor that keeps variance through this function; `slope` is leaky ReLU's.
double gain(Nonlinearity nonlinearity, double slope = 0.01);

const Tensor& uniform_(const Tensor& t, double low = 0, double high = 1);
const Tensor& normal_(const Tensor& t, double mean = 0, double std = 1);
/// Normal within [low, high]: what falls outside is drawn again, as a point of the same distribution cut off.
const Tensor& trunc_normal_(const Tensor& t, double mean = 0, double std = 1, double low = -2,
                            double high = 2);
const Tensor& constant_(const Tensor& t, double value);
const Tensor& zeros_(const Tensor& t);
const Tensor& ones_(const Tensor& t);

/// He et al., "Delving deep into rectifiers", 2015: variance gain^2 / fan.
const Tensor& kaiming_uniform_(const Tensor& t, double slope = 0, Fan fan = Fan::in,
                               Nonlinearity nonlinearity = Nonlinearity::leaky_relu);
const Tensor& kaiming_normal_(const Tensor& t, double slope = 0, Fan fan = Fan::in,
                              Nonlinearity nonlinearity = Nonlinearity::leaky_relu);
/// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010:
/// variance gain^2 * 2 / (fan in + fan out).
const Tensor& xavier_uniform_(const Tensor& t, double gain = 1);
const Tensor& xavier_normal_(const Tensor& t, double gain = 1);

}  // namespace tapestry::nn::init
