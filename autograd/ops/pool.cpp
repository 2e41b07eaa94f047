#include "tapestry/autograd/ops/pool.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/pool.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::raw_contiguous;
using kernels::Pool2dShape;

const Op kMaxPool2d("max_pool2d", Grad::twice, kFloats);
const Op kAvgPool2d("avg_pool2d", Grad::twice, kFloats);
const Op kAdaptiveAvgPool2d("adaptive_avg_pool2d", Grad::twice, kFloats);

// The input's sizes and layout. A (C, H, W) input is treated as one image.
Pool2dShape input_shape(const Op& op, const Tensor& x) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  check(x.dim() == 3 || x.dim() == 4, "[", op.name, "] input has shape ", x.sizes(),
        ", expected (N, C, H, W) or (C, H, W)");
  const int first = x.dim() - 3;
  Pool2dShape s;
  s.n = first ? x.sizes()[0] : 1;
  s.c = x.sizes()[first], s.h = x.sizes()[first + 1], s.w = x.sizes()[first + 2];
  check(s.h >= 1 && s.w >= 1, "[", op.name, "] input of shape ", x.sizes(), " has images without pixels");
  s.channels_last = x.memory_format() == MemoryFormat::channels_last;
  return s;
}

// The largest kernel size, stride and dilation.
constexpr std::int64_t kMostPixels = std::numeric_limits<std::int32_t>::max();

Pool2dShape window_shape(const Op& op, const Tensor& x, const Pool2dParams& params) {
  Pool2dShape s = input_shape(op, x);
  const Pair kernel = params.kernel_size, padding = params.padding, dilation = params.dilation;
  const Pair stride(params.stride.h ? params.stride.h : kernel.h,
                    params.stride.w ? params.stride.w : kernel.w);
  const auto both = [&](bool ok, const char* what, Pair value, const char* expected) {
    check(ok, "[", op.name, "] ", what, " (", value.h, ", ", value.w, "), expected ", expected);
  };
  // The upper limit 2^31 - 1 prevents overflow: a product of two such numbers fits into i64.
  const auto positive = [](Pair p) {
    return p.h >= 1 && p.w >= 1 && p.h <= kMostPixels && p.w <= kMostPixels;
  };
  both(positive(kernel), "kernel_size", kernel, "from 1 to 2^31 - 1");
  both(positive(stride), "stride", stride, "from 1 to 2^31 - 1, or 0 for the kernel's size");
  both(positive(dilation), "dilation", dilation, "from 1 to 2^31 - 1");
  both(padding.h >= 0 && padding.w >= 0 && padding.h <= kernel.h / 2 && padding.w <= kernel.w / 2, "padding",
       padding, "from 0 to half of the kernel's size");
  s.kernel_h = kernel.h, s.kernel_w = kernel.w;
  s.stride_h = stride.h, s.stride_w = stride.w;
  s.padding_h = padding.h, s.padding_w = padding.w;
  s.dilation_h = dilation.h, s.dilation_w = dilation.w;
  s.count_include_pad = params.count_include_pad;
  s.p = autograd::pool_size(s.h, s.kernel_h, s.stride_h, s.padding_h, s.dilation_h, params.ceil_mode);
  s.q = autograd::pool_size(s.w, s.kernel_w, s.stride_w, s.padding_w, s.dilation_w, params.ceil_mode);
  check(s.p >= 1 && s.q >= 1, "[", op.name, "] a window of (", s.kernel_h, ", ", s.kernel_w,
        ") with padding (", s.padding_h, ", ", s.padding_w, ") and dilation (", s.dilation_h, ", ",
        s.dilation_w, ") does not fit an input of shape ", x.sizes());
  return s;
}

