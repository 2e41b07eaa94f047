#pragma once
// The cell in which a kernel reports the first index that is out of range (kernels::BadIndexCell), and the
// check that turns the report into an IndexError.
#include "tapestry/core/internal/deferred_check.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::autograd {

/// True for every integer type except bool. Indices are converted to i64, so they may also have the types
/// that tensors can be stored in but that no kernel computes with.
constexpr bool is_index(DType t) { return is_integral(t) && t != DType::boolean; }

class BadIndex {
 public:
  explicit BadIndex(Device device) : device_(device) {
    if (!device.is_cuda()) return;
    const tapestry::detail::CallCell on_gpu = tapestry::detail::next_call_cell(device);
    cell_ = on_gpu.cell, call_ = on_gpu.call;
  }
  BadIndex(const BadIndex&) = delete;
  BadIndex& operator=(const BadIndex&) = delete;
  kernels::BadIndexCell cell() { return {cell_, call_}; }

  /// Throws IndexError if the kernel found an index outside [0, limit) in `index` (dense, of integers), which
  /// the message calls `what`. For a GPU the error is thrown when the host next waits for the work.
  void check(const char* op, const char* what, const Tensor& index, std::int64_t limit) const {
    if (device_.is_cuda())
      return check_with([=, device = device_](std::int64_t first) {
        fail<IndexError>(
            "[", op, "] ", what, " at position ", first, " is outside [0, ", limit, "), as ", device,
            " found by the time the host waited for it; correct it, or the number of classes or rows");
      });
    check_with([&](std::int64_t first) {
      fail<IndexError>("[", op, "] ", what, " ", value_at(index, first), " at position ", first,
                       " is outside [0, ", limit, "); correct it, or the number of classes or rows");
    });
  }
  /// Calls fail_at(position), which throws, if a kernel has reported a position: at once on a CPU, or when
  /// the host next waits for the GPU.
  template <class F>
  void check_with(const F& fail_at) const {
    if (device_.is_cuda()) return tapestry::detail::defer_check(current_stream(device_), {call_, fail_at});
    if (first_ != kernels::kNoBadIndex) [[unlikely]]
      fail_at(first_);
  }

 private:
  static std::int64_t value_at(const Tensor& index, std::int64_t i) {
    return index.dtype() == DType::i32 ? index.data<std::int32_t>()[i] : index.data<std::int64_t>()[i];
  }

  const Device device_;
  std::int64_t first_ = kernels::kNoBadIndex;
  std::int32_t call_ = 0;
  std::int64_t* cell_ = &first_;  // of a GPU: see deferred_check.h
};

}  // namespace tapestry::autograd
