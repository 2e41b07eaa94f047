#include "tapestry/autograd/ops/conv.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/conv.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::check_matches;
using autograd::Grad;
using autograd::Op;
using autograd::raw_contiguous;
using autograd::save_if;

const Op kConv2d("conv2d", Grad::twice, kFloats);

// Checks both numbers of a pair. The upper limit 2^31 - 1 prevents overflow: a product of two such numbers
// fits into i64.
void check_pair(const char* what, Pair p, std::int64_t least) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  check(p.h >= least && p.w >= least && p.h <= most && p.w <= most, "[conv2d] ", what, " (", p.h, ", ", p.w,
        "), expected from ", least, " to ", most);
}

std::int64_t output_size(const char* side, std::int64_t in, std::int64_t window, std::int64_t stride,
                         std::int64_t padding, std::int64_t dilation) {
  const std::int64_t span = dilation * (window - 1) + 1;
  check(in + 2 * padding >= span, "[conv2d] a kernel that spans ", span, " pixels does not fit an input ",
        side, " of ", in, " with padding ", padding, "; pad more, or use a smaller kernel or dilation");
  return (in + 2 * padding - span) / stride + 1;
}

kernels::Conv2dShape checked_shape(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                   const Conv2dParams& params) {
  check(x.dim() == 4, "[conv2d] input has shape ", x.sizes(), ", expected 4-d (N, C, H, W)");
  check(weight.dim() == 4, "[conv2d] weight has shape ", weight.sizes(),
        ", expected 4-d (K, C / groups, R, S)");
  check_pair("stride", params.stride, 1);
  check_pair("dilation", params.dilation, 1);
  check_pair("padding", params.padding, 0);
  kernels::Conv2dShape s;
  s.n = x.sizes()[0], s.c = x.sizes()[1], s.h = x.sizes()[2], s.w = x.sizes()[3];
  s.k = weight.sizes()[0], s.r = weight.sizes()[2], s.s = weight.sizes()[3];
  s.groups = params.groups;
  check(s.groups >= 1 && s.c % s.groups == 0 && s.k % s.groups == 0, "[conv2d] ", s.groups,
        " groups do not divide ", s.c, " input channels and ", s.k, " output channels");
  check(weight.sizes()[1] * s.groups == s.c, "[conv2d] input of shape ", x.sizes(), " has ", s.c,
        " channels, but weight ", weight.sizes(), " with ", s.groups, " groups takes ",
        weight.sizes()[1] * s.groups);
  check(s.r >= 1 && s.s >= 1, "[conv2d] weight has shape ", weight.sizes(), ": an empty window");
  check_pair("kernel size", {s.r, s.s}, 1);
  autograd::check_vector("conv2d", bias, "bias", s.k);
  s.stride_h = params.stride.h, s.stride_w = params.stride.w;
  s.padding_h = params.padding.h, s.padding_w = params.padding.w;
  s.dilation_h = params.dilation.h, s.dilation_w = params.dilation.w;
  s.p = output_size("height", s.h, s.r, s.stride_h, s.padding_h, s.dilation_h);
  s.q = output_size("width", s.w, s.s, s.stride_w, s.padding_w, s.dilation_w);
  s.channels_last = x.memory_format() == MemoryFormat::channels_last ||
                    weight.memory_format() == MemoryFormat::channels_last;
  return s;
}

