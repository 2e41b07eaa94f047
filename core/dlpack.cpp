#include "tapestry/core/dlpack.h"

#include <algorithm>
#include <cstddef>
#include <memory>

namespace tapestry {
namespace {

using namespace dlpack;

// The layout of the original header on machines with 64 bits.
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, dtype) == 20 &&
              offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

struct Kind {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr Kind kKinds[] = {
    {DType::f32, kDLFloat, 32},   {DType::f64, kDLFloat, 64},  {DType::f16, kDLFloat, 16},
    {DType::bf16, kDLBfloat, 16}, {DType::i64, kDLInt, 64},    {DType::i32, kDLInt, 32},
    {DType::i16, kDLInt, 16},     {DType::i8, kDLInt, 8},      {DType::u16, kDLUInt, 16},
    {DType::u8, kDLUInt, 8},      {DType::boolean, kDLBool, 8}};
static_assert(std::size(kKinds) == kNumDTypes);

/// The memory that an exported description needs until its deleter is called.
template <class Managed>
struct Export {
  Managed managed{};
  Tensor tensor;
  Shape sizes, strides;
};

template <class Managed>
Managed* export_tensor(const Tensor& x) {
  detail::check_defined("to_dlpack", x);
  check<AutogradError>(
      !x.requires_grad(),
      "[to_dlpack] the tensor requires a gradient, and other libraries would not record what they "
      "do with it; pass x.detach()");
  x.check_has_elements("to_dlpack");
  auto out = std::make_unique<Export<Managed>>();
  out->tensor = x;
  out->sizes = x.sizes();
  out->strides = x.strides();
  const Kind* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.dtype == x.dtype(); });
  const Device device = x.device();
  out->managed.dl_tensor = {
      .data = x.raw_data(),
      .device = device.is_cpu() ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device.index},
      .ndim = x.dim(),
      .dtype = {kind->code, kind->bits, 1},
      .shape = out->sizes.begin(),
      .strides = out->strides.begin(),
      .byte_offset = 0,
  };
  out->managed.manager_ctx = out.get();
  out->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
  if constexpr (requires { Managed::version; }) out->managed.version = kVersion;
  return &out.release()->managed;
}

DType dtype_of_dlpack(const DLDataType& type) {
  if (type.lanes == 1)
    for (const Kind& kind : kKinds)
      if (kind.code == type.code && kind.bits == type.bits) return kind.dtype;
  fail<TypeError>("[from_dlpack] the elements have type code ", type.code, ", ", type.bits, " bits and ",
                  type.lanes, " lanes, which is none of Tapestry's dtypes; convert the tensor first");
}

Device device_of_dlpack(const DLDevice& device) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return kCPU;
  check<DeviceError>(device.device_type == kDLCUDA, "[from_dlpack] the tensor is on a device of type ",
                     static_cast<int>(device.device_type),
                     "; CPU (1), CUDA (2) and pinned host memory (3) are "
                     "supported");
  const Device cuda(DeviceType::cuda, device.device_id);
  check_device("from_dlpack", cuda);
  return cuda;
}

template <class Managed>
Tensor import_tensor(Managed* managed) {
  const DLTensor& t = managed->dl_tensor;
  const DType dtype = dtype_of_dlpack(t.dtype);
  const Device device = device_of_dlpack(t.device);
  check(t.ndim >= 0 && t.ndim <= kMaxDims, "[from_dlpack] the tensor has ", t.ndim, " dimensions; 0 to ",
        kMaxDims, " are supported");
  const std::size_t dims = static_cast<std::size_t>(t.ndim);
  check(t.shape || dims == 0, "[from_dlpack] the shape is a null pointer");
  const Shape sizes(t.shape, dims);
  const std::int64_t numel = checked_numel("from_dlpack", sizes);
  const Shape strides = t.strides ? Shape(t.strides, dims) : contiguous_strides(sizes);
  const std::int64_t item = static_cast<std::int64_t>(dtype_size(dtype));
  std::int64_t bytes = item;  // up to the end of the last element
  for (int i = 0; i < sizes.size() && numel > 0; ++i) {
    std::int64_t step = 0;
    check(strides[i] >= 0, "[from_dlpack] dimension ", i, " has the stride ", strides[i],
          "; negative strides are not supported: copy the tensor first");
    check(!__builtin_mul_overflow(strides[i], sizes[i] - 1, &step) &&
              !__builtin_mul_overflow(step, item, &step) && !__builtin_add_overflow(bytes, step, &bytes),
          "[from_dlpack] sizes ", sizes, " and strides ", strides, " are beyond any memory");
  }
  if (numel == 0) bytes = 0;
  check(t.data || numel == 0, "[from_dlpack] a null pointer for a tensor of shape ", sizes);
  char* const data = static_cast<char*>(t.data) + (t.data ? t.byte_offset : 0);
  check(reinterpret_cast<std::uintptr_t>(data) % static_cast<std::size_t>(item) == 0,
        "[from_dlpack] the memory is not aligned to elements of ", item, " bytes; copy the tensor first");
  // The storage owns `managed` only after everything that can throw has been done.
  struct Owner {
    Managed* managed = nullptr;
  };
  auto owner = std::make_unique<Owner>();
  const auto release = [](void* arg) {
    const std::unique_ptr<Owner> last(static_cast<Owner*>(arg));
    if (last->managed && last->managed->deleter) last->managed->deleter(last->managed);
  };
  StorageRef storage = Storage::wrap(device, data, static_cast<std::size_t>(bytes), release, owner.get());
  Owner* const held = owner.release();
  const Tensor out = detail::make_tensor(std::move(storage), dtype, sizes, strides, 0);
  held->managed = managed;
  return out;
}

}  // namespace

dlpack::DLManagedTensor* to_dlpack(const Tensor& x) { return export_tensor<DLManagedTensor>(x); }
dlpack::DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x) {
  return export_tensor<DLManagedTensorVersioned>(x);
}

Tensor from_dlpack(dlpack::DLManagedTensor* managed) {
  check(managed != nullptr, "[from_dlpack] the pointer is null");
  return import_tensor(managed);
}
Tensor from_dlpack(dlpack::DLManagedTensorVersioned* managed) {
  check(managed != nullptr, "[from_dlpack] the pointer is null");
  check(managed->version.major == kVersion.major, "[from_dlpack] the struct has version ",
        managed->version.major, ".", managed->version.minor, " and version ", kVersion.major,
        " is supported");
  check((managed->flags & kReadOnly) == 0,
        "[from_dlpack] the tensor is read-only, which Tapestry cannot enforce; copy it first");
  return import_tensor(managed);
}

}  // namespace tapestry
