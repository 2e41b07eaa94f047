// The maps of internal/conv.h by the slots of kernels/ops/conv.h, which are 2-d. A line is an image of one
// row. A volume whose window is 1 in two adjacent dimensions is an image with these dimensions merged. Any
// other volume is lowered along its depth: the slices that a window touches become channels,
//   x' (N O, C T, H, W), where x'[n o, c t] = x[n, c, o stride - padding + t dilation],
// and the weight (K, C / groups, T, R, S) is one of (K, C / groups T, R, S) without a copy. So one call of a
// 2-d kernel computes all planes of y, with all sums in one accumulator.
#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/conv.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/kernels/ops/conv3d.h"

namespace tapestry::autograd {
namespace {

// The sizes (first, second, one size per axis).
template <class F>
Shape sizes_of(const ConvGeometry& g, std::int64_t first, std::int64_t second, F&& size) {
  Shape sizes{first, second};
  for (int i = 3 - g.dims; i < 3; ++i) sizes.push_back(size(g.axes[i]));
  return sizes;
}

// True if the axis of x is also that of y.
bool trivial(const ConvAxis& a) { return a.window == 1 && a.stride == 1 && a.padding == 0 && a.in == a.out; }
ConvAxis merged(const ConvAxis& a, const ConvAxis& b) { return {.in = a.in * b.in, .out = a.out * b.out}; }

// A convolution of images that computes a convolution of any dimensions.
struct Flat {
  kernels::Conv2dShape shape;
  bool lowered = false;  // the images are the planes of lower_depth()

