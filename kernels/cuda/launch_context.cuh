#pragma once
// Gives kernels the stream in the LaunchContext that their slot passes. This function is not in portable.cuh,
// because portable.cuh is a public header and slots are private.
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

inline constexpr DeviceType kDevice = DeviceType::cuda;  // for the registrations in this folder

/// The stream that the slot chose for its kernel's launches.
inline cudaStream_t stream_of(const LaunchContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

}  // namespace tapestry::kernels::cuda
