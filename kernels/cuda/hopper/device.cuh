#pragma once
// What the launchers of this folder ask the current device, which the slot has chosen.
#include <string_view>

#include "tapestry/kernels/cuda/hopper/tensor_map.cuh"
#include "tapestry/kernels/policy.h"

namespace tapestry::kernels::cuda {

inline int device_attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, which, device);
  check<CudaError>(error == cudaSuccess, "[cudaDeviceGetAttribute] ", cudaGetErrorString(error));
  return value;
}

/// Why no kernel of this folder can run here; empty if they can.
inline std::string_view wgmma_why_not() {
  if (!wgmma_allowed()) return "TAPESTRY_WGMMA is not 1";
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
      device_attribute(cudaDevAttrComputeCapabilityMinor) != 0)
    return "it needs a GPU of compute capability 9.0";
  if (!tensor_map_encoder()) return "the driver has no cuTensorMapEncodeTiled";
  return {};
}

}  // namespace tapestry::kernels::cuda
