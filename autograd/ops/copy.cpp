// Operations that copy elements: clone, contiguous, to, copy_, fill_, item.
#include "tapestry/autograd/ops/copy.h"

#include "tapestry/kernels/ops/copy.h"

#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kClone{"clone", Grad::twice, kStoredDTypes};
const Op kContiguous{"contiguous", Grad::twice, kStoredDTypes};
const Op kTo{"to", Grad::twice, kStoredDTypes};
const Op kCopy{"copy_", Grad::twice, kStoredDTypes};
const Op kFill{"fill_", Grad::twice, kStoredDTypes};
const Op kItem{"item", Grad::none, kStoredDTypes};

Tensor same_layout_on(const Tensor& x, Device device, DType dtype) {
  // Send the elements without an allocation on x's device if possible. The caller may move x because that
  // device is full.
  const MemoryFormat format = x.memory_format();
  if (x.is_contiguous(format)) return empty(x.sizes(), {dtype, device}, format);
  Tensor y = result_like(x.sizes(), dtype, {&x});
  if (device == x.device()) return y;
  const std::size_t bytes = y.nbytes();
  return tapestry::detail::make_tensor(Storage::allocate(device, bytes), dtype, y.sizes(), y.strides(), 0);
}

// True if no memory lies unused between the first and the last element of t. The elements of t must not
// overlap.
bool has_no_gaps(const Tensor& t) {
  std::int64_t span = t.numel() > 0;
  for (int i = 0; i < t.dim(); ++i) span += (t.sizes()[i] - 1) * t.strides()[i];
  return t.numel() == 0 || span == t.numel();
}
bool same_order(const Tensor& a, const Tensor& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}

// Writes x to out without a record on the tape. x is broadcast and converted, and may be on another device.
void write(const Op& op, const Tensor& out, const Tensor& x) {
  if (out.device().is_meta()) [[unlikely]]
    return defer_values(op.name, out, {x.device().is_meta() ? x : clone(x.detach())},
                        [](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(v[0]); });
  x.check_has_elements(op.name);
  if (out.device().type == x.device().type && (out.device() == x.device() || out.device().is_cpu()))
    return copy_elements(out, x);
  // Devices exchange dense memory only. If possible, x is converted to out's dtype and layout on its own
  // device and then sent. If out is strided or x is broadcast, the data is sent first and then copied into
  // out.
  Tensor packed = x, arrived = out;
  if (out.sizes() != x.sizes() || !has_no_gaps(out)) {
    packed = contiguous(converted(x, out.dtype()));
    arrived = empty(x.sizes(), {out.dtype(), out.device()});
  } else if (x.dtype() != out.dtype() || !same_order(x, out)) {
    packed = tapestry::detail::make_tensor(Storage::allocate(x.device(), out.nbytes()), out.dtype(),
                                           out.sizes(), out.strides(), 0);
    copy_elements(packed, x);
  }
  const Device special = out.device().is_cpu() ? x.device() : out.device();
  kernels::transfer(special, DType::u8,
                    {.to = out.device(),
                     .out = arrived.raw_data(),
                     .from = x.device(),
                     .x = packed.raw_data(),
                     .bytes = packed.nbytes()});
  if (!arrived.is_same(out)) copy_elements(out, arrived);
}

Tensor copied(const Op& op, const Tensor& x, Tensor y) {
  write(op, y, x);
  return y;
}

}  // namespace

Tensor clone(const Tensor& x) {
  tapestry::detail::check_defined(kClone.name, x);
  Tensor y = copied(kClone, x, result_like(x.sizes(), x.dtype(), {&x}));
  if (recording(x)) record(kClone, y, {&x}, [](Backward& b) { b.set(0, b.grad()); });
  return y;
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  tapestry::detail::check_defined(kContiguous.name, x);
  check(format == MemoryFormat::contiguous || x.dim() == 4,
        "[contiguous] channels-last needs 4 dimensions, got ", x.sizes(), "; use MemoryFormat::contiguous");
  const bool dense = x.is_contiguous(format);
  if (dense && (x.memory_format() == format || x.numel() == 0)) return x;
  // A tensor that is dense in both formats is not copied. Only the strides of its dimensions of size 1
  // change.
  const bool last = format == MemoryFormat::channels_last;
  Tensor y = dense
                 ? tapestry::detail::raw_view(
                       x, x.sizes(), last ? channels_last_strides(x.sizes()) : contiguous_strides(x.sizes()),
                       x.storage_offset())
                 : copied(kContiguous, x, empty(x.sizes(), {x.dtype(), x.device()}, format));
  if (recording(x)) {
    record(kContiguous, y, {&x}, [](Backward& b) { b.set(0, b.grad()); });
    if (dense) mark_view(y);
  }
  return y;
}

