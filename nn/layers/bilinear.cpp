#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/nn/functional.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/layers/linear.h"

namespace tapestry::nn {

namespace {
Tensor uniform_for(const BilinearOptions& o, const Shape& sizes) {
  check(o.in1_features > 0 && o.in2_features > 0 && o.out_features > 0,
        "[Bilinear] in1_features, in2_features and out_features must be positive but are ", o.in1_features,
        ", ", o.in2_features, " and ", o.out_features, "; set all three");
  const double bound = 1 / std::sqrt(static_cast<double>(o.in1_features));
  return init::uniform_(empty(sizes), -bound, bound);
}
}  // namespace

Bilinear::Bilinear(const Options& o)
    : options(o),
      weight(param("weight", uniform_for(o, {o.out_features, o.in1_features, o.in2_features}))),
      bias(param("bias", o.bias ? uniform_for(o, o.out_features) : Tensor())) {}

Tensor Bilinear::forward(const Tensor& a, const Tensor& b) {
  return functional::bilinear(a, b, weight, bias);
}

std::string Bilinear::options_text() const {
  return detail::OptionsText()
      .add("in1_features", options.in1_features)
      .add("in2_features", options.in2_features)
      .add("out_features", options.out_features)
      .add("bias", options.bias)
      .str();
}

}  // namespace tapestry::nn
