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

TAPESTRY_ACTIVATION(ReLU);         ///< max(x, 0)
TAPESTRY_ACTIVATION(SiLU);         ///< x sigmoid(x)
TAPESTRY_ACTIVATION(Tanh);         ///< tanh(x)
TAPESTRY_ACTIVATION(Sigmoid);      ///< 1 / (1 + exp(-x))
TAPESTRY_ACTIVATION(Identity);     ///< x
TAPESTRY_ACTIVATION(SELU);         ///< 1.0507 x if x > 0, else 1.7581 (exp(x) - 1)
TAPESTRY_ACTIVATION(Mish);         ///< x tanh(softplus(x))
TAPESTRY_ACTIVATION(Hardswish);    ///< x relu6(x + 3) / 6
TAPESTRY_ACTIVATION(Hardsigmoid);  ///< relu6(x + 3) / 6
TAPESTRY_ACTIVATION(ReLU6);        ///< min(max(x, 0), 6)
TAPESTRY_ACTIVATION(Softsign);     ///< x / (1 + |x|)
TAPESTRY_ACTIVATION(LogSigmoid);   ///< log(sigmoid(x))
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

struct ELUOptions {
  using Layer = class ELU;
  double alpha = 1;
};
/// x if x > 0, else alpha (exp(x) - 1).
class ELU : public Module {
 public:
  using Options = ELUOptions;
  explicit ELU(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override { return elu(x, options.alpha); }
  std::string options_text() const override { return detail::numbers_text({{"alpha", options.alpha}}); }
  const Options options;
};

struct CELUOptions {
  using Layer = class CELU;
  double alpha = 1;
};
/// x if x > 0, else alpha (exp(x / alpha) - 1).
class CELU : public Module {
 public:
  using Options = CELUOptions;
  explicit CELU(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override { return celu(x, options.alpha); }
  std::string options_text() const override { return detail::numbers_text({{"alpha", options.alpha}}); }
  const Options options;
};

struct HardtanhOptions {
  using Layer = class Hardtanh;
  double min_val = -1, max_val = 1;
};
/// min(max(x, min_val), max_val).
class Hardtanh : public Module {
 public:
  using Options = HardtanhOptions;
  explicit Hardtanh(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override { return hardtanh(x, options.min_val, options.max_val); }
  std::string options_text() const override {
    return detail::numbers_text({{"min_val", options.min_val}, {"max_val", options.max_val}});
  }
  const Options options;
};

struct PReLUOptions {
  using Layer = class PReLU;
  std::int64_t num_parameters = 1;  ///< 1, or the number of channels
  double init = 0.25;
};
/// x if x > 0, else weight x, with one weight for all channels or one per channel (dimension 1). Weight decay
/// should not apply to the weight.
class PReLU : public Module {
 public:
  using Options = PReLUOptions;
  explicit PReLU(const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
  Parameter& weight;
};

struct GLUOptions {
  using Layer = class GLU;
  std::int64_t dim = -1;
};
/// a sigmoid(b), where a and b are the halves of x along `dim`.
class GLU : public Module {
 public:
  using Options = GLUOptions;
  explicit GLU(const Options& o = {}) : options(o) {}
  Tensor forward(const Tensor& x) override { return glu(x, options.dim); }
  std::string options_text() const override;
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
