#include "tapestry/nn/layers/linear.h"

#include <cmath>

#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
Tensor weight_of(const LinearOptions& o) {
  check(o.in_features > 0 && o.out_features > 0,
        "[Linear] in_features and out_features must be positive but are ", o.in_features, " and ",
        o.out_features, "; set both");
  // With slope sqrt(5), kaiming_uniform_'s bound is 1 / sqrt(in), as in PyTorch.
  return init::kaiming_uniform_(empty({o.out_features, o.in_features}), std::sqrt(5.0));
}
Tensor bias_of(const LinearOptions& o) {
  if (!o.bias) return {};
  const double bound = 1 / std::sqrt(static_cast<double>(o.in_features));
  return init::uniform_(empty({o.out_features}), -bound, bound);
}
}  // namespace

Linear::Linear(const Options& o)
    : options(o), weight(param("weight", weight_of(o))), bias(param("bias", bias_of(o))) {}

Tensor Linear::forward(const Tensor& x) {
  tapestry::detail::check_defined("linear", x);
  if (divided_forward) return divided_forward(x);
  const std::int64_t in = packed_.defined() ? options.in_features : weight->size(1);
  check(x.dim() > 0 && x.size(-1) == in, "[linear] expected an input of shape (..., ", in, ") but got ",
        x.sizes(), "; make its last dimension ", in, ", or set in_features");
  return packed_.defined() ? packed_product_(x, packed_, bias) : linear(x, weight, bias);
}

std::string Linear::options_text() const {
  return detail::OptionsText()
      .add("in_features", options.in_features)
      .add("out_features", options.out_features)
      .add("bias", options.bias)
      .str();
}

}  // namespace tapestry::nn
