#pragma once
// The CUDA devices of this process. `cuda:i` is a logical device with its own streams and memory pool. By
// default there is one per GPU. TAPESTRY_LOGICAL_DEVICES=n makes exactly n, assigned to the GPUs round-robin,
// so that code for several devices can run and be tested on one GPU.
#include <cstddef>
#include <string>

#include "tapestry/core/error.h"

namespace tapestry {

/// A call to CUDA failed. The message names the call, the GPU and the place in the source.
class CudaError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

namespace cuda {

/// True if the library was built with CUDA.
bool built();
/// The reason why there is no CUDA device: a build without CUDA, no driver, no GPU, or none visible. Empty if
/// there is a device.
const std::string& why_no_device();

struct DeviceProperties {
  std::string name;
  std::size_t memory = 0;    ///< bytes
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int gpu = 0;  ///< index of the logical device's GPU among the visible ones
};
/// Throws DeviceError unless `device` is a CUDA device that exists.
DeviceProperties device_properties(Device device);

struct MemoryInfo {
  std::size_t free = 0, total = 0;
};
/// The memory of the GPU on which `device` lies, in bytes. `free` is what is left after the allocations of
/// all processes and of all logical devices on this GPU. Throws DeviceError unless `device` is a CUDA device
/// that exists.
MemoryInfo memory_info(Device device);

}  // namespace cuda
}  // namespace tapestry
