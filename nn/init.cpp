#include "tapestry/nn/init.h"

#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/error.h"

namespace tapestry::nn::init {

Fans fans(const Tensor& weight) {
  tapestry::detail::check_defined("init", weight, "the weight");
  check(weight.dim() >= 2, "[init] fans need a weight of two dimensions or more but got ", weight.sizes(),
        "; use uniform_ or normal_");
  std::int64_t field = 1;
  for (int i = 2; i < weight.dim(); ++i) field *= weight.size(i);
  return {weight.size(1) * field, weight.size(0) * field};
}

double gain(Nonlinearity nonlinearity, double slope) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid:
      return 1;
    case Nonlinearity::tanh:
      return 5.0 / 3;
    case Nonlinearity::relu:
      return std::sqrt(2.0);
    case Nonlinearity::leaky_relu:
      return std::sqrt(2 / (1 + slope * slope));
    case Nonlinearity::selu:
      return 0.75;
  }
  return 1;
}

const Tensor& uniform_(const Tensor& t, double low, double high) {
  const NoGradGuard no_grad;
  t.detach().uniform_(low, high);
  return t;
}

const Tensor& normal_(const Tensor& t, double mean, double std) {
  check(std >= 0, "[normal_] the standard deviation must not be negative but is ", std);
  const NoGradGuard no_grad;
  t.detach().normal_(mean, std);
  return t;
}

const Tensor& trunc_normal_(const Tensor& t, double mean, double std, double low, double high) {
  check(std > 0, "[trunc_normal_] the standard deviation must be positive but is ", std);
  check(low < high, "[trunc_normal_] the bounds [", low, ", ", high, "] are empty; pass low < high");
  // Values outside the bounds are drawn again, which is slow if the bounds keep only a small part of the
  // distribution.
  const double kept = 0.5 * (std::erf((high - mean) / (std * std::sqrt(2.0))) -
                             std::erf((low - mean) / (std * std::sqrt(2.0))));
  check(kept > 0.01, "[trunc_normal_] the bounds [", low, ", ", high, "] keep only ", kept,
        " of the distribution; move them closer to the mean ", mean);
  const NoGradGuard no_grad;
  const Tensor values = t.detach();
  values.normal_(mean, std);
  while (true) {
    const Tensor outside = (values < low) + (values > high);  // adding two bool tensors means "or"
    if (outside.sum().item() == 0) return t;
    values.copy_(where(outside, empty_like(values).normal_(mean, std), values));
  }
}

const Tensor& constant_(const Tensor& t, double value) {
  const NoGradGuard no_grad;
  t.detach().fill_(value);
  return t;
}
const Tensor& zeros_(const Tensor& t) { return constant_(t, 0); }
const Tensor& ones_(const Tensor& t) { return constant_(t, 1); }

namespace {
double kaiming_std(const Tensor& t, double slope, Fan fan, Nonlinearity nonlinearity) {
  const Fans f = fans(t);
  const std::int64_t count = fan == Fan::in ? f.in : f.out;
  return count == 0 ? 0 : gain(nonlinearity, slope) / std::sqrt(static_cast<double>(count));
}
double xavier_std(const Tensor& t, double gain) {
  const Fans f = fans(t);
  return f.in + f.out == 0 ? 0 : gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out));
}
// The variance of a uniform distribution on [-b, b] is b^2 / 3.
const Tensor& uniform_of_std(const Tensor& t, double std) {
  return uniform_(t, -std::sqrt(3.0) * std, std::sqrt(3.0) * std);
}
}  // namespace

const Tensor& kaiming_uniform_(const Tensor& t, double slope, Fan fan, Nonlinearity nonlinearity) {
  return uniform_of_std(t, kaiming_std(t, slope, fan, nonlinearity));
}
const Tensor& kaiming_normal_(const Tensor& t, double slope, Fan fan, Nonlinearity nonlinearity) {
  return normal_(t, 0, kaiming_std(t, slope, fan, nonlinearity));
}
const Tensor& xavier_uniform_(const Tensor& t, double gain) { return uniform_of_std(t, xavier_std(t, gain)); }
const Tensor& xavier_normal_(const Tensor& t, double gain) { return normal_(t, 0, xavier_std(t, gain)); }

}  // namespace tapestry::nn::init
