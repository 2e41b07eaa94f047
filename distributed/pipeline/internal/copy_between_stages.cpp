#include "tapestry/distributed/pipeline/internal/copy_between_stages.h"

#include "tapestry/core/context.h"
#include "tapestry/core/cuda/internal/copy.h"

namespace tapestry::distributed {
namespace {

// True if the elements fill one contiguous block of memory, in any order of dimensions. Then a copy of bytes
// keeps the strides.
bool is_dense(const Tensor& t) {
  std::int64_t span = 1;
  for (int i = 0; i < t.dim(); ++i) span += (t.sizes()[i] - 1) * t.strides()[i];
  return t.numel() > 0 && span == t.numel();
}

}  // namespace

std::shared_ptr<const ReadyEvent> record_ready(Device device, const CopyStreams& streams) {
  if (device.is_cpu()) return nullptr;
  auto ready = std::make_shared<ReadyEvent>(ReadyEvent{Event(), streams.outgoing});
  ready->event.record(current_stream(device));
  return ready;
}

Tensor copy_between_stages(const Tensor& x, const ReadyEvent* ready, const Stream& consumer,
                           const CopyStreams& streams) {
  const NoGradGuard no_grad;
  const Device device = consumer.device();
  if (!ready || device.is_cpu()) return x.to(device);
  const Stream out = ready->copy_stream;
  const auto wait_for = [&consumer](const Tensor& y, const Stream& copying) {
    Event copied;
    copied.record(copying);
    consumer.wait(copied);
    record_stream(y, consumer);
    return y;
  };
  out.wait(ready->event);
  record_stream(x, out);
  if (!is_dense(x)) {
    const StreamGuard guard(out);
    return wait_for(x.to(device), current_stream(device));
  }
  StorageRef memory;
  {
    // The memory is allocated on the `incoming` stream, which runs no work, so that the copy need not wait.
    // The allocator reuses memory of this stream only after the consumers of its earlier content have
    // finished. Memory of the consumer's stream might still be used by earlier work of that stream, and the
    // copy would have to wait for that work.
    const StreamGuard guard(streams.incoming);
    memory = Storage::allocate(device, x.nbytes());
    Event unused;
    unused.record(streams.incoming);
    out.wait(unused);
  }
  const Tensor y = detail::make_tensor(std::move(memory), x.dtype(), x.sizes(), x.strides(), 0);
  cuda::copy_bytes_async(device, y.raw_data(), x.device(), x.raw_data(), x.nbytes(), out);
  return wait_for(y, out);
}

}  // namespace tapestry::distributed
