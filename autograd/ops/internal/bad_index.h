#pragma once
// A memory cell in which a kernel reports the first index that is out of range (see kernels/ops/index.h), and
// the check that turns the report into an IndexError.
#include <utility>

#include "tapestry/core/internal/deferred_check.h"
#include "tapestry/core/pinned.h"
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
    pinned_ = empty_pinned({1}, DType::i64);
    *pinned_.data<std::int64_t>() = kernels::kNoBadIndex;
  }
  std::int64_t* cell() { return pinned_.defined() ? pinned_.data<std::int64_t>() : &first_; }

  /// Throws IndexError if the kernel found an index outside [0, limit) in `index` (dense, of integers), which
  /// the message calls `what`. For a GPU the error is thrown when the host next waits for the work.
  void check(const char* op, const char* what, const Tensor& index, std::int64_t limit) const {
    if (pinned_.defined()) return check_on_gpu(op, what, limit);
    if (first_ != kernels::kNoBadIndex) [[unlikely]]
      fail<IndexError>("[", op, "] ", what, " ", value_at(index, first_), " at position ", first_,
                       " is outside [0, ", limit, "); correct it, or the number of classes or rows");
  }
  /// Calls fail_at(position), which throws, if a kernel has reported a position: at once on a CPU, or when
  /// the host next waits for the GPU.
  template <class F>
  void check_with(const F& fail_at) const {
    if (pinned_.defined())
      return defer_check(current_stream(device_), [fail_at, cell = pinned_] {
        const std::int64_t first = taken(cell);
        if (first != kernels::kNoBadIndex) fail_at(first);
      });
    if (first_ != kernels::kNoBadIndex) [[unlikely]]
      fail_at(first_);
  }

 private:
  /// Reads the cell and clears it: the replays of a captured step (core/cuda/capture.h) use it again.
  static std::int64_t taken(const Tensor& cell) {
    return std::exchange(*cell.data<std::int64_t>(), kernels::kNoBadIndex);
  }
  static std::int64_t value_at(const Tensor& index, std::int64_t i) {
    return index.dtype() == DType::i32 ? index.data<std::int32_t>()[i] : index.data<std::int64_t>()[i];
  }
  void check_on_gpu(const char* op, const char* what, std::int64_t limit) const {
    defer_check(current_stream(device_), [=, cell = pinned_, device = device_] {
      const std::int64_t first = taken(cell);
      if (first != kernels::kNoBadIndex)
        fail<IndexError>(
            "[", op, "] ", what, " at position ", first, " is outside [0, ", limit, "), as ", device,
            " found by the time the host waited for it; correct it, or the number of classes or rows");
    });
  }

  const Device device_;
  std::int64_t first_ = kernels::kNoBadIndex;
  Tensor pinned_;  // the cell of a GPU's kernel, in page-locked memory
};

}  // namespace tapestry::autograd
