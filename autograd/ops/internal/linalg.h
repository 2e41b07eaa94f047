#pragma once
// Helpers of the linear algebra: checks of matrices, and the way of a tensor through a CPU kernel.
#include <string>

#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::autograd {

inline Tensor mT(const Tensor& x) { return transpose(x, -2, -1); }

/// Throws unless x is a batch of matrices of a dtype that the operation takes.
inline void check_matrices(const Op& op, const Tensor& x, const char* what = "the input") {
  tapestry::detail::check_defined(op.name, x, what);
  op.check_dtype(x.dtype());
  check(x.dim() >= 2, "[", op.name, "] ", what, " has shape ", x.sizes(), "; expected matrices (..., m, n)");
}
/// Throws unless x is a batch of square matrices.
inline void check_square(const Op& op, const Tensor& x, const char* what = "the input") {
  check_matrices(op, x, what);
  check(x.size(-1) == x.size(-2), "[", op.name, "] ", what, " has shape ", x.sizes(),
        "; expected square matrices (..., n, n)");
}

/// The shape without its last `count` dimensions.
inline Shape leading(const Tensor& x, int count = 2) {
  return {x.sizes().begin(), static_cast<std::size_t>(x.dim() - count)};
}
inline Shape joined(Shape batch, std::initializer_list<std::int64_t> rest) {
  for (const std::int64_t size : rest) batch.push_back(size);
  return batch;
}

/// The elements of x for a CPU kernel of `op`: dense and on a CPU, or on the meta device if x is. Not
/// recorded.
inline Tensor on_cpu(const char* op, const Tensor& x) {
  if (x.device().is_cuda())
    tapestry::detail::refuse_in_capture(op, "it runs on the CPU, so call it outside of the step");
  const NoGradGuard no_grad;
  return (x.device().is_cuda() ? x.cpu() : x).contiguous();
}
/// An uninitialised result of a CPU kernel whose input is `x`.
inline Tensor cpu_result(const Tensor& x, const Shape& sizes) {
  return empty(sizes, {x.dtype(), x.device().is_cuda() ? kCPU : x.device()});
}

/// Says why matrices of a batch have no result, by one i64 for each of them.
class MatrixInfo {
 public:
  MatrixInfo(const Tensor& x, const Shape& batch)
      : batch_(batch), info(empty(batch, {DType::i64, x.device().is_cuda() ? kCPU : x.device()})) {}

  /// Calls fail_at(matrix, reason), which throws, for the first matrix that has a reason. `matrix` is a text
  /// such as "the matrix at index (1, 2) of the batch".
  template <class F>
  void check(const F& fail_at) const {
    if (info.device().is_meta()) return;
    const auto* const reason = info.data<std::int64_t>();
    for (std::int64_t i = 0; i < info.numel(); ++i)
      if (reason[i] != 0) fail_at(name_of(i), reason[i]);
  }

 private:
  std::string name_of(std::int64_t position) const {
    if (batch_.empty()) return "the matrix";
    std::string index;
    for (int d = batch_.size() - 1; d >= 0; --d) {
      index = std::to_string(position % batch_[d]) + (index.empty() ? "" : ", ") + index;
      position /= batch_[d];
    }
    return "the matrix at index (" + index + ") of the batch";
  }
  Shape batch_;

 public:
  const Tensor info;
};

}  // namespace tapestry::autograd
