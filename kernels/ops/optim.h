#pragma once
// Contracts of the optimizers' steps. They are fused: one call updates any number of parameters and passes
// over each of them once.
#include <cstdint>

#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// The options that may change from one step to the next. They lie in device memory, so that the replay of a
/// CUDA graph uses the values of the current step.
struct StepScalars {
  double lr = 0;
  double grad_scale = 1;  ///< gradients are multiplied by this first
};

/// One parameter of a step. All arrays have `numel` elements of the slot's dtype in the same dense layout.
/// They are raw pointers because the struct is copied to a GPU. `step` points to device memory too. The
/// kernel increments it and then uses it as the number of this step.
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

/// Stochastic gradient descent. g = grad_scale * grad + weight_decay * p, and then p -= lr * g. `maximize`
/// negates grad. With momentum, state[0] is the buffer b. It becomes g in the first step, and momentum * b +
/// (1 - dampening) * g afterwards. Then p is updated with b instead of g, or with g + momentum * b
/// (Nesterov). Without momentum, neither `state` nor `step` is used.
struct SgdArgs {
  StepItems tensors;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
inline constinit Slot<SgdArgs> sgd_step{"sgd_step"};

/// Adam (Kingma and Ba 2015): p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps). The state
/// consists of m, v and, for amsgrad, the largest v so far (Reddi et al. 2018). Weight decay is added to the
/// gradient. If `decoupled` is set, the kernel instead multiplies p by 1 - lr * weight_decay first (AdamW,
/// Loshchilov and Hutter 2019).
struct AdamArgs {
  StepItems tensors;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false, amsgrad = false, maximize = false;
};
inline constinit Slot<AdamArgs> adam_step{"adam_step"};

}  // namespace tapestry::kernels
