#include "tapestry/core/internal/capture_state.h"

#include <atomic>

#include "tapestry/core/cuda/capture.h"
#include "tapestry/core/internal/captured_range.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry::detail {
namespace {
constinit std::atomic<bool> running{
    false};  // so that other threads need not look at the thread-local pointer
thread_local constinit CaptureState* current = nullptr;
}  // namespace

CaptureState* current_capture() { return running.load(std::memory_order_relaxed) ? current : nullptr; }

void set_current_capture(CaptureState* state) {
  current = state;
  running = state != nullptr;
  watch_kernels(state != nullptr);
}

void refuse_in_capture(const char* call, const char* instead) {
  if (current_capture()) [[unlikely]]
    fail<cuda::CaptureError>("[", call, "] a step that cuda::capture() records cannot do this; ", instead);
}

void check_host_reads(const char* op, const Tensor& t) {
  t.check_has_elements(op);
  if (t.device().is_cuda())
    refuse_in_capture(op,
                      "the host reads values on which its results depend, so call it outside of the step");
}

void check_range(const char* op, const PhiloxRange& range) {
  check(
      (range.offset & kCapturedRange) == 0 || current_capture(), "[", op, "] the random offset ",
      range.offset,
      " is 2^63 or more, or was drawn in a step that cuda::capture() recorded; on a GPU it must be smaller, "
      "and backward must be part of the step");
}

void check_captured_kernel(Device device, const char* name) {
  const CaptureState* const capture = current_capture();
  if (!capture) return;
  check<cuda::CaptureError>(device == capture->device, "[", name, "] runs on ", device,
                            ", and cuda::capture() ", "records ", capture->device,
                            " only, so a replay would not repeat it; move the tensors to ", capture->device,
                            ", or do this outside of the step");
  check<cuda::CaptureError>(
      current_stream(device).id() == capture->stream, "[", name,
      "] runs on another stream than the one that cuda::capture() records, so a replay ",
      "would not repeat it; use no StreamGuard in the step");
}

}  // namespace tapestry::detail
