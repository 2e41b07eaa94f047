#pragma once
// DLPack (dmlc.github.io/dlpack): shares the memory of a tensor with other libraries, such as PyTorch, NumPy,
// JAX and TensorRT, without a copy. The structs have the layout of version 1.1 of its C header. They are in a
// namespace, so a program can include the original header, too, and convert pointers with reinterpret_cast.
#include <cstdint>

#include "tapestry/core/tensor.h"

namespace tapestry {
namespace dlpack {

struct DLPackVersion {
  std::uint32_t major, minor;
};
inline constexpr DLPackVersion kVersion{1, 1};

enum DLDeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;
};

enum DLDataTypeCode : std::uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6
};
struct DLDataType {
  std::uint8_t code;  ///< a DLDataTypeCode
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null means dense and row-major
  std::uint64_t byte_offset;
};

/// A tensor with its owner. Whoever holds the pointer must call `deleter` once, unless it is null.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

inline constexpr std::uint64_t kReadOnly = 1, kIsCopied = 2;
/// The form since version 1.0.
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

}  // namespace dlpack

/// Returns a description of the tensor's memory that keeps the memory alive until its deleter is called. The
/// deleter may be called on any thread. The tensor may have any dtype and strides. The reader of a CUDA
/// tensor must wait for the work of the stream that wrote it. Throws ValueError for an undefined tensor, and
/// AutogradError for one that requires a gradient: pass x.detach().
dlpack::DLManagedTensor* to_dlpack(const Tensor& x);
dlpack::DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x);

/// Returns a tensor that uses the memory of `managed`, and calls the deleter when the last tensor that uses
/// it is destroyed. If this throws, the caller still owns `managed`. Throws TypeError for dtypes that
/// Tapestry does not have, DeviceError for other devices than CPU, CUDA and pinned host memory, and
/// ValueError for negative sizes or strides, for more than 8 dimensions, for memory that is not aligned to
/// the element size, for a tensor that is read-only, and for a struct of another major version.
Tensor from_dlpack(dlpack::DLManagedTensor* managed);
Tensor from_dlpack(dlpack::DLManagedTensorVersioned* managed);

}  // namespace tapestry
