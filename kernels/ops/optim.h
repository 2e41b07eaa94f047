#pragma once
// Contracts of the optimizers' steps. They are fused: one call updates any number of parameters and passes
// over each of them once.
#include <cstdint>

#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// The options that may change from one step to the next. They lie in memory of the device, so that the
/// replay of a CUDA graph that captured a step sees new values.
struct StepScalars {
  double lr = 0;
  double grad_scale = 1;  ///< gradients are multiplied by this first
};

/// One parameter of a step. All arrays have `numel` elements of the call's dtype in one dense layout, and are
/// plain addresses because the whole struct is copied to a GPU. `step` lies in memory of the device too. The
/// kernel adds 1 to it and then uses it as the number of this step.
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

/// g = scale * grad (negated to maximize) + weight_decay * p, then p -= lr * g. With momentum, state[0] is
/// the buffer b = momentum * b + (1 - dampening) * g, or b = g in the first step, and g is replaced by b, or
/// by g + momentum * b (Nesterov). Without momentum neither state nor step is used.
struct SgdArgs {
  StepItems tensors;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
inline constinit Slot<SgdArgs> sgd_step{"sgd_step"};

/// Adam (Kingma and Ba 2015): p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps). The state is
/// m, v and, for amsgrad, the largest v (Reddi et al. 2018). Weight decay is added to the gradient.
/// `decoupled` weight decay multiplies p by 1 - lr * weight_decay first instead (AdamW, Loshchilov and Hutter
/// 2019).
struct AdamArgs {
  StepItems tensors;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false, amsgrad = false, maximize = false;
};
inline constinit Slot<AdamArgs> adam_step{"adam_step"};

}  // namespace tapestry::kernels
