#include "tapestry/core/tensor.h"

#include <algorithm>

namespace tapestry {
namespace {

// The number of bytes, checked against what addresses can reach.
std::size_t checked_bytes(const char* op, const Shape& sizes, std::int64_t numel, DType dtype) {
  std::int64_t bytes = 0;
  check(!__builtin_mul_overflow(numel, static_cast<std::int64_t>(dtype_size(dtype)), &bytes), "[", op, "] a ",
        dtype, " tensor of shape ", sizes, " has more bytes than 64 bits can count; ask for smaller sizes");
  return static_cast<std::size_t>(bytes);
}

Tensor assemble(StorageRef storage, DType dtype, const Shape& sizes, const Shape& strides,
                std::int64_t offset, std::int64_t numel, bool inference) {
  auto* const impl = new TensorImpl;
  impl->dtype = dtype;
  impl->inference = inference;
  impl->device = storage->device();
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->numel = numel;
  impl->sizes = sizes;
  impl->strides = strides;
  return Tensor(Ref<TensorImpl>::adopt(impl));
}

int real_dim(const char* op, std::int64_t dim, const Tensor& t) {
  check<IndexError>(t.dim() > 0, "[", op, "] dimension ", dim, " of a 0-d tensor, which has none");
  return wrap_dim(op, dim, t.dim());
}

}  // namespace

std::int64_t Tensor::size(std::int64_t dim) const { return sizes()[real_dim("size", dim, *this)]; }
std::int64_t Tensor::stride(std::int64_t dim) const { return strides()[real_dim("stride", dim, *this)]; }

bool Tensor::is_contiguous(MemoryFormat format) const {
  constexpr int channels_last[] = {0, 2, 3, 1};  // from the slowest dimension to the fastest
  const Shape& n = sizes();
  const Shape& s = strides();
  const bool last = format == MemoryFormat::channels_last;
  if (last && n.size() != 4) return false;
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (int k = n.size() - 1; k >= 0; --k) {
    const int i = last ? channels_last[k] : k;
    if (n[i] == 1) continue;
    if (s[i] != expected) return false;
    expected *= n[i];
  }
  return true;
}

MemoryFormat Tensor::memory_format() const {
  return is_contiguous(MemoryFormat::channels_last) && !is_contiguous() ? MemoryFormat::channels_last
                                                                        : MemoryFormat::contiguous;
}

void Tensor::no_tensor() {
  fail(
      "[Tensor] an undefined tensor, which has no elements, shape or dtype; pass one that was made, or ask "
      "defined() first");
}

std::int64_t Tensor::whole_number(const Scalar& value) {
  if (!value.is_real()) return value.to_int();
  const double v = value.to_double();
  if (!(v >= -0x1p63 && v < 0x1p63)) no_room(value);
  return static_cast<std::int64_t>(v);
}

void Tensor::no_room(const Scalar& value) {
  const std::string text = value.is_real() ? concat({value.to_double()}) : concat({value.to_int()});
  fail("[item] the integer type that was asked for has no room for ", text,
       "; ask for a double or a wider type");
}

void Tensor::wrong_data_type(DType asked) const {
  fail<TypeError>("[Tensor::data] the elements are ", dtype(), ", not ", asked,
                  "; convert with .to(), or ask for ", dtype());
}

Tensor empty(const Shape& sizes, const TensorOptions& options, MemoryFormat format) {
  const Context& context = current_context();
  Ref<TensorImpl> impl = Ref<TensorImpl>::adopt(new TensorImpl);
  impl->dtype = options.dtype.value_or(DType::f32);
  impl->device = options.device.value_or(context.device);
  impl->inference = context.inference;
  impl->sizes = sizes;
  impl->numel = checked_numel("empty", sizes);
  if (format == MemoryFormat::contiguous) {
    // contiguous_strides, written in place: to copy a Shape just written costs a store-forwarding stall.
    impl->strides = sizes;
    std::int64_t step = 1;
    for (int i = sizes.size() - 1; i >= 0; --i) {
      impl->strides[i] = step;
      step *= std::max<std::int64_t>(sizes[i], 1);
    }
  } else {
    impl->strides = channels_last_strides(sizes);
  }
  impl->storage = Storage::allocate(impl->device, checked_bytes("empty", sizes, impl->numel, impl->dtype));
  Tensor t(std::move(impl));
  if (options.requires_grad) t.set_requires_grad();
  return t;
}

Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(DType::f32);
  const std::int64_t numel = checked_numel("from_blob", sizes);
  const std::size_t bytes = checked_bytes("from_blob", sizes, numel, dtype);
  check(data || numel == 0, "[from_blob] a null pointer for a tensor of shape ", sizes,
        "; pass the address of its elements");
  Tensor t = assemble(Storage::wrap(options.device.value_or(kCPU), data, bytes), dtype, sizes,
                      contiguous_strides(sizes), 0, numel, current_context().inference);
  if (options.requires_grad) t.set_requires_grad();
  return t;
}

namespace detail {

Tensor raw_view(const Tensor& base, const Shape& sizes, const Shape& strides, std::int64_t offset) {
  return assemble(base.storage(), base.dtype(), sizes, strides, offset, sizes.numel(),
                  base.impl()->inference);
}

Tensor make_tensor(StorageRef storage, DType dtype, const Shape& sizes, const Shape& strides,
                   std::int64_t offset) {
  return assemble(std::move(storage), dtype, sizes, strides, offset, sizes.numel(),
                  current_context().inference);
}

}  // namespace detail
}  // namespace tapestry
