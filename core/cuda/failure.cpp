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
      return "a kernel that was launched earlier did it, and this process can use the GPU no more; start "
             "again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to see which";
    case Remedy::driver:
      return "install an NVIDIA driver that is as new as this library's CUDA";
    case Remedy::device:
      return "see with nvidia-smi whether the GPU is well and free";
    case Remedy::none:
      break;
  }
  return "see what CUDA's documentation says of this error";
}

}  // namespace

std::string failure_text(const Failure& failure, const SourceLocation& where) {
  const std::string_view file = where.file_name();
  const std::string gpu = failure.gpu < 0 ? "" : " on GPU " + std::to_string(failure.gpu);
  return concat({"[cuda] ", failure.call, " failed", gpu, " at ", file.substr(file.find_last_of('/') + 1),
                 ":", where.line(), ": ", failure.text, " (", failure.name, "); ", advice(failure.remedy)});
}

}  // namespace tapestry::cuda