MemoryFormat layout(const kernels::Conv2dShape& s) {
  return s.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

// ---- gradients by operations. A convolution is linear in x and in the weight, so the gradients of each
// gradient are a convolution and the other gradient.

Conv2dParams params_of(const kernels::Conv2dShape& s) {
  return {.stride = {s.stride_h, s.stride_w},
          .padding = {s.padding_h, s.padding_w},
          .dilation = {s.dilation_h, s.dilation_w},
          .groups = s.groups};
}
bool is_empty(const kernels::Conv2dShape& s) { return s.n * s.c * s.h * s.w == 0 || s.k == 0; }

Tensor weight_gradient(const Tensor& g, const Tensor& x, const kernels::Conv2dShape& s);
Tensor input_gradient(const Tensor& g, const Tensor& weight, const kernels::Conv2dShape& s) {
  const Tensor dx = empty({s.n, s.c, s.h, s.w}, {g.dtype(), g.device()}, layout(s));
  if (is_empty(s)) return zeros_like(dx);
  kernels::conv2d_backward_input(
      g.device(), g.dtype(),
      {.shape = s, .dy = raw_contiguous(g, layout(s)), .weight = raw_contiguous(weight), .dx = dx});
  if (autograd::recording(g, weight))
    autograd::record(kConv2d, dx, {&g, &weight},
                     [g = save_if(weight, g), weight = save_if(g, weight), s](Backward& b) {
                       if (b.needs(0)) b.set(0, conv2d(b.grad(), b.saved(weight), {}, params_of(s)));
                       if (b.needs(1)) b.set(1, weight_gradient(b.saved(g), b.grad(), s));
                     });
  return dx;
}
Tensor weight_gradient(const Tensor& g, const Tensor& x, const kernels::Conv2dShape& s) {
  const Tensor dw = empty({s.k, s.c / s.groups, s.r, s.s}, {g.dtype(), g.device()});
  if (is_empty(s)) return zeros_like(dw);
  kernels::conv2d_backward_weight(g.device(), g.dtype(),
                                  {.shape = s,
                                   .dy = raw_contiguous(g, layout(s)),
                                   .x = raw_contiguous(x, layout(s)),
                                   .dweight = dw,
                                   .dbias = Tensor()});
  if (autograd::recording(g, x))
    autograd::record(kConv2d, dw, {&g, &x}, [g = save_if(x, g), x = save_if(g, x), s](Backward& b) {
      if (b.needs(0)) b.set(0, conv2d(b.saved(x), b.grad(), {}, params_of(s)));
      if (b.needs(1)) b.set(1, input_gradient(b.saved(g), b.grad(), s));
    });
  return dw;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dParams& params) {
  detail::check_defined(kConv2d.name, x);
  detail::check_defined(kConv2d.name, weight, "weight");
  kConv2d.check_dtype(x.dtype());
  check_matches(kConv2d.name, x, weight, "weight");
  check_matches(kConv2d.name, x, bias, "bias");
  const kernels::Conv2dShape s = checked_shape(x, weight, bias, params);
  const bool nothing = x.numel() == 0 || weight.numel() == 0;

  const Tensor y = empty({s.n, s.k, s.p, s.q}, {x.dtype(), x.device()}, layout(s));
  if (nothing) {
    const NoGradGuard guard;
    y.zero_();
    if (bias.defined()) y.add_(bias.view({s.k, 1, 1}));
  } else {
    const Tensor input = raw_contiguous(x, layout(s)), w = raw_contiguous(weight);
    const Tensor offset = autograd::contiguous_or_undefined(bias);
    kernels::conv2d(x.device(), x.dtype(), {.shape = s, .x = input, .weight = w, .bias = offset, .y = y});
  }

  if (autograd::recording(x, weight, bias))
    autograd::record(
        kConv2d, y, {&x, &weight, &bias},
        [x = save_if(weight, x), weight = save_if(x, weight), s, nothing](Backward& b) {
          if (b.create_graph()) {
            if (b.needs(0)) b.set(0, input_gradient(b.grad(), b.saved(weight), s));
            if (b.needs(1)) b.set(1, weight_gradient(b.grad(), b.saved(x), s));
            if (b.needs(2)) b.set(2, b.grad().sum({0, 2, 3}));
            return;
          }
          const TensorOptions options(b.grad().dtype(), b.grad().device());
          const Tensor g = raw_contiguous(b.grad(), layout(s));
          Tensor dx, dw, db;
          if (b.needs(0)) dx = empty({s.n, s.c, s.h, s.w}, options, layout(s));
          if (b.needs(1)) dw = empty({s.k, s.c / s.groups, s.r, s.s}, options);
          if (b.needs(2)) db = empty({s.k}, options);
          if (nothing) {
            if (dx.defined()) dx.zero_();
            if (dw.defined()) dw.zero_();
            if (db.defined()) db = b.grad().sum({0, 2, 3});
          } else {
            if (dx.defined())
              kernels::conv2d_backward_input(
                  dx.device(), dx.dtype(),
                  {.shape = s, .dy = g, .weight = raw_contiguous(b.saved(weight)), .dx = dx});
            if (dw.defined() || db.defined()) {
              const Tensor input = dw.defined() ? raw_contiguous(b.saved(x), layout(s)) : Tensor();
              kernels::conv2d_backward_weight(g.device(), g.dtype(),
                                              {.shape = s, .dy = g, .x = input, .dweight = dw, .dbias = db});
            }
          }
          if (dx.defined()) b.set(0, dx);
          if (dw.defined()) b.set(1, dw);
          if (db.defined()) b.set(2, db);
        });
  return y;
}

}  // namespace tapestry
