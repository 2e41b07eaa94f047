#pragma once
#include <functional>
#include <optional>
#include <string>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

template <int kDims>
class BatchNorm;

/// Options of both batch norms; `Layer` says which one.
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

/// What may stand in for batch_norm() in training, with its arguments: SyncBatchNorm, whose batch is that of
/// all ranks.
using BatchNormTraining =
    std::function<Tensor(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                         const Tensor& weight, const Tensor& bias, double momentum, double eps)>;

/// Batch normalisation (Ioffe and Szegedy 2015): in training with the batch's statistics, in evaluation with
/// the running ones. BatchNorm1d takes (N, C) or (N, C, L), BatchNorm2d (N, C, H, W).
template <int kDims>
class BatchNorm : public Module {
  // Before the parameters, whose registration asks for type_name().
  BatchNormTraining training_function_;
  std::string training_name_;

 public:
  using Options = BatchNormOptions<kDims>;
  explicit BatchNorm(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override;
  std::string options_text() const override;
  /// Normalises with `function` in training from now on, and calls itself `name`; an empty one: with
  /// batch_norm().
  void set_training_function(std::string name, BatchNormTraining function);

  const Options options;
  Parameter& weight;
  Parameter& bias;
  Buffer& running_mean;
  Buffer& running_var;
  Buffer& num_batches_tracked;
};

using BatchNorm1d = BatchNorm<1>;
using BatchNorm2d = BatchNorm<2>;
extern template class BatchNorm<1>;
extern template class BatchNorm<2>;

struct LayerNormOptions {
  using Layer = class LayerNorm;
  Shape normalized_shape = {};
  double eps = 1e-5;
  bool elementwise_affine = true;
  bool bias = true;
};

/// Layer normalisation (Ba, Kiros and Hinton 2016) over the last dimensions, those of normalized_shape.
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

}  // namespace tapestry::nn
