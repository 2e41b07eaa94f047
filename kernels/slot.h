#pragma once
// A kernel is a slot: declared once in kernels/ops/<family>.h, filled for each device type and dtype by the
// file that implements it there, which registers itself when the library is loaded.
//
// clang-format off
//   inline constinit Slot<void(const Elementwise<2>&)> relu{"relu"};        // kernels/ops/elementwise.h
//
//   const bool filled = for_types<float, double>([]<class T> {              // kernels/cpu/functions.cpp
//     relu.set(DeviceType::cpu, dtype_of<T>, &relu_kernel<T>);
//   });
//
//   kernels::relu(y.device(), y.dtype(), planned(y, x));                    // autograd/ops/functions.cpp
// clang-format on
//
// Slots are constant-initialised: a slot constructed at run time could lose what was registered before it.
#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"

namespace tapestry::kernels {

/// The device for which this thread last called a kernel that is not the CPU's: where its launches go.
inline thread_local constinit Device kernel_device = kCPU;

class SlotBase {
 public:
  constexpr explicit SlotBase(const char* name) : name_(name) {}
  SlotBase(const SlotBase&) = delete;
  SlotBase& operator=(const SlotBase&) = delete;

  const char* name() const { return name_; }
  bool has(DeviceType device, DType dtype) const { return table_[int(device)][int(dtype)] != nullptr; }
  /// The dtypes for which this device type has a kernel.
  DTypeSet dtypes(DeviceType device) const;
  /// All slots that some kernel was registered in, linked through next(); order unspecified.
  static const SlotBase* first();
  const SlotBase* next() const { return next_; }

 protected:
  using AnyFn = void (*)();
  void put(DeviceType device, DType dtype, AnyFn fn);
  [[noreturn]] void missing(DeviceType device, DType dtype) const;

  const char* name_;
  AnyFn table_[kNumDeviceTypes][kNumDTypes] = {};

 private:
  bool linked_ = false;
  SlotBase* next_ = nullptr;
};

template <class Signature>
class Slot;

template <class... Args>
class Slot<void(Args...)> : public SlotBase {
 public:
  using Fn = void (*)(Args...);
  using SlotBase::SlotBase;

  /// Registers the kernel. Called before main, from the static initialisers of the files that hold kernels.
  void set(DeviceType device, DType dtype, Fn fn) { put(device, dtype, reinterpret_cast<AnyFn>(fn)); }

  /// Runs the kernel. Throws MissingKernelError that names the slot, the device type and the dtype.
  void operator()(Device device, DType dtype, Args... args) const {
    const AnyFn fn = table_[int(device.type)][int(dtype)];
    if (!fn) [[unlikely]]
      missing(device.type, dtype);
    if (!device.is_cpu()) kernel_device = device;
    reinterpret_cast<Fn>(fn)(args...);
  }
};

/// Calls `fn.template operator()<T>()` for each T: how a file registers one template for many dtypes.
template <class... Ts, class F>
bool for_types(F&& fn) {
  (fn.template operator()<Ts>(), ...);
  return true;
}

}  // namespace tapestry::kernels
