#pragma once
#include <functional>

#include "tapestry/core/packed_tensor.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct LinearOptions {
  using Layer = class Linear;
  std::int64_t in_features = 0, out_features = 0;
  bool bias = true;
};

/// Computes x W^T + b over the last dimension. Parameters: weight (out, in) and bias (out). Both start
/// uniform in [-k, k] with k = 1 / sqrt(in).
class Linear : public Module {
 public:
  using Options = LinearOptions;
  explicit Linear(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  /// Replaces the weight by one that stays in its blocks and is not trained: `weight` becomes undefined, and
  /// parameters() and state_dict() no longer have it. forward() then takes f32 on the CPU (packed_linear).
  /// Throws ValueError unless the shape is (out_features, in_features).
  void set_packed_weight(const PackedTensor& packed);
  /// Undefined unless set_packed_weight() was called.
  const PackedTensor& packed_weight() const { return packed_; }
  /// Makes `weight` a parameter again, with the elements of the packed weight in f32. Does nothing if there
  /// is none.
  void unpack_weight();

  const Options options;
  Parameter& weight;
  Parameter& bias;
  /// If set, forward() is this function: ranks divide the weight (distributed::tensor_parallel()), and the
  /// product of this rank's part is not the whole result.
  std::function<Tensor(const Tensor& x)> divided_forward;

 private:
  PackedTensor packed_;
  // packed_linear(), once there is a packed weight: programs without one are linked without its kernels.
  Tensor (*packed_product_)(const Tensor& x, const PackedTensor& weight, const Tensor& bias) = nullptr;
};

struct BilinearOptions {
  using Layer = class Bilinear;
  std::int64_t in1_features = 0, in2_features = 0, out_features = 0;
  bool bias = true;
};

/// Computes y_k = sum over i and j of a_i weight_kij b_j, plus bias_k, over the last dimensions of two
/// inputs, whose other dimensions are equal. Parameters: weight (out, in1, in2) and bias (out). Both start
/// uniform in [-k, k] with k = 1 / sqrt(in1).
class Bilinear : public Callable<Bilinear> {
 public:
  using Options = BilinearOptions;
  explicit Bilinear(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& a, const Tensor& b);
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

}  // namespace tapestry::nn
