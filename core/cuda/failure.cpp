#include "tapestry/core/cuda/internal/failure.h"

#include <string_view>

#include "tapestry/core/error.h"

namespace tapestry::cuda {
namespace {

const char* advice(Remedy remedy) {
  switch (remedy) {
    case Remedy::memory:
      return "free tensors, or use a smaller batch or model";
    case Remedy::kernel:
      return "an earlier kernel caused this error, and this process can no longer use the GPU; run again "
             "with "
             "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer to find the kernel";
    case Remedy::driver:
      return "install an NVIDIA driver that supports the CUDA version of this library";
    case Remedy::device:
      return "check with nvidia-smi that the GPU works and is free";
    case Remedy::none:
      break;
  }
  return "look this error up in CUDA's documentation";
}

}  // namespace

std::string failure_text(const Failure& failure, const SourceLocation& where) {
  const std::string_view file = where.file_name();
  const std::string gpu = failure.gpu < 0 ? "" : " on GPU " + std::to_string(failure.gpu);
  return concat({"[cuda] ", failure.call, " failed", gpu, " at ", file.substr(file.find_last_of('/') + 1),
                 ":", where.line(), ": ", failure.text, " (", failure.name, "); ", advice(failure.remedy)});
}

}  // namespace tapestry::cuda
