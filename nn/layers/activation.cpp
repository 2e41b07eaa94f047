#include "tapestry/nn/layers/activation.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/nn/functional.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

std::string detail::numbers_text(std::initializer_list<std::pair<const char*, double>> options) {
  OptionsText text;
  for (const auto& [name, value] : options) text.add(name, value);
  return text.str();
}

Tensor ReLU::forward(const Tensor& x) { return relu(x); }
Tensor SiLU::forward(const Tensor& x) { return silu(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }
Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor Identity::forward(const Tensor& x) { return x; }
Tensor SELU::forward(const Tensor& x) { return selu(x); }
Tensor Mish::forward(const Tensor& x) { return mish(x); }
Tensor Hardswish::forward(const Tensor& x) { return hardswish(x); }
Tensor Hardsigmoid::forward(const Tensor& x) { return hardsigmoid(x); }
Tensor ReLU6::forward(const Tensor& x) { return relu6(x); }
Tensor Softsign::forward(const Tensor& x) { return softsign(x); }
Tensor LogSigmoid::forward(const Tensor& x) { return logsigmoid(x); }

PReLU::PReLU(const Options& o) : options(o), weight(param("weight", full({o.num_parameters}, o.init))) {}
Tensor PReLU::forward(const Tensor& x) { return prelu(x, weight); }
std::string PReLU::options_text() const {
  return detail::OptionsText().add("num_parameters", options.num_parameters).str();
}

GELU::GELU(const Options& o) : options(o) {
  check(o.approximate == "none" || o.approximate == "tanh",
        "[GELU] approximate must be 'none' or 'tanh' but is '", o.approximate, "'");
}
Tensor GELU::forward(const Tensor& x) { return gelu(x, options.approximate == "tanh"); }
std::string GELU::options_text() const {
  return detail::OptionsText().add("approximate", options.approximate, std::string("none")).str();
}

Tensor LeakyReLU::forward(const Tensor& x) { return leaky_relu(x, options.negative_slope); }
std::string LeakyReLU::options_text() const {
  return detail::numbers_text({{"negative_slope", options.negative_slope}});
}

Tensor Softmax::forward(const Tensor& x) { return softmax(x, options.dim); }
std::string Softmax::options_text() const { return detail::OptionsText().add("dim", options.dim).str(); }

Tensor LogSoftmax::forward(const Tensor& x) { return log_softmax(x, options.dim); }
std::string LogSoftmax::options_text() const { return detail::OptionsText().add("dim", options.dim).str(); }

Dropout::Dropout(const Options& o) : options(o) {
  check(o.p >= 0 && o.p <= 1, "[Dropout] p must lie in [0, 1] but is ", o.p);
}
Tensor Dropout::forward(const Tensor& x) { return dropout(x, options.p, is_training()); }
std::string Dropout::options_text() const { return detail::OptionsText().add("p", options.p).str(); }

Tensor Flatten::forward(const Tensor& x) { return x.flatten(options.start_dim, options.end_dim); }
std::string Flatten::options_text() const {
  return detail::OptionsText().add("start_dim", options.start_dim).add("end_dim", options.end_dim).str();
}

}  // namespace tapestry::nn
