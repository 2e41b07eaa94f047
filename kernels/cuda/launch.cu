// The stream that kernels are launched on. launch.cuh launches them.
#include "tapestry/core/cuda/internal/check.h"
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/stream.h"
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

cudaStream_t kernel_stream() {
  const Stream stream = current_stream(kernel_device);
  ::tapestry::cuda::use_gpu(::tapestry::cuda::devices().at(kernel_device).gpu());
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace tapestry::kernels::cuda
