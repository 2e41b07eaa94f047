// The hook that a slot runs before a CUDA kernel: it selects the GPU and notes the stream for launch.cuh.
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/cuda/launch.h"
#include "tapestry/core/stream.h"
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

namespace {
// Each launch goes to the GPU of the device that the slot was called for.
[[maybe_unused]] const bool hooked = [] {
  set_launch_hook([](Device device, void* stream) {
    auto& devices = ::tapestry::cuda::devices();
    const int gpu = devices.at(device).gpu();
    devices.runtime().choose(gpu);
    ::tapestry::cuda::note_stream(stream, gpu);
  });
  return true;
}();
}  // namespace

}  // namespace tapestry::kernels::cuda
