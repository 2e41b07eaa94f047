// Functions of the CUDA driver, which programs get from cudaGetDriverEntryPoint().
#include <cuda.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "tapestry/tools/ptx/runtime/state.h"
#include "tapestry/tools/ptx/tensor_map.h"

namespace stand_in::driver {
namespace {

CUresult encode_tiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  tapestry::ptx::TensorMap map;
  map.type = static_cast<tapestry::ptx::TensorType>(type);
  map.rank = rank;
  map.address = reinterpret_cast<std::uint64_t>(address);
  std::copy_n(sizes, rank, map.sizes);
  std::copy_n(strides, rank - 1, map.strides);
  std::copy_n(box, rank, map.box);
  std::copy_n(element_strides, rank, map.element_strides);
  map.interleave = static_cast<std::uint32_t>(interleave);
  map.swizzle = static_cast<tapestry::ptx::TensorSwizzle>(swizzle);
  map.fill_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  try {
    tapestry::ptx::encode_tensor_map(map, to);
    return CUDA_SUCCESS;
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex());
    misused(cudaErrorInvalidValue, text("cuTensorMapEncodeTiled: ", e.what()));
    return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

void* entry_point(const char* name) {
  if (std::string_view(name) == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&encode_tiled);
  return nullptr;
}

}  // namespace stand_in::driver