  explicit Flat(const ConvGeometry& g) {
    const ConvAxis *height = &g.axes[1], *width = &g.axes[2];
    ConvAxis both;
    shape.n = g.n, shape.c = g.c, shape.k = g.k, shape.groups = g.groups;
    shape.channels_last = g.channels_last;
    if (g.dims == 3 && trivial(*height) && trivial(*width)) {
      both = merged(*height, *width);
      height = &g.axes[0], width = &both;
    } else if (g.dims == 3 && trivial(g.axes[0]) && trivial(*height)) {
      both = merged(g.axes[0], *height);
      height = &both;
    } else if (g.dims == 3) {
      lowered = true;
      shape.n *= g.axes[0].out, shape.c *= g.axes[0].window;
    }
    shape.h = height->in, shape.r = height->window, shape.p = height->out;
    shape.w = width->in, shape.s = width->window, shape.q = width->out;
    shape.stride_h = height->stride, shape.padding_h = height->padding, shape.dilation_h = height->dilation;
    shape.stride_w = width->stride, shape.padding_w = width->padding, shape.dilation_w = width->dilation;
  }
};

MemoryFormat layout(const ConvGeometry& g) {
  return g.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

// Calls f(tap, part of the planes' dimension, part of the depth of x) for each slice of the window. The parts
// have the same length, which is 0 for a slice that is always in the padding.
template <class F>
void each_tap(const ConvAxis& a, F&& f) {
  for (std::int64_t t = 0; t < a.window; ++t) {
    const std::int64_t shift = t * a.dilation - a.padding;  // plane o reads the slice o stride + shift
    const std::int64_t begin =
        std::min(a.out, shift < 0 ? (-shift + a.stride - 1) / a.stride : std::int64_t{0});
    const std::int64_t end =
        shift >= a.in ? begin : std::clamp((a.in - shift + a.stride - 1) / a.stride, begin, a.out);
    const std::int64_t length = end - begin;
    f(t, Part{.dim = 1, .start = begin, .length = length},
      Part{.dim = 2,
           .start = length > 0 ? begin * a.stride + shift : 0,
           .length = length,
           .step = length > 1 ? a.stride : 1});
  }
}
Tensor tap_of(const Tensor& planes, std::int64_t t) {
  return raw_part(planes, {.dim = 3, .start = t, .length = 1, .drop = true});
}

// x (N, C, D, H, W) as (N O, C T, H, W).
Tensor lower_depth(const ConvGeometry& g, const Tensor& x) {
  const ConvAxis& a = g.axes[0];
  const std::int64_t h = g.axes[1].in, w = g.axes[2].in;
  const Tensor planes = empty({g.n, a.out, g.c, a.window, h, w}, {x.dtype(), x.device()});
  each_tap(a, [&](std::int64_t t, const Part& to, const Part& from) {
    const Tensor tap = tap_of(planes, t);
    const std::int64_t end = to.start + to.length;
    if (to.start > 0) raw_part(tap, {.dim = 1, .start = 0, .length = to.start}).zero_();
    if (to.length > 0) raw_part(tap, to).copy_(raw_part(x, from).transpose(1, 2));
    if (end < a.out) raw_part(tap, {.dim = 1, .start = end, .length = a.out - end}).zero_();
  });
  return planes.view({g.n * a.out, g.c * a.window, h, w});
}
// The transpose of lower_depth(): the sums of the planes' channels at their slices.
Tensor raise_depth(const ConvGeometry& g, const Tensor& planes) {
  const ConvAxis& a = g.axes[0];
  const Tensor split = planes.view({g.n, a.out, g.c, a.window, g.axes[1].in, g.axes[2].in});
  const Tensor sums = zeros(g.x_sizes(), {planes.dtype(), planes.device()});
  each_tap(a, [&](std::int64_t t, const Part& from, const Part& to) {
    if (from.length > 0) raw_part(sums, to).add_(raw_part(tap_of(split, t), from).transpose(1, 2));
  });
  return sums;
}

// y (N, K, O, P, Q) as (N O, K, P, Q), and back.
Tensor planes_of(const ConvGeometry& g, const Tensor& y) {
  return raw_contiguous(y.transpose(1, 2)).view({g.n * g.axes[0].out, g.k, g.axes[1].out, g.axes[2].out});
}
Tensor volume_of(const ConvGeometry& g, const Tensor& planes) {
  return raw_contiguous(planes.view({g.n, g.axes[0].out, g.k, g.axes[1].out, g.axes[2].out}).transpose(1, 2));
}

Tensor zeroed(const Shape& sizes, const TensorOptions& options, MemoryFormat format) {
  const Tensor t = empty(sizes, options, format);
  t.zero_();
  return t;
}

// The dtype in which lowered volumes are computed, so that f16 and bf16 are rounded only at the end.
DType dtype_of_planes(DType dtype) { return accumulation_dtype(dtype); }

// The volume itself, for the slots of kernels/ops/conv3d.h.
kernels::Conv3dShape volume_shape(const ConvGeometry& g) {
  const ConvAxis& a = g.axes[0];
  kernels::Conv3dShape s{.plane = Flat(g).shape};
  s.plane.n = g.n, s.plane.c = g.c;
  s.d = a.in, s.t = a.window, s.o = a.out;
  s.stride_d = a.stride, s.padding_d = a.padding, s.dilation_d = a.dilation;
  return s;
}

// The maps of volumes by the slots of kernels/ops/conv3d.h. The results are undefined if there is no kernel,
// or if it refuses the shape.
Tensor volume_forward(const ConvGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!kernels::conv3d.has(x.device().type, x.dtype())) return {};
  const Tensor y = empty(g.y_sizes(), {x.dtype(), x.device()});
  bool done = false;
  kernels::conv3d(x.device(), x.dtype(),
                  {.shape = volume_shape(g),
                   .x = raw_contiguous(x),
                   .weight = raw_contiguous(weight),
                   .bias = bias,
                   .y = y,
                   .done = &done});
  return done ? y : Tensor();
}
Tensor volume_input_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& weight) {
  if (!kernels::conv3d_backward_input.has(dy.device().type, dy.dtype())) return {};
  const Tensor dx = empty(g.x_sizes(), {dy.dtype(), dy.device()});
  bool done = false;
  kernels::conv3d_backward_input(dy.device(), dy.dtype(),
                                 {.shape = volume_shape(g),
                                  .dy = raw_contiguous(dy),
                                  .weight = raw_contiguous(weight),
                                  .dx = dx,
                                  .done = &done});
  return done ? dx : Tensor();
}
bool volume_weight_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& x, const Tensor& dweight,
                            const Tensor& dbias) {
  bool done = false;
  if (dweight.defined() && kernels::conv3d_backward_weight.has(dy.device().type, dy.dtype()))
    kernels::conv3d_backward_weight(dy.device(), dy.dtype(),
                                    {.shape = volume_shape(g),
                                     .dy = raw_contiguous(dy),
                                     .x = raw_contiguous(x),
                                     .dweight = dweight,
                                     .dbias = dbias,
                                     .done = &done});
  return done;
}

}  // namespace

Tensor per_channel(const Tensor& bias, int dims) {
  Shape sizes = bias.sizes();
  for (int i = 0; i < dims; ++i) sizes.push_back(1);
  return bias.view(sizes);
}
Dims all_but_channels(int dims) {
  Dims others{0};
  for (int i = 0; i < dims; ++i) others.push_back(2 + i);
  return others;
}

