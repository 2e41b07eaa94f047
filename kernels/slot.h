#pragma once
// A slot is the function through which all kernels of one operation are called. kernels/ops/<family>.h
// declares the slot. A file that implements the kernel for a device type and dtype registers it in the slot
// when the library is loaded.
//
// clang-format off
//   struct SoftmaxArgs { std::int64_t outer, n, inner; ConstArray x; MutableArray y; };   // kernels/ops/softmax.h
//   inline constinit Slot<SoftmaxArgs> softmax{"softmax"};
//
//   template <class T>                                                                    // kernels/cpu/softmax.cpp
//   void softmax_kernel(const LaunchContext&, const SoftmaxArgs& a);
//   const bool filled = for_types<float, double>([]<class T> {
//     softmax.set(DeviceType::cpu, dtype_of<T>, &softmax_kernel<T>);
//   });
//
//   kernels::softmax(y.device(), y.dtype(), {.outer = 1, .n = 8, .inner = 1, .x = x, .y = y});  // autograd/ops
// clang-format on
//
// Slots are constant-initialised. A slot that is constructed at run time could lose the kernels that were
// registered before it.
#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/internal/kernel_span.h"

namespace tapestry::kernels {

/// Says where a kernel runs. The slot passes it to every kernel as the first argument.
struct LaunchContext {
  Device device;           ///< runs the kernel; the workspace is allocated on it too
  void* stream = nullptr;  ///< the cudaStream_t for launches on a GPU; null on a CPU
};

class SlotBase {
 public:
  constexpr explicit SlotBase(const char* name) : name_(name) {}
  SlotBase(const SlotBase&) = delete;
  SlotBase& operator=(const SlotBase&) = delete;

  const char* name() const { return name_; }
  bool has(DeviceType device, DType dtype) const { return table_[int(device)][int(dtype)] != nullptr; }
  /// The dtypes for which this device type has a kernel.
  DTypeSet dtypes(DeviceType device) const;
  /// The list of all slots that have a kernel, linked through next(), in no particular order.
  static const SlotBase* first();
  const SlotBase* next() const { return next_; }

 protected:
  using AnyFn = void (*)();
  void put(DeviceType device, DType dtype, AnyFn fn);
  /// Throws, except on the meta device, which has no kernels and needs none.
  void missing(DeviceType device, DType dtype) const;
  /// Returns the context for a launch on the current stream of a device that is not a CPU. Also makes the
  /// device's GPU the current GPU of the calling thread.
  static LaunchContext gpu_context(Device device);

  const char* name_;
  AnyFn table_[kNumDeviceTypes][kNumDTypes] = {};

 private:
  bool linked_ = false;
  SlotBase* next_ = nullptr;
};

/// `Args` is a struct that holds everything the kernel reads and writes.
template <class Args>
class Slot : public SlotBase {
 public:
  using Fn = void (*)(const LaunchContext&, const Args&);
  using SlotBase::SlotBase;

  /// Registers the kernel. The static initialisers of the files that hold kernels call this function when the
  /// library is loaded.
  void set(DeviceType device, DType dtype, Fn fn) { put(device, dtype, reinterpret_cast<AnyFn>(fn)); }

  /// Runs the kernel on the device's current stream. Does nothing on the meta device. If there is no kernel,
  /// throws MissingKernelError with the names of the slot, the device type and the dtype.
  void operator()(Device device, DType dtype, const Args& args) const {
    const AnyFn fn = table_[int(device.type)][int(dtype)];
    if (!fn) [[unlikely]]
      return missing(device.type, dtype);
    const LaunchContext context = device.is_cpu() ? LaunchContext{device} : gpu_context(device);
    const tapestry::detail::KernelSpan span(device, name_);
    reinterpret_cast<Fn>(fn)(context, args);
  }
};

/// Registers a function that every launch on a device that is not a CPU calls first, with the stream of its
/// LaunchContext, so that the calling thread uses the device's GPU. slot.cpp cannot select the GPU itself,
/// because it is also built without CUDA. cuda/launch.cu registers the function.
void set_launch_hook(void (*use_device)(Device, void* stream));

/// Calls `fn.template operator()<T>()` for each T. A file uses it to register one template for many dtypes.
template <class... Ts, class F>
bool for_types(F&& fn) {
  (fn.template operator()<Ts>(), ...);
  return true;
}

}  // namespace tapestry::kernels
