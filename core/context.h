#pragma once
// The context of operations (grad mode, autocast, device, stream, generator): one small value per thread.
// Each node of the tape stores the context in which it was recorded, and its backward runs in that context. A
// task on a device worker runs in a copy of its caller's context.
#include <cstdint>

#include "tapestry/core/device.h"
#include "tapestry/core/tls_model.h"

namespace tapestry {

class Generator;

/// What autocast does with an operation.
enum class CastPolicy : std::uint8_t {
  none,     ///< nothing: the operation takes its operands as they are
  low,      ///< converts the floating operands to the low dtype
  f32,      ///< converts the low operands to f32
  promote,  ///< converts the floating operands to the widest dtype among them
  through,  ///< computes in f32 if the dtypes of its operands differ, and returns the dtype of the first
};

/// What AutocastGuard (autograd/autocast.h) has set for operations.
struct AutocastState {
  std::uint8_t low[2] = {0,
                         0};  ///< for CPUs and GPUs: 0 if autocast is off, else 1 + the number of the DType
  std::uint16_t cache = 0;    ///< id of the cache of casts; 0 if there is none

  bool active() const { return (low[0] | low[1]) != 0; }
};

struct Context {
  bool grad_enabled = true;
  bool inference = false;          ///< see InferenceMode; implies !grad_enabled
  std::int16_t replica = 0;        ///< index of the DataParallel replica whose parameters this thread uses
  Device device = kCPU;            ///< where factories create tensors if no device is given
  Device real_device = kCPU;       ///< if `device` is meta: the device for which the tensors are meant
  std::uint64_t stream = 0;        ///< id of the device's stream; 0 is the default stream
  AutocastState autocast;          ///< backward functions run with autocast off
  Generator* generator = nullptr;  ///< overrides the device's default generator
};

namespace detail {
TAPESTRY_HOT_TLS inline thread_local constinit Context context;
}

/// This thread's context.
inline Context& current_context() { return detail::context; }

/// Replaces this thread's context until the guard is destroyed.
class ContextGuard {
 public:
  explicit ContextGuard(const Context& next) : saved_(current_context()) { current_context() = next; }
  ~ContextGuard() { current_context() = saved_; }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context saved_;
};

inline bool grad_enabled() { return current_context().grad_enabled; }

namespace detail {
/// Sets the grad mode, and restores the old one when destroyed.
class GradModeGuard {
 public:
  GradModeGuard(bool grad, bool inference)
      : grad_(current_context().grad_enabled), inference_(current_context().inference) {
    current_context().grad_enabled = grad;
    current_context().inference = inference;
  }
  ~GradModeGuard() {
    current_context().grad_enabled = grad_;
    current_context().inference = inference_;
  }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool grad_, inference_;
};
}  // namespace detail

/// Operations in this scope are not recorded.
struct NoGradGuard : detail::GradModeGuard {
  NoGradGuard() : GradModeGuard(false, current_context().inference) {}
};
/// Operations in this scope are recorded, even inside the scope of a NoGradGuard.
struct EnableGradGuard : detail::GradModeGuard {
  EnableGradGuard() : GradModeGuard(true, false) {}
};
/// Like NoGradGuard. In addition, tensors created here can never be saved for backward, require gradients or
/// be changed in place by a recorded operation. Such a use throws AutogradError, so that an untracked tensor
/// never makes a gradient wrong.
struct InferenceMode : detail::GradModeGuard {
  InferenceMode() : GradModeGuard(false, true) {}
};

/// Factories in this scope create tensors on `device`. Throws DeviceError if the device does not exist.
///
///   const DeviceGuard guard("meta");
///   Net net;  // shapes and dtypes without memory: see nn/materialize.h
///
/// Tensors on the meta device are meant for the device of the scope around it, and reserve random numbers of
/// that device's generator.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device)
      : saved_(current_context().device), saved_real_(current_context().real_device) {
    check_device("DeviceGuard", device);
    Context& context = current_context();
    if (device.is_meta() && !context.device.is_meta()) context.real_device = context.device;
    context.device = device;
  }
  ~DeviceGuard() {
    current_context().device = saved_;
    current_context().real_device = saved_real_;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device saved_, saved_real_;
};

}  // namespace tapestry
