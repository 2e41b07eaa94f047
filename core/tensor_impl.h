#pragma once
// TensorImpl: what a Tensor refers to. Programs use Tensor (core/tensor.h).
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/intrusive.h"
#include "tapestry/core/shape.h"
#include "tapestry/core/storage.h"

namespace tapestry {

enum class MemoryFormat : std::uint8_t { contiguous, channels_last };

/// The tape's data of a tensor. Autograd derives from this class.
struct GradRecord {
  /// Called when the tensor is destroyed or gets another record.
  virtual void release() noexcept = 0;
  /// The note that Tensor::str() prints: "requires_grad=True", "grad_fn=<mul>", or empty.
  virtual std::string note() const = 0;

 protected:
  ~GradRecord() = default;
};

struct TensorImpl {
  mutable std::atomic<int> refs{1};
  const DType dtype;
  bool inference;     // created in inference mode
  bool row_major;     // the value of is_contiguous()
  bool leaf = false;  // grad_record refers to a LeafNode, which has a weak pointer to this tensor
  const Device device;
  GradRecord* grad_record = nullptr;
  const StorageRef storage;
  // Only in-place changes of the view, such as Tensor::unsqueeze_(), change the members below.
  std::int64_t offset;  // in elements, from the start of the storage
  std::int64_t numel;
  Shape sizes, strides;  // strides in elements

  /// Creates a tensor of any layout. Its first element is element `first` of the storage.
  TensorImpl(StorageRef memory, std::int64_t first, DType type, const Shape& shape, std::int64_t elements,
             const Shape& steps, bool made_in_inference);
  /// Creates a row-major tensor. Its first element is the first one of the storage.
  TensorImpl(StorageRef memory, DType type, const Shape& shape, std::int64_t elements,
             bool made_in_inference);
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;

  void retain() const { refs.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    // A sole owner skips the atomic decrement. Leaves cannot: their node may take a reference for its hooks.
    if ((refs.load(std::memory_order_acquire) == 1 && !leaf) ||
        refs.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy();
  }

  /// Memory comes from a free list of the calling thread.
  static void* operator new(std::size_t bytes);
  static void operator delete(void* p) noexcept;

 private:
  ~TensorImpl();
  void destroy() const noexcept;
};

}  // namespace tapestry
