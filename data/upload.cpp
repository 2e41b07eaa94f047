#include "tapestry/data/upload.h"

#include <cstring>

#include "tapestry/core/pinned.h"

namespace tapestry::data {

Upload::Upload(Device device) : device_(device) {
  check<DeviceError>(device.is_cuda(), "[DataLoader] device ", device,
                     " is no CUDA device; leave it out, batches are made on the CPU");
  stream_ = new_stream(device);
}

Tensor Upload::send(const Tensor& t) const {
  if (!t.defined()) return t;
  check_cpu("DataLoader", t, "a tensor of the batch");
  const MemoryFormat format = t.memory_format();
  const Tensor from = t.is_contiguous(format) ? t : dense(t);
  const Tensor pinned = empty_pinned(from.sizes(), from.dtype());
  if (from.nbytes() > 0) std::memcpy(pinned.raw_data(), from.raw_data(), from.nbytes());
  const StreamGuard guard(stream_);
  const Tensor there = empty(from.sizes(), {from.dtype(), device_}, format);
  copy_async(there, tapestry::detail::raw_view(pinned, there.sizes(), there.strides(), 0), stream_);
  return there;
}

void Upload::arrive(const Tensor& t, const Event& event) const {
  if (!t.defined()) return;
  const Stream stream = current_stream(device_);
  stream.wait(event);
  record_stream(t, stream);
}

}  // namespace tapestry::data