MemoryFormat pool_layout(const Pool2dShape& s) {
  return s.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

// like_input() creates a tensor with the shape of the pooling's input, and like_output() one with the shape
// of its output. `ndim` is 3 if the input has no batch dimension.
Tensor like_input(const Pool2dShape& s, int ndim, const TensorOptions& options) {
  return ndim == 3 ? empty({s.c, s.h, s.w}, options) : empty({s.n, s.c, s.h, s.w}, options, pool_layout(s));
}
Tensor like_output(const Pool2dShape& s, int ndim, const TensorOptions& options) {
  return ndim == 3 ? empty({s.c, s.p, s.q}, options) : empty({s.n, s.c, s.p, s.q}, options, pool_layout(s));
}

// The kernels of averages over windows. Averages are linear, so the two directions are each other's
// gradients.
struct Average {
  const Op& op;
  const kernels::Slot<kernels::AvgPool2dArgs>& forward;
  const kernels::Slot<kernels::AvgPool2dBackwardArgs>& backward;

  Tensor of(const Tensor& x, const Pool2dShape& s) const {
    const Tensor y = like_output(s, x.dim(), {x.dtype(), x.device()});
    if (y.numel() > 0)
      forward(x.device(), x.dtype(), {.shape = s, .x = raw_contiguous(x, pool_layout(s)), .y = y});
    if (autograd::recording(x))
      autograd::record(op, y, {&x}, [a = *this, s](Backward& b) { b.set(0, a.gradient(b.grad(), s)); });
    return y;
  }
  Tensor gradient(const Tensor& grad, const Pool2dShape& s) const {
    const Tensor g = raw_contiguous(grad, pool_layout(s));
    const Tensor dx = like_input(s, g.dim(), {g.dtype(), g.device()});
    if (g.numel() == 0) dx.zero_();
    else if (dx.numel() > 0) backward(g.device(), g.dtype(), {.shape = s, .dy = g, .dx = dx});
    if (autograd::recording(grad))
      autograd::record(op, dx, {&grad}, [a = *this, s](Backward& b) { b.set(0, a.of(b.grad(), s)); });
    return dx;
  }
};

// The gradient of a maximum by operations: the gradient of each window is added to the element at its place.
Tensor max_pool_gradient(const Tensor& g, const Tensor& places, const Pool2dShape& s) {
  const TensorOptions integers(DType::i64, g.device());
  const Tensor place = places.to(DType::i64), row = floor_divide(place, s.kernel_w),
               column = place - row * s.kernel_w;
  const Tensor h = row * s.dilation_h + arange(s.p, integers).unsqueeze(1) * s.stride_h - s.padding_h;
  const Tensor w = column * s.dilation_w + arange(s.q, integers) * s.stride_w - s.padding_w;
  // A window that lies in the padding has no element. Its place is -1 in i32, and 255 in u8.
  const Tensor in_padding = logical_or(lt(place, 0), ge(place, s.kernel_h * s.kernel_w));
  const Tensor index = where(in_padding, Scalar(0), h * s.w + w), none = zeros({}, {g.dtype(), g.device()});
  const Tensor dx = like_input(s, g.dim(), {g.dtype(), g.device()});
  const Tensor flat = zeros_like(dx).flatten(-2);
  return reshape(scatter_add(flat, -1, index.flatten(-2), where(in_padding, none, g).flatten(-2)),
                 dx.sizes());
}

}  // namespace

