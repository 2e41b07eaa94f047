#pragma once
// The span of one kernel on a Timeline that keeps kernels. It has a header of its own because every kernel
// includes it, and core/timeline.h would cost compile time. Without such a Timeline it costs one load.
#include <atomic>

#include "tapestry/core/device.h"

namespace tapestry::detail {

/// What Timeline::keeps_kernels() returns.
extern std::atomic<bool> keep_kernel_spans;

class KernelSpan {
 public:
  KernelSpan(Device device, const char* name) {
    if (keep_kernel_spans.load(std::memory_order_relaxed)) [[unlikely]]
      begin(device, name);
  }
  ~KernelSpan() {
    if (span_) [[unlikely]]
      end();
  }
  KernelSpan(const KernelSpan&) = delete;
  KernelSpan& operator=(const KernelSpan&) = delete;

 private:
  void begin(Device device, const char* name);
  void end();
  void* span_ = nullptr;  // a SpanScope
};

}  // namespace tapestry::detail
