#pragma once
// All gradients of a CUDA device, for kernels that clip any number of them in a fixed number of launches
// (kernels/ops/clip.h).
#include <optional>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/clip.h"

namespace tapestry::nn {

class ManyGradients {
 public:
  /// Nothing unless all gradients are dense tensors of f32, f16 or bf16 on one CUDA device and have elements.
  static std::optional<ManyGradients> of(const std::vector<Tensor>& gradients);

  struct Norm {
    Tensor total, factor;  // f32 scalars
  };
  /// The norm of all gradients, and the factor that clips it to max_norm. Two launches.
  Norm norm(double order, double max_norm) const;
  /// Multiplies all gradients by a scalar f32 tensor of the same device. One launch.
  void scale(const Tensor& factor) const;
  /// Clamps all elements to [-limit, limit]. One launch.
  void clamp(double limit) const;

 private:
  ManyGradients() = default;
  kernels::GradientItems arguments() const;
  void changed() const;

  std::vector<Tensor> gradients_;
  std::vector<kernels::GradientItem> items_;
  std::int64_t blocks_ = 0;
  Tensor on_device_;  // the items as bytes, if they do not fit into a kernel's arguments
};

}  // namespace tapestry::nn