namespace autograd {

std::int64_t pool_size(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation, bool ceil_mode) {
  // With ceil_mode, a window may be larger than the input, as in PyTorch.
  const std::int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  if (room < 0) return 0;
  std::int64_t out = room / stride + 1;
  // The last window must start inside the input or its left padding.
  if (ceil_mode && (out - 1) * stride >= in + padding) --out;
  return out;
}

MaxPooled max_pooled(const Op& op, const Tensor& x, const Pool2dParams& params, bool with_places) {
  const Pool2dShape s = window_shape(op, x, params);
  const bool recorded = recording(x);
  const Tensor y = like_output(s, x.dim(), {x.dtype(), x.device()});
  Tensor places;
  if (recorded || with_places)
    places = like_output(
        s, x.dim(), {s.kernel_h * s.kernel_w <= kernels::kSmallWindow ? DType::u8 : DType::i32, x.device()});
  if (y.numel() > 0)
    kernels::max_pool2d(x.device(), x.dtype(),
                        {.shape = s, .x = raw_contiguous(x, pool_layout(s)), .y = y, .places = places});
  if (recorded)
    record(op, y, {&x}, [s, ndim = x.dim(), places = save(places)](Backward& b) {
      if (b.create_graph()) return b.set(0, max_pool_gradient(b.grad(), b.saved(places), s));
      const Tensor g = raw_contiguous(b.grad(), pool_layout(s));
      const Tensor dx = like_input(s, ndim, {g.dtype(), g.device()});
      if (dx.numel() > 0)
        kernels::max_pool2d_backward(g.device(), g.dtype(),
                                     {.shape = s, .dy = g, .places = b.saved(places), .dx = dx});
      b.set(0, dx);
    });
  return {y, places, s};
}

Tensor flat_indices(const MaxPooled& pooled) {
  const NoGradGuard no_grad;
  const Pool2dShape& s = pooled.shape;
  const TensorOptions options(DType::i64, pooled.y.device());
  const Tensor place = pooled.places.to(DType::i64);
  const Tensor row = s.kernel_w == 1 ? place : place.floor_divide(s.kernel_w);
  const auto starts = [&](std::int64_t out, std::int64_t stride, std::int64_t padding, std::int64_t pixel) {
    return ((arange(out, options) * stride) - padding) * pixel;
  };
  // An element's index is (start of the rows + row * dilation) * w + start of the columns + column *
  // dilation.
  Tensor index = row * (s.dilation_h * s.w) + starts(s.p, s.stride_h, s.padding_h, s.w).view({s.p, 1}) +
                 starts(s.q, s.stride_w, s.padding_w, 1);
  if (s.kernel_w > 1) index = index + (place - row * s.kernel_w) * s.dilation_w;
  // Only a dilated window can lie wholly in the padding. Its place is -1, converted to the type.
  if ((s.padding_h > 0 && s.dilation_h > 1) || (s.padding_w > 0 && s.dilation_w > 1))
    index =
        where(place == (pooled.places.dtype() == DType::u8 ? 255 : -1), scalar_tensor(-1, options), index);
  return index;
}

Tensor average_pooled(const Op& op, const Tensor& x, const Pool2dParams& params) {
  check(params.dilation == Pair(1), "[", op.name, "] dilation (", params.dilation.h, ", ", params.dilation.w,
        "), but only maximum pools have one");
  return Average{op, kernels::avg_pool2d, kernels::avg_pool2d_backward}.of(x, window_shape(op, x, params));
}

Tensor adaptively_averaged(const Op& op, const Tensor& x, Pair output_size) {
  Pool2dShape s = input_shape(op, x);
  check(output_size.h >= 0 && output_size.w >= 0, "[", op.name, "] output size (", output_size.h, ", ",
        output_size.w, "), expected 0 or more");
  s.p = output_size.h, s.q = output_size.w;
  return Average{op, kernels::adaptive_avg_pool2d, kernels::adaptive_avg_pool2d_backward}.of(x, s);
}

}  // namespace autograd

Tensor max_pool2d(const Tensor& x, const Pool2dParams& params) {
  return autograd::max_pooled(kMaxPool2d, x, params, false).y;
}
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, const Pool2dParams& params) {
  const autograd::MaxPooled pooled = autograd::max_pooled(kMaxPool2d, x, params, true);
  return {pooled.y, autograd::flat_indices(pooled)};
}
Tensor avg_pool2d(const Tensor& x, const Pool2dParams& params) {
  return autograd::average_pooled(kAvgPool2d, x, params);
}
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size) {
  return autograd::adaptively_averaged(kAdaptiveAvgPool2d, x, output_size);
}

}  // namespace tapestry
