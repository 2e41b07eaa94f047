#pragma once
#include <functional>
#include <optional>
#include <string>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

template <int kDims>
class BatchNorm;

/// Options of BatchNorm1d, BatchNorm2d and BatchNorm3d, whose kDims is 1, 2 and 3.
template <int kDims>
struct BatchNormOptions {
  using Layer = BatchNorm<kDims>;
  std::int64_t num_features = 0;
  double eps = 1e-5;
  std::optional<double> momentum =
      0.1;  ///< absent: the running statistics are plain averages over all batches
  bool affine = true;
  bool track_running_stats = true;
};

/// A function that replaces batch_norm() in training and takes the same arguments. SyncBatchNorm sets one
/// that uses the batches of all ranks.
using BatchNormTraining =
    std::function<Tensor(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                         const Tensor& weight, const Tensor& bias, double momentum, double eps)>;

/// Batch normalisation (Ioffe and Szegedy 2015). It uses the batch's statistics in training and the running
/// statistics in evaluation. BatchNorm1d takes (N, C) or (N, C, L), BatchNorm2d takes (N, C, H, W),
/// BatchNorm3d takes (N, C, D, H, W).
template <int kDims>
class BatchNorm : public Module {
  // These members are declared before the parameters, because registering a parameter may call type_name(),
  // which reads them.
  BatchNormTraining training_function_;
  std::string training_name_;

 public:
  using Options = BatchNormOptions<kDims>;
  explicit BatchNorm(const Options& options);
  Tensor forward(const Tensor& x) override { return normalized(x, false, {}); }
  /// relu(forward(x) + residual), or relu(forward(x)) without a residual, as one operation
  /// (batch_norm_relu()) unless a training function is set. The residual has x's shape, dtype and device.
  Tensor forward_relu(const Tensor& x, const Tensor& residual = {}) { return normalized(x, true, residual); }
  std::string type_name() const override;
  std::string options_text() const override;
  /// From now on, uses `function` in training and `name` as the type name. An empty function restores
  /// batch_norm().
  void set_training_function(std::string name, BatchNormTraining function);

  const Options options;
  /// Starts as options.momentum. update_bn() changes it for a while.
  std::optional<double> momentum;
  Parameter& weight;
  Parameter& bias;
  Buffer& running_mean;
  Buffer& running_var;
  Buffer& num_batches_tracked;

 private:
  Tensor normalized(const Tensor& x, bool with_relu, const Tensor& residual);
};

using BatchNorm1d = BatchNorm<1>;
using BatchNorm2d = BatchNorm<2>;
using BatchNorm3d = BatchNorm<3>;
extern template class BatchNorm<1>;
extern template class BatchNorm<2>;
extern template class BatchNorm<3>;

struct LayerNormOptions {
  using Layer = class LayerNorm;
  Shape normalized_shape = {};
  double eps = 1e-5;
  bool elementwise_affine = true;
  bool bias = true;
};

/// Layer normalisation over the last dimensions, whose sizes are normalized_shape (Ba, Kiros and Hinton
/// 2016).
class LayerNorm : public Module {
 public:
  using Options = LayerNormOptions;
  explicit LayerNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

struct RMSNormOptions {
  using Layer = class RMSNorm;
  Shape normalized_shape = {};
  std::optional<double> eps = {};  ///< absent: the machine epsilon of the dtype of sums, as in rms_norm()
  bool elementwise_affine = true;
};

/// Divides by the root mean square over the last dimensions, whose sizes are normalized_shape, and multiplies
/// by `weight` (Zhang and Sennrich 2019). It has no bias.
class RMSNorm : public Module {
 public:
  using Options = RMSNormOptions;
  explicit RMSNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
};

struct GroupNormOptions {
  using Layer = class GroupNorm;
  std::int64_t num_groups = 0, num_channels = 0;
  double eps = 1e-5;
  bool affine = true;
};

/// Group normalisation (Wu and He 2018) of (N, C) or (N, C, ...) with C = num_channels. Training and
/// evaluation are the same.
class GroupNorm : public Module {
 public:
  using Options = GroupNormOptions;
  explicit GroupNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

template <int kDims>
class InstanceNorm;

/// Options of InstanceNorm1d, InstanceNorm2d and InstanceNorm3d, whose kDims is 1, 2 and 3.
template <int kDims>
struct InstanceNormOptions {
  using Layer = InstanceNorm<kDims>;
  std::int64_t num_features = 0;
  double eps = 1e-5;
  double momentum = 0.1;
  bool affine = false;
  bool track_running_stats = false;
};

/// Instance normalisation (Ulyanov, Vedaldi and Lempitsky 2016). Its input is (N, C, L), (N, C, H, W) or
/// (N, C, D, H, W) for 1, 2 and 3 dimensions, or one sample without N. It uses each sample's own statistics;
/// with track_running_stats, it uses the running statistics in evaluation. As in PyTorch, the buffer
/// num_batches_tracked exists then, and stays 0. Unlike in PyTorch, num_features must be the number of
/// channels even if there are neither parameters nor running statistics.
template <int kDims>
class InstanceNorm : public Module {
 public:
  using Options = InstanceNormOptions<kDims>;
  explicit InstanceNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
  Buffer& running_mean;
  Buffer& running_var;
  Buffer& num_batches_tracked;
};

using InstanceNorm1d = InstanceNorm<1>;
using InstanceNorm2d = InstanceNorm<2>;
using InstanceNorm3d = InstanceNorm<3>;
extern template class InstanceNorm<1>;
extern template class InstanceNorm<2>;
extern template class InstanceNorm<3>;

struct LocalResponseNormOptions {
  using Layer = class LocalResponseNorm;
  std::int64_t size = 0;  ///< the number of neighbouring channels
  double alpha = 1e-4, beta = 0.75, k = 1;
};

/// Local response normalisation (functional::local_response_norm()) of (N, C, ...). It has no parameters.
class LocalResponseNorm : public Module {
 public:
  using Options = LocalResponseNormOptions;
  /// Throws ValueError unless size is positive.
  explicit LocalResponseNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
};

}  // namespace tapestry::nn