Shape ConvGeometry::x_sizes() const {
  return sizes_of(*this, n, c, [](const ConvAxis& a) { return a.in; });
}
Shape ConvGeometry::weight_sizes() const {
  return sizes_of(*this, k, c / groups, [](const ConvAxis& a) { return a.window; });
}
Shape ConvGeometry::y_sizes() const {
  return sizes_of(*this, n, k, [](const ConvAxis& a) { return a.out; });
}
bool ConvGeometry::nothing() const {
  return x_sizes().numel() == 0 || weight_sizes().numel() == 0 || y_sizes().numel() == 0;
}

Tensor conv_forward(const ConvGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    bool relu) {
  const NoGradGuard no_grad;
  const TensorOptions options(x.dtype(), x.device());
  const Tensor offset = contiguous_or_undefined(bias);
  if (g.nothing()) {
    const Tensor y = zeroed(g.y_sizes(), options, layout(g));
    if (bias.defined()) y.add_(per_channel(offset, g.dims));
    return relu ? tapestry::relu(y) : y;
  }
  Flat flat(g);
  flat.shape.relu = relu;
  if (flat.lowered) {
    if (Tensor y = volume_forward(g, x, weight, offset); y.defined()) return y;
    const DType dtype = dtype_of_planes(x.dtype());
    const Tensor planes = lower_depth(g, converted(x, dtype)), w = raw_contiguous(converted(weight, dtype)),
                 b = bias.defined() ? converted(offset, dtype) : Tensor();
    const Tensor y = empty({flat.shape.n, flat.shape.k, flat.shape.p, flat.shape.q}, {dtype, x.device()});
    kernels::conv2d(x.device(), dtype, {.shape = flat.shape, .x = planes, .weight = w, .bias = b, .y = y});
    return volume_of(g, converted(y, x.dtype()));
  }
  const Tensor y = empty(g.y_sizes(), options, layout(g));
  const Tensor input = raw_contiguous(x, layout(g)), w = raw_contiguous(weight);
  kernels::conv2d(x.device(), x.dtype(),
                  {.shape = flat.shape, .x = input, .weight = w, .bias = offset, .y = y});
  return y;
}

Tensor conv_input_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& weight) {
  const NoGradGuard no_grad;
  const TensorOptions options(dy.dtype(), dy.device());
  if (g.nothing()) return zeroed(g.x_sizes(), options, layout(g));
  const Flat flat(g);
  const auto run = [&](const Tensor& from, const Tensor& w, const Tensor& dx) {
    kernels::conv2d_backward_input(dx.device(), dx.dtype(),
                                   {.shape = flat.shape, .dy = from, .weight = w, .dx = dx});
    return dx;
  };
  if (flat.lowered) {
    if (Tensor dx = volume_input_gradient(g, dy, weight); dx.defined()) return dx;
    const DType dtype = dtype_of_planes(dy.dtype());
    const Tensor planes = planes_of(g, converted(dy, dtype)), w = raw_contiguous(converted(weight, dtype));
    const Tensor dx =
        run(planes, w, empty({flat.shape.n, flat.shape.c, flat.shape.h, flat.shape.w}, {dtype, dy.device()}));
    return converted(raise_depth(g, dx), dy.dtype());
  }
  return run(raw_contiguous(dy, layout(g)), raw_contiguous(weight), empty(g.x_sizes(), options, layout(g)));
}

std::pair<Tensor, Tensor> conv_weight_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& x,
                                               bool weight, bool bias) {
  const NoGradGuard no_grad;
  const auto made = [&](bool wanted, const Shape& sizes, DType dtype) {
    return wanted ? empty(sizes, {dtype, dy.device()}) : Tensor();
  };
  if (g.nothing()) {
    const Tensor dw = made(weight, g.weight_sizes(), dy.dtype()), db = made(bias, {g.k}, dy.dtype());
    if (weight) dw.zero_();
    if (bias) db.copy_(sum(dy, all_but_channels(g.dims)));
    return {dw, db};
  }
  const Flat flat(g);
  const DType dtype = flat.lowered ? dtype_of_planes(dy.dtype()) : dy.dtype();
  const Tensor dw = made(weight, g.weight_sizes(), dtype), db = made(bias, {g.k}, dtype);
  Tensor gradient, input;
  if (flat.lowered) {
    if (volume_weight_gradient(g, dy, x, dw, db)) return {dw, db};
    gradient = planes_of(g, converted(dy, dtype));
    if (weight) input = lower_depth(g, converted(x, dtype));
  } else {
    gradient = raw_contiguous(dy, layout(g));
    if (weight) input = raw_contiguous(x, layout(g));
  }
  kernels::conv2d_backward_weight(
      dy.device(), dtype, {.shape = flat.shape, .dy = gradient, .x = input, .dweight = dw, .dbias = db});
  return {weight ? converted(dw, dy.dtype()) : dw, bias ? converted(db, dy.dtype()) : db};
}

}  // namespace tapestry::autograd
