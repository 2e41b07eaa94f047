#pragma once
// conv2d and its gradients in bf16 and f16: the host functions bring the operands into the layout of the
// tensor-core kernels, and choose between them and f32.
//   conv_tensor.cuh          tiles, ring, mainloop, epilogue's way through shared memory
//   conv_tensor_layout.cuh   copies of images and weights
//   conv_tensor_gather.cuh   y and dx
//   conv_tensor_weight.cuh   dweight and dbias
//   conv_depthwise.cuh       depthwise convolutions, which have no use for tensor cores
// Other groups with too few channels for tensor cores are computed in f32, from converted copies.
#include "tapestry/kernels/cuda/conv_depthwise.cuh"
#include "tapestry/kernels/cuda/conv_f32.h"
#include "tapestry/kernels/cuda/conv_tensor_gather.cuh"
#include "tapestry/kernels/cuda/conv_tensor_weight.cuh"

namespace tapestry::kernels::cuda {

namespace conv::tensor_cores {

/// Whether tensor cores compute the convolution. A single group may have any number of channels.
inline bool takes(const Conv2dShape& s) {
  return s.groups == 1 || (s.c / s.groups % kChunk == 0 && s.k / s.groups % kChunk == 0);
}

/// x as the kernels read it: `shape` describes the convolution of that array.
struct InputLayout {
  Conv2dShape shape;
  LayoutPlan layout;
  bool rows = false;  // the taps of a window's row have become channels
};
inline InputLayout input_layout(const Conv2dShape& s) {
  InputLayout in{s, LayoutPlan::same(input_strides(s), s.h, s.w, s.c)};
  in.shape.channels_last = true;
  in.rows = s.groups == 1 && s.c > 0 && s.c < kChunk && s.s > 1 && s.q <= 2 * s.w;
  if (in.rows) {
    LayoutPlan& l = in.layout;
    l.width = divisor(s.q), l.pixels = divisor(s.h * s.q), l.taps = static_cast<unsigned>(s.s);
    l.stride = s.stride_w, l.padding = s.padding_w, l.dilation = s.dilation_w;
    l.set_chunks(s.s * s.c);
    in.shape.c = s.s * s.c, in.shape.w = s.q, in.shape.s = 1;
    in.shape.stride_w = in.shape.dilation_w = 1, in.shape.padding_w = 0;
  }
  in.shape.c = padded(in.shape.c);
  return in;
}

/// The elements of an f32 copy of a 16-bit array. A null array gives null.
template <class T>
Scratch<float> widened(const T* from, std::int64_t n, const LaunchContext& context) {
  Scratch<float> copy(context.device, from ? n : 0);
  if (from) launch_convert<float, T>(from, copy.data(), n, stream_of(context));
  return copy;
}

inline std::int64_t count_x(const Conv2dShape& s) { return s.n * s.c * s.h * s.w; }
inline std::int64_t count_y(const Conv2dShape& s) { return s.n * s.k * s.p * s.q; }
inline std::int64_t count_weight(const Conv2dShape& s) { return s.k * (s.c / s.groups) * s.r * s.s; }

}  // namespace conv::tensor_cores

/// Computes y = epilogue(convolution). `epilogue` has the form of BiasRelu (conv_tensor_gather.cuh).
template <class T, class Epilogue>
void launch_tensor_forward(const LaunchContext& context, const Conv2dArgs& a, const Epilogue& epilogue,
                           const conv::tensor_cores::Division& division) {
  using namespace conv;
  using namespace conv::tensor_cores;
  const Conv2dShape& s = a.shape;
  const cudaStream_t stream = stream_of(context);
  const T* weight = a.weight.as<T>();
  T* const y = a.y.as<T>();
  const InputLayout in = input_layout(s);
  const Chunked<T> x = chunked(in.layout, s.n, s.channels_last, a.x.as<T>(), context);
  Conv2dShape t = in.shape;
  if (!s.channels_last) t.k = padded(s.k);
  GatherClasses g = forward_classes(t);
  g.plan.lines = static_cast<unsigned>(s.k / s.groups);
  const std::int64_t area = s.r * s.s, c_each = s.c / s.groups, k_each = s.k / s.groups;
  Scratch<T> packed;
  if (area != 1 || c_each % kChunk != 0 || !aligned<T, kChunk>(weight)) {
    if (in.rows) g.taps[0].step_h = s.s;
    WeightLayout layout{};
    layout.line = c_each * area, layout.channel = area, layout.group = k_each * c_each * area;
    layout.lines = divisor(k_each), layout.padded = divisor(t.c / s.groups),
    layout.channels = divisor(c_each);
    layout.taps = in.rows ? static_cast<unsigned>(s.s) : 1, layout.next_tap = 1;
    packed = Scratch<T>(context.device, place_weights(g, s.groups, t.c / s.groups, k_each));
    if (c_each > 0) launch_pack_chunks(g, layout, s.groups, weight, packed.data(), stream);
    weight = packed.data();
  }
  Scratch<T> chunks;
  if (!s.channels_last) chunks = Scratch<T>(context.device, s.n * s.p * s.q * t.k);
  launch_tensor_gather(g, x.data, weight, epilogue, s.channels_last ? y : chunks.data(), s.n, s.p * s.q,
                       division, context);
  if (!s.channels_last)
    launch_layout<false, T>(LayoutPlan::same(output_strides(s), s.p, s.q, s.k), s.n, nullptr, y,
                            chunks.data(), stream);
}

template <class T>
void launch_conv2d_16(const LaunchContext& context, const Conv2dArgs& a, const ConvInF32& f32,
                      const conv::tensor_cores::Division& division = {}) {
  using namespace conv;
  using namespace conv::tensor_cores;
  const Conv2dShape& s = a.shape;
  check_sizes(s);
  if (count_y(s) == 0) return;
  if (takes(s))
    return launch_tensor_forward<T>(context, a, BiasRelu<T>{a.bias.as<T>(), floor_of(s.relu)}, division);
  const auto weight = widened(a.weight.as<T>(), count_weight(s), context);
  const auto bias = widened(a.bias.as<T>(), s.k, context);
  if (is_depthwise(s))
    return launch_depthwise<T>(forward_classes(s), s, false, a.x.as<T>(), weight.data(), bias.data(),
                               a.y.as<T>(), {}, context);
  const auto x = widened(a.x.as<T>(), count_x(s), context);
  const Scratch<float> y(context.device, count_y(s));
  f32.forward(context, {s, x.data(), weight.data(), bias.data(), y.data()});
  launch_convert<T, float>(y.data(), a.y.as<T>(), count_y(s), stream_of(context));
}

template <class T>
void launch_conv2d_backward_input_16(const LaunchContext& context, const Conv2dBackwardInputArgs& a,
                                     const ConvInF32& f32,
                                     const conv::tensor_cores::Division& division = {}) {
  using namespace conv;
  using namespace conv::tensor_cores;
  const Conv2dShape& s = a.shape;
  const cudaStream_t stream = stream_of(context);
  check_sizes(s);
  if (count_x(s) == 0) return;
  T* const dx = a.dx.as<T>();
  if (!takes(s)) {
    const auto weight = widened(a.weight.as<T>(), count_weight(s), context);
    if (is_depthwise(s))
      return launch_depthwise<T>(gradient_classes(s), s, true, a.dy.as<T>(), weight.data(), nullptr, dx, {},
                                 context);
    const auto dy = widened(a.dy.as<T>(), count_y(s), context);
    const Scratch<float> sums(context.device, count_x(s));
    f32.backward_input(context, {s, dy.data(), weight.data(), sums.data()});
    return launch_convert<T, float>(sums.data(), dx, count_x(s), stream);
  }
  const Chunked<T> dy = chunked(LayoutPlan::same(output_strides(s), s.p, s.q, s.k), s.n, s.channels_last,
                                a.dy.as<T>(), context);
  Conv2dShape t = s;
  t.channels_last = true;
  t.k = padded(s.k);
  if (!s.channels_last) t.c = padded(s.c);
  GatherClasses g = gradient_classes(t);
  const std::int64_t area = s.r * s.s, c_each = s.c / s.groups, k_each = s.k / s.groups;
  g.plan.lines = static_cast<unsigned>(c_each);
  WeightLayout layout{};
  layout.line = area, layout.channel = c_each * area, layout.group = k_each * c_each * area;
  layout.lines = divisor(c_each), layout.padded = divisor(t.k / s.groups), layout.channels = divisor(k_each);
  layout.taps = 1;
  const Scratch<T> packed(context.device, place_weights(g, s.groups, t.k / s.groups, c_each));
  if (k_each > 0) launch_pack_chunks(g, layout, s.groups, a.weight.as<T>(), packed.data(), stream);
  Scratch<T> chunks;
  if (!s.channels_last) chunks = Scratch<T>(context.device, s.n * s.h * s.w * t.c);
  launch_tensor_gather(g, dy.data, packed.data(), BiasRelu<T>{nullptr, floor_of(false)},
                       s.channels_last ? dx : chunks.data(), s.n, s.h * s.w, division, context);
  if (!s.channels_last)
    launch_layout<false, T>(LayoutPlan::same(input_strides(s), s.h, s.w, s.c), s.n, nullptr, dx,
                            chunks.data(), stream);
}

/// dweight or dbias may be null. If dweight is null, x may be null too.
template <class T>
void launch_conv2d_backward_weight_16(const LaunchContext& context, const Conv2dBackwardWeightArgs& a,
                                      const ConvInF32& f32,
                                      const conv::tensor_cores::Division& division = {}) {
  using namespace conv;
  using namespace conv::tensor_cores;
  const Conv2dShape& s = a.shape;
  check_sizes(s);
  const T *const dy = a.dy.as<T>(), *const x = a.x.as<T>();
  T *const dweight = a.dweight.as<T>(), *const dbias = a.dbias.as<T>();
  if (dbias && s.k > 0) launch_tensor_bias(s, dy, dbias, context);
  if (!dweight || count_weight(s) == 0) return;
  if (!takes(s)) {
    const Scratch<float> sums(context.device, count_weight(s));
    if (is_depthwise(s)) {
      launch_depthwise_weight<T>(s, dy, x, sums.data(), {}, context);
    } else {
      const auto dy32 = widened(dy, count_y(s), context);
      const auto x32 = widened(x, count_x(s), context);
      f32.backward_weight(context, {s, dy32.data(), x32.data(), sums.data(), nullptr});
    }
    return launch_convert<T, float>(sums.data(), dweight, count_weight(s), stream_of(context));
  }
  const InputLayout in = input_layout(s);
  const Chunked<T> x_chunks = chunked(in.layout, s.n, s.channels_last, x, context);
  const Chunked<T> dy_chunks =
      chunked(LayoutPlan::same(output_strides(s), s.p, s.q, s.k), s.n, s.channels_last, dy, context);
  Conv2dShape t = in.shape;
  t.k = padded(s.k);
  WeightChunksTarget<T> target{};
  target.weight = dweight;
  target.channels = divisor(s.c / s.groups), target.window_h = divisor(s.r), target.window_w = divisor(s.s);
  const std::int64_t tap = t.c / s.groups;  // from one tap of the kernel's window to the next
  target.row_step = static_cast<unsigned>(t.s * tap);
  target.column_step = static_cast<unsigned>(in.rows ? s.c : tap);
  launch_tensor_weight(t, dy_chunks.data, x_chunks.data, target, count_weight(s), division, context);
}

}  // namespace tapestry::kernels::cuda
