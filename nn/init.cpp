#include "tapestry/nn/init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/part_memory.h"
#include "tapestry/core/parallel.h"

namespace tapestry::nn::init {

using tapestry::detail::check_all_rows;

Fans fans(const Tensor& weight) {
  tapestry::detail::check_defined("init", weight, "the weight");
  check_all_rows("fans", weight);
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
  check_all_rows("uniform_", t);
  const NoGradGuard no_grad;
  t.detach().uniform_(low, high);
  return t;
}

const Tensor& normal_(const Tensor& t, double mean, double std) {
  check_all_rows("normal_", t);
  check(std >= 0, "[normal_] the standard deviation must not be negative but is ", std);
  const NoGradGuard no_grad;
  t.detach().normal_(mean, std);
  return t;
}

const Tensor& trunc_normal_(const Tensor& t, double mean, double std, double low, double high) {
  check_all_rows("trunc_normal_", t);
  check(std > 0, "[trunc_normal_] the standard deviation must be positive but is ", std);
  check(low < high, "[trunc_normal_] the bounds [", low, ", ", high, "] are empty; pass low < high");
  // The probability of a value below x is (1 + erf((x - mean) / (std sqrt(2)))) / 2.
  const double below = std::erf((low - mean) / (std * std::sqrt(2.0)));
  const double above = std::erf((high - mean) / (std * std::sqrt(2.0)));
  const double kept = 0.5 * (above - below);
  check(kept > 0.01, "[trunc_normal_] the bounds [", low, ", ", high, "] keep only ", kept,
        " of the distribution; move them closer to the mean ", mean);
  const NoGradGuard no_grad;
  const Tensor own = t.detach();
  const bool wide = t.dtype() == DType::f32 || t.dtype() == DType::f64;  // f16 and bf16 have too few values
  const Tensor values = wide ? own : empty_like(own, DType::f32);
  values.uniform_(below, above);
  // erfinv(1) is infinite. The largest number below 1 gives the largest normal number.
  const double largest = t.dtype() == DType::f64 ? 1 - 0x1p-53 : 1 - 0x1p-24;
  values.clamp_(-largest, largest).erfinv_().mul_(std * std::sqrt(2.0)).add_(mean).clamp_(low, high);
  if (!wide) own.copy_(values);
  return t;
}

const Tensor& constant_(const Tensor& t, double value) {
  check_all_rows("constant_", t);
  const NoGradGuard no_grad;
  t.detach().fill_(value);
  return t;
}
const Tensor& zeros_(const Tensor& t) {
  check_all_rows("zeros_", t);
  return constant_(t, 0);
}
const Tensor& ones_(const Tensor& t) {
  check_all_rows("ones_", t);
  return constant_(t, 1);
}

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
  check_all_rows("kaiming_uniform_", t);
  return uniform_of_std(t, kaiming_std(t, slope, fan, nonlinearity));
}
const Tensor& kaiming_normal_(const Tensor& t, double slope, Fan fan, Nonlinearity nonlinearity) {
  check_all_rows("kaiming_normal_", t);
  return normal_(t, 0, kaiming_std(t, slope, fan, nonlinearity));
}
const Tensor& xavier_uniform_(const Tensor& t, double gain) {
  check_all_rows("xavier_uniform_", t);
  return uniform_of_std(t, xavier_std(t, gain));
}
const Tensor& xavier_normal_(const Tensor& t, double gain) {
  check_all_rows("xavier_normal_", t);
  return normal_(t, 0, xavier_std(t, gain));
}

}  // namespace tapestry::nn::init
