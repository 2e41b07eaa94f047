#pragma once
// Activation functions as modules.
#include <initializer_list>
#include <string>
#include <utility>

#include "tapestry/autograd/ops/functions.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

namespace detail {
/// "name=value, name=value", as layers print their options.
std::string numbers_text(std::initializer_list<std::pair<const char*, double>> options);
}  // namespace detail

/// Declares a module without parameters and options.
#define TAPESTRY_ACTIVATION(Name)             \
  struct Name##Options {                      \
    using Layer = class Name;                 \
  };                                          \
  class Name : public Module {                \
   public:                                    \
    using Options = Name##Options;            \
    explicit Name(const Options& = {}) {}     \
    Tensor forward(const Tensor& x) override; \
  }

TAPESTRY_ACTIVATION(ReLU);      ///< max(x, 0)
TAPESTRY_ACTIVATION(SiLU);      ///< x sigmoid(x)
TAPESTRY_ACTIVATION(Tanh);      ///< tanh(x)
TAPESTRY_ACTIVATION(Sigmoid);   ///< 1 / (1 + exp(-x))
TAPESTRY_ACTIVATION(Identity);  ///< x
#undef TAPESTRY_ACTIVATION

struct GELUOptions {
  using Layer = class GELU;
  std::string approximate = "none";  ///< or "tanh"
};
/// x Phi(x) (Hendrycks and Gimpel 2016).
class GELU : public Module {
 public:
  using Options = GELUOptions;
  explicit GELU(const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct LeakyReLUOptions {
  using Layer = class LeakyReLU;
  double negative_slope = 0.01;
};
/// x if x > 0, else negative_slope * x.
class LeakyReLU : public Module {
 public:
  using Options = LeakyReLUOptions;
  explicit LeakyReLU(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct SoftplusOptions {
  using Layer = class Softplus;
  double beta = 1, threshold = 20;
};
/// log(1 + exp(beta x)) / beta, and x where beta x > threshold.
class Softplus : public Module {
 public:
  using Options = SoftplusOptions;
  explicit Softplus(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override { return softplus(x, options.beta, options.threshold); }
  std::string options_text() const override {
    return detail::numbers_text({{"beta", options.beta}, {"threshold", options.threshold}});
  }
  const Options options;
};

struct SoftmaxOptions {
  using Layer = class Softmax;
  std::int64_t dim =
      -1;  ///< PyTorch's deprecated default depends on the number of dimensions; here it is the last one
};
class Softmax : public Module {
 public:
  using Options = SoftmaxOptions;
  explicit Softmax(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct LogSoftmaxOptions {
  using Layer = class LogSoftmax;
  std::int64_t dim = -1;
};
class LogSoftmax : public Module {
 public:
  using Options = LogSoftmaxOptions;
  explicit LogSoftmax(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct DropoutOptions {
  using Layer = class Dropout;
  double p = 0.5;
};
/// In training, sets each element to zero with probability p and multiplies the rest by 1 / (1 - p)
/// (Srivastava et al. 2014). In evaluation, returns its input.
class Dropout : public Module {
 public:
  using Options = DropoutOptions;
  explicit Dropout(const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct FlattenOptions {
  using Layer = class Flatten;
  std::int64_t start_dim = 1, end_dim = -1;
};
/// Flattens dimensions start_dim to end_dim into one. By default it keeps only the batch dimension.
class Flatten : public Module {
 public:
  using Options = FlattenOptions;
  explicit Flatten(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

}  // namespace tapestry::nn
