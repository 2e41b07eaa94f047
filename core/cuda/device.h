#pragma once
// The CUDA devices of this process. Device `cuda:i` is a logical one: one a GPU, or with
// TAPESTRY_LOGICAL_DEVICES=n exactly n, dealt over the GPUs in turn, each with streams and a memory pool of
// its own; so that what runs on several devices runs, and is tested, on one GPU.
#include <cstddef>
#include <string>

#include "tapestry/core/error.h"

namespace tapestry {

/// A call to CUDA that failed. The text has the call, the GPU, and where in the source it was made.
class CudaError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

namespace cuda {

/// True if the library was built with CUDA.
bool built();
/// Why there is no CUDA device: no CUDA in the library, no driver, no GPU, none visible. Empty if there is
/// one.
const std::string& why_no_device();

struct DeviceProperties {
  std::string name;
  std::size_t memory = 0;    ///< bytes
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int gpu = 0;  ///< which of the visible GPUs the logical device is on
};
/// Throws DeviceError unless `device` is a CUDA device that exists.
DeviceProperties device_properties(Device device);

struct MemoryInfo {
  std::size_t free = 0, total = 0;
};
/// Of the whole GPU, whoever uses it.
MemoryInfo memory_info(Device device);

}  // namespace cuda
}  // namespace tapestry
