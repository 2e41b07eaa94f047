#pragma once
// Tensor maps for TMA.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/hopper/ptx.cuh"

namespace tapestry::kernels::cuda {

/// An array whose first dimension is contiguous, and the box of it that one copy moves. Pitches are in
/// elements of 2 bytes; pitches[d] is the distance in dimension d, and that of a dimension of size 1 does not
/// matter. The box has 64 elements of the first dimension: 128 bytes, over which TMA swizzles.
template <int kRank>
struct BoxedArray {
  const void* data;
  std::int64_t sizes[kRank], pitches[kRank];
  std::uint32_t box[kRank];
};

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);
/// The driver's function, or null if the driver is older than CUDA 12 or there is none.
inline TensorMapEncoder tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &found);
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<TensorMapEncoder>(function) : nullptr;
  }();
  return encoder;
}

/// True if TMA's rules allow this array: its address and pitches are multiples of 16 bytes, sizes are at most
/// 2^32 and pitches below 2^40 bytes. Coordinates are 32-bit numbers with a sign, so sizes are below 2^31.
template <int kRank>
bool is_boxable(const BoxedArray<kRank>& a) {
  constexpr std::int64_t kMostSize = std::int64_t{1} << 31, kMostPitch = (std::int64_t{1} << 40) / 2;
  bool boxable = reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0;
  for (int d = 0; d < kRank; ++d) {
    boxable &= a.sizes[d] >= 1 && a.sizes[d] < kMostSize;
    if (d > 0 && a.sizes[d] > 1)
      boxable &= a.pitches[d] > 0 && a.pitches[d] % 8 == 0 && a.pitches[d] < kMostPitch;
  }
  return boxable;
}

/// Throws CudaError if the driver refuses. The array is boxable, and there is an encoder.
template <int kRank>
ptx::TensorMapBytes tensor_map(const BoxedArray<kRank>& a, CUtensorMapDataType type) {
  cuuint64_t sizes[kRank], pitches[kRank - 1];
  cuuint32_t steps[kRank];
  for (int d = 0; d < kRank; ++d) {
    sizes[d] = static_cast<cuuint64_t>(a.sizes[d]);
    steps[d] = 1;
    if (d == 0) continue;
    // The driver wants a pitch for a dimension of size 1, too.
    const cuuint64_t dense = (sizes[d - 1] * (d > 1 ? pitches[d - 2] : 2) + 15) / 16 * 16;
    pitches[d - 1] = a.sizes[d] > 1 ? static_cast<cuuint64_t>(a.pitches[d]) * 2 : dense;
  }
  CUtensorMap map;
  const CUresult result =
      tensor_map_encoder()(&map, type, kRank, const_cast<void*>(a.data), sizes, pitches, a.box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string what;
    for (int d = 0; d < kRank; ++d) what += concat({d ? ", " : "", a.sizes[d], " by ", a.pitches[d]});
    fail<CudaError>("[cuTensorMapEncodeTiled] the driver returned error ", static_cast<int>(result),
                    " for an array of these sizes and pitches: ", what);
  }
  ptx::TensorMapBytes bytes;
  static_assert(sizeof map == sizeof bytes);
  std::memcpy(&bytes, &map, sizeof bytes);
  return bytes;
}

}  // namespace tapestry::kernels::cuda
