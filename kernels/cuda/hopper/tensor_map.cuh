#pragma once
// Tensor maps for TMA.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "tapestry/kernels/cuda/hopper/ptx.cuh"

namespace tapestry::kernels::cuda {

/// A batch of matrices in lines that are contiguous, and the box of them that one copy moves. Sizes and
/// pitches are in elements of 2 bytes.
struct BoxedMatrices {
  const void* data = nullptr;
  std::int64_t length = 0, lines = 0, matrices = 1;  // the sizes, of the contiguous dimension first
  std::int64_t pitch = 0, matrix_pitch = 0;          // between lines, and between matrices
  std::uint32_t box_length = 0, box_lines = 0;       // box_length is 64: 128 bytes, over which TMA swizzles
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

/// True if TMA's rules allow these matrices: addresses and pitches are multiples of 16 bytes, sizes are below
/// 2^32 and pitches below 2^40 bytes.
inline bool is_boxable(const BoxedMatrices& m) {
  constexpr std::int64_t kMostSize = std::int64_t{1} << 31, kMostPitch = (std::int64_t{1} << 40) / 2;
  return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.pitch % 8 == 0 && m.matrix_pitch % 8 == 0 &&
         m.length < kMostSize && m.lines < kMostSize && m.matrices < kMostSize && m.pitch < kMostPitch &&
         m.matrix_pitch < kMostPitch;
}

/// Throws CudaError if the driver refuses. The matrices are boxable, and there is an encoder.
inline ptx::TensorMapBytes tensor_map(const BoxedMatrices& m, CUtensorMapDataType type) {
  ptx::TensorMapBytes bytes;
  static_assert(sizeof(CUtensorMap) == sizeof bytes);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.length), static_cast<cuuint64_t>(m.lines),
                              static_cast<cuuint64_t>(m.matrices)};
  const cuuint64_t pitch = static_cast<cuuint64_t>(m.pitch) * 2;
  // A single matrix has no pitch, and the driver wants one.
  const cuuint64_t matrix_pitch =
      m.matrices > 1 ? static_cast<cuuint64_t>(m.matrix_pitch) * 2 : pitch * sizes[1];
  const cuuint64_t pitches[] = {pitch, matrix_pitch};
  const cuuint32_t box[] = {m.box_length, m.box_lines, 1}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, type, 3, const_cast<void*>(m.data), sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check<CudaError>(result == CUDA_SUCCESS, "[cuTensorMapEncodeTiled] the driver returned error ",
                   static_cast<int>(result), " for ", m.matrices, " matrices of ", m.lines, " lines of ",
                   m.length, " elements, pitches ", m.pitch, " and ", m.matrix_pitch);
  std::memcpy(&bytes, &map, sizeof bytes);
  return bytes;
}

}  // namespace tapestry::kernels::cuda
