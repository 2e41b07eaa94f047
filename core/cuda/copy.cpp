#include "tapestry/core/cuda/internal/copy.h"

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::cuda {

void copy_bytes_async(Device to, void* out, Device from, const void* x, std::size_t bytes,
                      const Stream& stream) {
  if (bytes == 0) return;
  Devices& all = devices();
  if (to.is_cuda() && from.is_cuda() && all.at(to).gpu() != all.at(from).gpu())
    return all.runtime().copy_between(all.at(to).gpu(), out, all.at(from).gpu(), x, bytes, stream.native());
  all.runtime().copy(all.at(stream.device()).gpu(), stream.native(), out, x, bytes);
}

void copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                     std::size_t width, std::size_t rows, const Stream& stream) {
  Devices& all = devices();
  const int gpu = all.at(stream.device()).gpu();
  if (width == to_pitch && width == from_pitch)
    return all.runtime().copy(gpu, stream.native(), to, from, width * rows);
  all.runtime().copy_rows(gpu, stream.native(), to, to_pitch, from, from_pitch, width, rows);
}

void copy_bytes(Device to, void* out, Device from, const void* x, std::size_t bytes) {
  if (bytes == 0) return;
  const Stream stream = current_stream(from.is_cuda() ? from : to);
  if (!to.is_cuda()) detail::refuse_in_capture("cpu", "copy results to the host outside of the step");
  if (!from.is_cuda())
    detail::refuse_in_capture("to", "copy inputs to the device outside of the step, into tensors that stay");
  if (!to.is_cuda() || !from.is_cuda()) {
    copy_bytes_async(to, out, from, x, bytes, stream);
    return stream.synchronize();
  }
  const Stream target = current_stream(to);
  Event event;
  if (!(target == stream)) {
    event.record(target);  // earlier work may still use the memory of `out`
    stream.wait(event);
  }
  copy_bytes_async(to, out, from, x, bytes, stream);
  if (!(target == stream)) {
    event.record(stream);
    target.wait(event);
  }
}

}  // namespace tapestry::cuda
