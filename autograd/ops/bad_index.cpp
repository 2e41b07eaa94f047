#include "tapestry/autograd/ops/bad_index.h"

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/cuda/faults.h"
#include "tapestry/core/error.h"
#include "tapestry/core/pinned.h"

namespace tapestry::autograd {
namespace {

[[noreturn]] void fail_at(std::int64_t position, const char* op, const char* what, const Tensor& index,
                          std::int64_t limit) {
  const NoGradGuard no_grad;
  const std::int64_t value = index.view({-1}).select(0, position).item<std::int64_t>();
  fail<IndexError>("[", op, "] ", what, " ", value, " at position ", position, " is outside [0, ", limit,
                   "); correct it, or the number of classes or rows");
}

}  // namespace

BadIndex::BadIndex(Device device) {
  if (device.is_cpu()) return;
  page_locked_ = empty_pinned({1}, DType::i64);
  record_stream(page_locked_, current_stream(device));
  *cell() = kernels::kNoBadIndex;
}

void BadIndex::check(const char* op, const char* what, const Tensor& index, std::int64_t limit) {
  if (!page_locked_.defined()) {
    if (here_ != kernels::kNoBadIndex) [[unlikely]]
      fail_at(here_, op, what, index, limit);
    return;
  }
  cuda::check_behind(current_stream(index.device()), [op, what, index, limit, cell = page_locked_] {
    const std::int64_t first = *cell.data<std::int64_t>();
    if (first != kernels::kNoBadIndex) fail_at(first, op, what, index, limit);
  });
}

}  // namespace tapestry::autograd
