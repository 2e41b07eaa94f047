#include "tapestry/distributed/comm/internal/staged.h"

#include <cstring>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/error.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/internal/deadline.h"

namespace tapestry::distributed {
namespace {

Device gpu_of(const Tensor& a, const Tensor& b) { return a.device().is_cuda() ? a.device() : b.device(); }

// Copies between the strided tensor `t` and the contiguous tensor `other`, on `stream`. A piece is a run of
// elements without gaps. Equally spaced pieces are copied by one 2-D copy.
enum class Direction { from_tensor, to_tensor };
void copy_elements(Direction direction, const Tensor& t, const Tensor& other, const Stream& stream) {
  if (t.numel() == 0) return;
  const auto size = static_cast<std::int64_t>(dtype_size(t.dtype()));
  int outer = t.dim();  // the dimensions outside of a piece
  std::int64_t piece = 1;
  while (outer > 0 && (t.sizes()[outer - 1] == 1 || t.strides()[outer - 1] == piece))
    piece *= t.sizes()[--outer];
  std::int64_t rows = 1,
               step = 0;  // the number of pieces that one copy moves, and the distance between their begins
  if (outer > 0 && t.strides()[outer - 1] >= piece) {
    --outer;
    rows = t.sizes()[outer];
    step = t.strides()[outer];
  }
  std::int64_t copies = 1, index[kMaxDims] = {};
  for (int i = 0; i < outer; ++i) copies *= t.sizes()[i];
  const auto width = static_cast<std::size_t>(piece * size);
  char* strided = static_cast<char*>(t.raw_data());
  char* dense = static_cast<char*>(other.raw_data());
  for (std::int64_t c = 0; c < copies; ++c) {
    const std::size_t pitch = rows > 1 ? static_cast<std::size_t>(step * size) : width;
    const bool out = direction == Direction::to_tensor;
    cuda::copy_rows_async(out ? strided : dense, out ? pitch : width, out ? dense : strided,
                          out ? width : pitch, width, static_cast<std::size_t>(rows), stream);
    dense += width * static_cast<std::size_t>(rows);
    for (int i = outer - 1; i >= 0; --i) {
      strided += t.strides()[i] * size;
      if (++index[i] < t.sizes()[i]) break;
      strided -= t.sizes()[i] * t.strides()[i] * size;
      index[i] = 0;
    }
  }
  record_stream(t, stream);
  record_stream(other, stream);
}

void wait_for(const Stream& stream, Deadline deadline) {
  Event event;
  event.record(stream);
  check<TimeoutError>(event.wait_for(left_until(deadline)), stream.device(),
                      " has not finished its earlier work");
}

}  // namespace

Staged::Staged(const Tensor& t, Fill fill, Device where, Deadline deadline) : t_(t), deadline_(deadline) {
  if (t.device().is_cpu() && where.is_cpu()) {
    host_.emplace(t, fill);
    return;
  }
  if (t.device() == where && t.is_contiguous() && fill != Fill::copy) {
    buffer_ = t;
    return;
  }
  const bool pinned = where.is_cpu();
  buffer_ = pinned ? empty_pinned(t.sizes(), t.dtype()) : empty(t.sizes(), {t.dtype(), where});
  if (fill == Fill::no || t.numel() == 0) return;
  const Stream stream = current_stream(gpu_of(t, buffer_));
  if (t.device().is_cpu()) {
    const Dense dense(t, Fill::yes);
    const Tensor packed = empty_pinned(t.sizes(), t.dtype());
    std::memcpy(packed.raw_data(), dense.data(), t.nbytes());
    copy_async(buffer_, packed, stream);
    return;
  }
  copy_elements(Direction::from_tensor, t, buffer_, stream);
  if (pinned) wait_for(stream, deadline);
}

void Staged::store() const {
  if (host_) return host_->store();
  if (buffer_.is_same(t_) || t_.numel() == 0) return;
  const Stream stream = current_stream(gpu_of(t_, buffer_));
  if (!t_.device().is_cpu()) return copy_elements(Direction::to_tensor, t_, buffer_, stream);
  const Tensor arrived = empty_pinned(t_.sizes(), t_.dtype());
  copy_async(arrived, buffer_, stream);
  wait_for(stream, deadline_);
  const Dense dense(t_, Fill::no);
  std::memcpy(dense.data(), arrived.raw_data(), arrived.nbytes());
  dense.store();
}

}  // namespace tapestry::distributed
