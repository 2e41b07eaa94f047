#pragma once
// Names the implementation that runs in the kernel span of this thread (kernel_span.h).

namespace tapestry::detail {

/// Appends " [implementation]" to the name of the innermost open kernel span of the calling thread, which
/// becomes for example "gemm [cuBLASLt]". Does nothing without such a span, or if it has a suffix already.
void name_kernel_span(const char* implementation);

}  // namespace tapestry::detail
