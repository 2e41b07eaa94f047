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
  /// Replaces the momentum or beta1 of the step's arguments on a GPU, unless it is negative. One-cycle
  /// schedules change it, and a CUDA graph keeps the arguments of its capture.
  double momentum = -1;
};

/// One parameter of a step. All arrays have `numel` elements in the same dense layout, and the slot's dtype;
/// states of f16 and bf16 parameters are f32. They are raw pointers because the struct is copied to a GPU.
/// `step` points to device memory too. The kernel increments it and then uses it as the number of this step.
struct StepItem {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state[3] = {};
  double* step = nullptr;
  std::int64_t numel = 0;
};

/// What else a step of an f16 or bf16 parameter needs. The step is computed in f32. If `master` is not null,
/// it is the parameter in f32: the step updates it, and the parameter becomes its nearest value.
struct LowPrecisionItem {
  float* master = nullptr;
  std::uint64_t number = 0;  ///< identifies the parameter in the random bits of stochastic rounding
  std::int64_t offset = 0;   ///< the number of its first element in them
};

struct StepItems {
  const StepItem* items = nullptr;  // in host memory
  std::int64_t count = 0;
  const StepScalars* scalars = nullptr;
  /// One per item, in host memory; required for f16 and bf16.
  const LowPrecisionItem* low = nullptr;
  /// Rounds f16 and bf16 parameters without master as stochastic_rounding.h says, which needs a step count.
  bool stochastic = false;
  /// Both are one f32 in device memory, or null. A GradScaler computes them there, so that the host does not
  /// wait. Gradients are divided by *loss_scale: the gradient's factor is grad_scale / *loss_scale, computed
  /// in f64. If *found_inf is not 0, the kernel changes nothing: no parameter, no state and no step count.
  const float* loss_scale = nullptr;
  const float* found_inf = nullptr;
};

/// Stochastic gradient descent. g = grad_scale * grad + weight_decay * p, and then p -= lr * g. `maximize`
/// negates grad. With momentum, state[0] is the buffer b. It becomes g in the first step, and momentum * b +
/// (1 - dampening) * g afterwards. Then p is updated with b instead of g, or with g + momentum * b
/// (Nesterov). Without momentum, `state` is not used, and `step` may be null.
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
