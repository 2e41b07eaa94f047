#pragma once
// What class Tensor is declared with: the options of factories, the handles of hooks, and the functions of
// core that return or print tensors. Include core/tensor.h.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <utility>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/shape.h"
#include "tapestry/core/tensor_impl.h"

namespace tapestry {

class Tensor;
namespace indexing {
class TensorIndex;
}
struct Unique;
struct UniqueOptions;

/// Options of a factory. Without a device, the tensor is on the context's device. Without a dtype, it is f32
/// or what the factory documents.
struct TensorOptions {
  std::optional<DType> dtype = {};
  std::optional<Device> device = {};
  bool requires_grad = false;

  TensorOptions() = default;
  TensorOptions(DType t) : dtype(t) {}                       // NOLINT
  TensorOptions(Device d) : device(d) {}                     // NOLINT
  TensorOptions(DType t, Device d) : dtype(t), device(d) {}  // NOLINT
  TensorOptions with_grad(bool on = true) const {
    TensorOptions o = *this;
    o.requires_grad = on;
    return o;
  }
};

/// A handle that can remove a registered hook. Copyable. A second remove() does nothing.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) remove_();
    remove_ = nullptr;
  }

 private:
  std::function<void()> remove_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& t);
std::ostream& operator<<(std::ostream& out, const Shape& sizes);
std::ostream& operator<<(std::ostream& out, DType dtype);
std::ostream& operator<<(std::ostream& out, Device device);

/// An uninitialised tensor, dense in `format`. Throws ValueError if a size is negative or the number of bytes
/// overflows 64 bits.
Tensor empty(const Shape& sizes, const TensorOptions& options = {},
             MemoryFormat format = MemoryFormat::contiguous);
/// A dense row-major tensor that uses memory of the caller, who keeps the memory alive. On cpu:0 unless
/// `options` has another device.
Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options = {});

}  // namespace tapestry
