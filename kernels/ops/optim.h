#pragma once
// Steps of optimizers, fused: one pass over each parameter, any number of parameters in one call.
#include <cstdint>

#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// What may change from one step to the next. It lies in memory of the device, so that a step captured as a
/// CUDA graph sees new values when it is replayed.
struct StepScalars {
  double lr = 0;
  double grad_scale = 1;  ///< gradients are multiplied by this first
};

/// One parameter of a step. All arrays have `numel` elements of the call's dtype, in one dense layout. `step`
/// lies in memory of the device too: the kernel adds 1 to it, and then takes it as the number of this step.
struct StepItem {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state[3] = {};
  double* step = nullptr;
  std::int64_t numel = 0;
};

struct StepItems {
  const StepItem* items = nullptr;  // in host memory
  std::int64_t count = 0;
  const StepScalars* scalars = nullptr;
};

/// g = scale * grad (negated to maximize) + weight_decay * p. With momentum, state[0] is the buffer
/// b = momentum * b + (1 - dampening) * g, in the first step b = g, and g becomes b, or g + momentum * b
/// (Nesterov). p -= lr * g. Without momentum neither state nor step is used.
struct SgdArgs {
  StepItems tensors;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
inline constinit Slot<void(const SgdArgs&)> sgd_step{"sgd_step"};

/// Adam (Kingma and Ba 2015) with state m, v and, for amsgrad, the largest v (Reddi et al. 2018). Weight
/// decay is added to the gradient, or, `decoupled` (Loshchilov and Hutter 2019), p *= 1 - lr * weight_decay
/// first. p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
struct AdamArgs {
  StepItems tensors;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false, amsgrad = false, maximize = false;
};
inline constinit Slot<void(const AdamArgs&)> adam_step{"adam_step"};

}  // namespace tapestry::kernels