namespace {
// The backward of a conversion on one device. It captures nothing, so that several passes can run through it:
// autocast uses one cast of a parameter for several losses.
template <DType kFrom>
void record_conversion(const Tensor& y, const Tensor& x) {
  record(kTo, y, {&x}, [](Backward& b) { b.set(0, to(b.grad(), b.grad().device(), kFrom)); });
}
}  // namespace

Tensor to(const Tensor& x, Device device, DType dtype) {
  tapestry::detail::check_defined(kTo.name, x);
  if (x.device() == device && x.dtype() == dtype) return x;
  check_device(kTo.name, device);
  // A copy to the meta device has no elements, so it does not read x's.
  const bool drops = device.is_meta() && !x.device().is_meta();
  Tensor y = same_layout_on(x, device, dtype);
  if (!drops) write(kTo, y, x);
  if (!is_floating(dtype) || !recording(x)) return y;
  if (x.device() != device)
    record(kTo, y, {&x},
           [device = x.device(), dtype = x.dtype()](Backward& b) { b.set(0, to(b.grad(), device, dtype)); });
  else if (x.dtype() == DType::f32) record_conversion<DType::f32>(y, x);
  else if (x.dtype() == DType::f64) record_conversion<DType::f64>(y, x);
  else if (x.dtype() == DType::f16) record_conversion<DType::f16>(y, x);
  else record_conversion<DType::bf16>(y, x);
  return y;
}

Tensor Tensor::clone() const { return tapestry::clone(*this); }
Tensor Tensor::contiguous(MemoryFormat format) const { return tapestry::contiguous(*this, format); }
Tensor Tensor::to(DType dtype) const {
  tapestry::detail::check_defined(kTo.name, *this);
  return tapestry::to(*this, device(), dtype);
}
Tensor Tensor::to(Device device) const {
  tapestry::detail::check_defined(kTo.name, *this);
  return tapestry::to(*this, device, dtype());
}
Tensor Tensor::to(Device device, DType dtype) const { return tapestry::to(*this, device, dtype); }

Scalar Tensor::item_scalar() const {
  tapestry::detail::check_defined(kItem.name, *this);
  check(numel() == 1, "[item] a tensor of shape ", sizes(), " has ", numel(),
        " elements; index or reduce it to one");
  check_has_elements(kItem.name);
  if (device().is_cuda())
    tapestry::detail::refuse_in_capture(kItem.name, "read values on the host outside of the step");
  if (!device().is_cpu()) return tapestry::to(detach(), kCPU, dtype()).item_scalar();
  switch (dtype()) {
    case DType::f32:
      return *data<float>();
    case DType::f64:
      return *data<double>();
    case DType::f16:
      return static_cast<float>(*data<Half>());
    case DType::bf16:
      return static_cast<float>(*data<BFloat16>());
    case DType::i64:
      return *data<std::int64_t>();
    case DType::i32:
      return *data<std::int32_t>();
    case DType::u8:
      return *data<std::uint8_t>();
    case DType::i16:
      return *data<std::int16_t>();
    case DType::i8:
      return *data<std::int8_t>();
    case DType::u16:
      return *data<std::uint16_t>();
    case DType::boolean:
      break;
  }
  return *data<bool>();
}

const Tensor& Tensor::copy_(const Tensor& source) const {
  tapestry::detail::check_defined(kCopy.name, *this, "the tensor to change");
  tapestry::detail::check_defined(kCopy.name, source, "the source");
  check(broadcast_shapes(kCopy.name, sizes(), source.sizes()) == sizes(), "[copy_] a source of shape ",
        source.sizes(), " does not broadcast to ", sizes(), "; change one of the shapes");
  if (is_same(source)) return *this;
  const auto direct = [&] {
    // If the two overlap, an element could be overwritten before it is read.
    write(kCopy, *this, operand_for(*this, source, source.dtype()));
  };
  const auto fresh = [&](const Tensor& old) {
    Tensor y = copied(kCopy, source, result_like(sizes(), dtype(), {&old}));
    record(kCopy, y, {&old, &source},
           [sizes = source.sizes(), device = source.device(), dtype = source.dtype()](Backward& b) {
             if (b.needs(1))
               b.set(1, tapestry::to(reduce_to(b.grad(), sizes, b.grad().dtype()), device, dtype));
           });
    return y;
  };
  in_place(kCopy, *this, {&source}, direct, fresh);
  return *this;
}

const Tensor& Tensor::fill_(const Scalar& value) const {
  tapestry::detail::check_defined(kFill.name, *this);
  const Scalar element = as_element(kFill.name, value, dtype());
  overwrite(kFill, *this, [&](const Tensor& t) {
    fill_or_defer(kFill.name, t, [element](const Tensor& t) {
      kernels::fill(t.device(), t.dtype(), {planned(t), element});
    });
  });
  return *this;
}
const Tensor& Tensor::zero_() const { return fill_(0); }

}  // namespace tapestry
