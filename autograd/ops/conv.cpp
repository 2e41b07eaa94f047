#include "tapestry/autograd/ops/conv.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/conv.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry {
namespace {

using autograd::all_but_channels;
using autograd::Backward;
using autograd::check_matches;
using autograd::ConvAxis;
using autograd::converted;
using autograd::ConvGeometry;
using autograd::Grad;
using autograd::Op;
using autograd::per_channel;
using autograd::recording;
using autograd::save_if;

const Op kConv1d("conv1d", Grad::twice, kFloats);
const Op kConv2d("conv2d", Grad::twice, kFloats);
const Op kConv2dRelu("conv2d_relu", Grad::twice, kFloats);
const Op kConv3d("conv3d", Grad::twice, kFloats);
const Op kConvTranspose1d("conv_transpose1d", Grad::twice, kFloats);
const Op kConvTranspose2d("conv_transpose2d", Grad::twice, kFloats);
const Op kConvTranspose3d("conv_transpose3d", Grad::twice, kFloats);

// The upper limit 2^31 - 1 of sizes and options prevents overflow: a product of two such numbers fits into
// i64.
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// An option, with one number for depth, height and width. The first ones are unused if there are fewer
// dimensions.
using Numbers = std::array<std::int64_t, 3>;
Numbers numbers(std::int64_t w) { return {0, 0, w}; }
Numbers numbers(Pair p) { return {0, p.h, p.w}; }
Numbers numbers(Triple t) { return {t.d, t.h, t.w}; }

struct Options {
  int dims;
  Numbers stride, padding, dilation, output_padding;
  std::int64_t groups;
  bool same = false;  // replaces the padding
  bool relu = false;  // of the result
};
template <int kDims>
Options options_of(const ConvParams<kDims>& p) {
  return {kDims,    numbers(p.stride), numbers(p.padding.sides), numbers(p.dilation), {},
          p.groups, p.padding.same};
}
template <int kDims>
Options options_of(const ConvTransposeParams<kDims>& p) {
  return {kDims,   numbers(p.stride), numbers(p.padding), numbers(p.dilation), numbers(p.output_padding),
          p.groups};
}

// What differs between the messages for 1, 2 and 3 dimensions.
struct Names {
  const char *input, *weight, *sides[3];
};
constexpr Names kNames[] = {
    {"3-d (N, C, L) or 2-d (C, L)", "3-d (K, C / groups, S)", {"", "", "length"}},
    {"4-d (N, C, H, W) or 3-d (C, H, W)", "4-d (K, C / groups, R, S)", {"", "height", "width"}},
    {"5-d (N, C, D, H, W) or 4-d (C, D, H, W)", "5-d (K, C / groups, T, R, S)", {"depth", "height", "width"}},
};
constexpr const char* kTransposedWeights[] = {"3-d (C, K / groups, S)", "4-d (C, K / groups, R, S)",
                                              "5-d (C, K / groups, T, R, S)"};

// "(2, 3)", or "2" in one dimension.
std::string text(const Numbers& v, int dims) {
  std::string list;
  for (int i = 3 - dims; i < 3; ++i) list += (list.empty() ? "" : ", ") + std::to_string(v[i]);
  return dims == 1 ? list : "(" + list + ")";
}

void check_numbers(const Op& op, const char* what, const Numbers& v, int dims, std::int64_t least) {
  for (int i = 3 - dims; i < 3; ++i)
    check(v[i] >= least && v[i] <= kMost, "[", op.name, "] ", what, " ", text(v, dims), ", expected from ",
          least, " to ", kMost);
}

std::int64_t output_size(const Op& op, const char* side, const ConvAxis& a) {
  const std::int64_t span = a.dilation * (a.window - 1) + 1;
  check(a.in + 2 * a.padding >= span, "[", op.name, "] a kernel that spans ", span,
        " pixels does not fit an input ", side, " of ", a.in, " with padding ", a.padding,
        "; pad more, or use a smaller kernel or dilation");
  return (a.in + 2 * a.padding - span) / a.stride + 1;
}

// The size of x, of which a.out is the size of y.
std::int64_t input_size(const Op& op, const char* side, const ConvAxis& a, std::int64_t output_padding) {
  check(a.out >= 1 && a.out <= kMost, "[", op.name, "] an input ", side, " of ", a.out,
        ", expected from 1 to ", kMost);
  check(output_padding < std::max(a.stride, a.dilation), "[", op.name, "] output_padding ", output_padding,
        " along the ", side, " must be less than stride ", a.stride, " or dilation ", a.dilation);
  const std::int64_t last = (a.out - 1) * a.stride, span = a.dilation * (a.window - 1) + 1;
  check(last + span + output_padding > 2 * a.padding, "[", op.name, "] an input ", side, " of ", a.out,
        " gives windows that span ", last + span, " pixels, and padding ", a.padding,
        " removes them all; use less padding");
  return last - 2 * a.padding + span + output_padding;
}

// Checks everything but the dtypes and the bias. `transposed` swaps x and y.
ConvGeometry checked_geometry(const Op& op, const Tensor& x, const Tensor& weight, const Options& o,
                              bool transposed) {
  const Names& names = kNames[o.dims - 1];
  check(x.dim() == o.dims + 2, "[", op.name, "] input has shape ", x.sizes(), ", expected ", names.input);
  check(weight.dim() == o.dims + 2, "[", op.name, "] weight has shape ", weight.sizes(), ", expected ",
        transposed ? kTransposedWeights[o.dims - 1] : names.weight);
  check_numbers(op, "stride", o.stride, o.dims, 1);
  check_numbers(op, "dilation", o.dilation, o.dims, 1);
  check_numbers(op, "padding", o.padding, o.dims, 0);
  check_numbers(op, "output_padding", o.output_padding, o.dims, 0);

  const std::int64_t channels = x.sizes()[1], rows = weight.sizes()[0], groups = o.groups;
  if (transposed)
    check(groups >= 1 && channels % groups == 0, "[", op.name, "] ", groups, " groups do not divide ",
          channels, " input channels");
  else
    check(groups >= 1 && channels % groups == 0 && rows % groups == 0, "[", op.name, "] ", groups,
          " groups do not divide ", channels, " input channels and ", rows, " output channels");
  std::int64_t all_columns = 0;
  check(!__builtin_mul_overflow(weight.sizes()[1], groups, &all_columns), "[", op.name, "] weight ",
        weight.sizes(), " with ", groups, " groups has more channels than 64 bits can count");
  const std::int64_t taken = transposed ? rows : all_columns;
  check(taken == channels, "[", op.name, "] input of shape ", x.sizes(), " has ", channels,
        " channels, but weight ", weight.sizes(), " with ", groups, " groups takes ", taken);

  ConvGeometry g;
  g.dims = o.dims;
  g.n = x.sizes()[0], g.c = all_columns, g.k = rows, g.groups = groups;
  for (int i = 3 - o.dims; i < 3; ++i) {
    ConvAxis& a = g.axes[i];
    const int dim = i - 3 + o.dims + 2;
    a.window = weight.sizes()[dim];
    check(a.window >= 1, "[", op.name, "] weight has shape ", weight.sizes(), ": an empty window");
    check(a.window <= kMost, "[", op.name, "] weight has shape ", weight.sizes(), ": a window of more than ",
          kMost);
    a.stride = o.stride[i], a.padding = o.padding[i], a.dilation = o.dilation[i];
    if (transposed) {
      a.out = x.sizes()[dim];
      a.in = input_size(op, names.sides[i], a, o.output_padding[i]);
    } else {
      a.in = x.sizes()[dim];
      a.out = output_size(op, names.sides[i], a);
    }
  }
  if (transposed) checked_numel(op.name, g.x_sizes());
  g.channels_last = o.dims == 2 && (x.memory_format() == MemoryFormat::channels_last ||
                                    weight.memory_format() == MemoryFormat::channels_last);
  return g;
}

void check_operands(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  detail::check_defined(op.name, x);
  detail::check_defined(op.name, weight, "weight");
  op.check_dtype(x.dtype());
  check_matches(op.name, x, weight, "weight");
  check_matches(op.name, x, bias, "bias");
}

// ---- the three maps of a convolution, recorded. Each is linear in both of its operands, so its gradients
// are the other two maps. A backward calls them, and they record only if it runs with create_graph.

Tensor input_map(const Op& op, const ConvGeometry& g, const Tensor& dy, const Tensor& weight,
                 const Tensor& bias);
Tensor weight_map(const Op& op, const ConvGeometry& g, const Tensor& dy, const Tensor& x);

// The gradient of a relu with the result y, recorded in a pass with create_graph.
Tensor relu_gradient(const Backward& b, const Tensor& y) {
  const Tensor& dy = b.grad();
  if (b.create_graph()) return where(le(y, 0), zeros({}, TensorOptions(dy.dtype(), dy.device())), dy);
  return autograd::apply(kernels::slot<kernels::GradientOf<kernels::Relu>>, dy, y);
}

// y from x, weight and bias (or undefined), with a relu at the end if `relu` is true.
Tensor forward_map(const Op& op, const ConvGeometry& g, const Tensor& x, const Tensor& weight,
                   const Tensor& bias, bool relu = false) {
  const Tensor y = conv_forward(g, x, weight, bias, relu);
  if (recording(x, weight, bias))
    autograd::record(op, y, {&x, &weight, &bias},
                     [&op, x = save_if(weight, x), weight = save_if(x, weight), g, relu,
                      y = relu ? autograd::save_output(y) : autograd::SavedTensor()](Backward& b) {
                       const Tensor dy = relu ? relu_gradient(b, b.saved(y)) : b.grad();
                       if (b.needs(0)) b.set(0, input_map(op, g, dy, b.saved(weight), {}));
                       if (b.create_graph()) {
                         if (b.needs(1)) b.set(1, weight_map(op, g, dy, b.saved(x)));
                         if (b.needs(2)) b.set(2, sum(dy, all_but_channels(g.dims)));
                       } else if (b.needs(1) || b.needs(2)) {
                         const Tensor input = b.needs(1) ? b.saved(x) : Tensor();
                         const auto [dw, db] = conv_weight_gradient(g, dy, input, b.needs(1), b.needs(2));
                         if (dw.defined()) b.set(1, dw);
                         if (db.defined()) b.set(2, db);
                       }
                     });
  return y;
}

// dx from dy and weight, plus the bias (or undefined), which has one element per channel of x.
Tensor input_map(const Op& op, const ConvGeometry& g, const Tensor& dy, const Tensor& weight,
                 const Tensor& bias) {
  Tensor dx;
  if (bias.defined()) {
    const NoGradGuard no_grad;
    const DType sums = autograd::accumulation_dtype(dy.dtype());  // so that f16 and bf16 are rounded once
    dx = conv_input_gradient(g, converted(dy, sums), converted(weight, sums));
    dx.add_(per_channel(autograd::raw_contiguous(converted(bias, sums)), g.dims));
    dx = converted(dx, dy.dtype());
  } else {
    dx = conv_input_gradient(g, dy, weight);
  }
  if (recording(dy, weight, bias))
    autograd::record(op, dx, {&dy, &weight, &bias},
                     [&op, dy = save_if(weight, dy), weight = save_if(dy, weight), g](Backward& b) {
                       if (b.needs(0)) b.set(0, forward_map(op, g, b.grad(), b.saved(weight), {}));
                       if (b.needs(1)) b.set(1, weight_map(op, g, b.saved(dy), b.grad()));
                       if (b.needs(2)) b.set(2, sum(b.grad(), all_but_channels(g.dims)));
                     });
  return dx;
}

// dweight from dy and x.
Tensor weight_map(const Op& op, const ConvGeometry& g, const Tensor& dy, const Tensor& x) {
  const Tensor dw = conv_weight_gradient(g, dy, x, true, false).first;
  if (recording(dy, x))
    autograd::record(op, dw, {&dy, &x}, [&op, dy = save_if(x, dy), x = save_if(dy, x), g](Backward& b) {
      if (b.needs(0)) b.set(0, forward_map(op, g, b.saved(x), b.grad(), {}));
      if (b.needs(1)) b.set(1, input_map(op, g, b.saved(dy), b.grad(), {}));
    });
  return dw;
}

Tensor convolve(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias, const Options& o);

// The convolution with padding="same". The kernels pad both sides alike, so an odd number of zeros needs a
// padded copy of x.
Tensor convolve_same(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias, Options o) {
  check_numbers(op, "dilation", o.dilation, o.dims, 1);
  bool one = true, whole = true;
  for (int i = 3 - o.dims; i < 3; ++i) one = one && o.stride[i] == 1;
  check(one, "[", op.name, "] padding \"same\" with stride ", text(o.stride, o.dims),
        "; it needs stride 1, so give the padding as a number");
  check(weight.dim() == o.dims + 2, "[", op.name, "] weight has shape ", weight.sizes(), ", expected ",
        kNames[o.dims - 1].weight);
  std::vector<std::int64_t> ends;  // one more zero behind each dimension, from the last one
  for (int i = 2; i >= 3 - o.dims; --i) {
    const std::int64_t window = weight.sizes()[i - 3 + o.dims + 2];
    check(window >= 1 && window <= kMost && window - 1 <= kMost / o.dilation[i], "[", op.name,
          "] weight has shape ", weight.sizes(), " with dilation ", text(o.dilation, o.dims),
          ": an empty window, or one that spans more than ", kMost);
    const std::int64_t zeros = o.dilation[i] * (window - 1);
    o.padding[i] = zeros / 2;
    whole = whole && zeros % 2 == 0;
    ends.insert(ends.end(), {0, zeros % 2});
  }
  o.same = false;
  return convolve(op, whole ? x : pad(x, ends), weight, bias, o);
}

Tensor convolve(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias, const Options& o) {
  check_operands(op, x, weight, bias);
  if (x.dim() == o.dims + 1) return convolve(op, x.unsqueeze(0), weight, bias, o).squeeze(0);
  check(x.dim() == o.dims + 2, "[", op.name, "] input has shape ", x.sizes(), ", expected ",
        kNames[o.dims - 1].input);
  if (o.same) return convolve_same(op, x, weight, bias, o);
  const ConvGeometry g = checked_geometry(op, x, weight, o, false);
  autograd::check_vector(op.name, bias, "bias", g.k);
  return forward_map(op, g, x, weight, bias, o.relu);
}

Tensor convolve_transposed(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Options& o) {
  check_operands(op, x, weight, bias);
  if (x.dim() == o.dims + 1) return convolve_transposed(op, x.unsqueeze(0), weight, bias, o).squeeze(0);
  const ConvGeometry g = checked_geometry(op, x, weight, o, true);
  autograd::check_vector(op.name, bias, "bias", g.c);
  return input_map(op, g, x, weight, bias);
}

}  // namespace

bool detail::is_same_padding(std::string_view name) {
  check(name == "same" || name == "valid", "[conv] padding is \"", name,
        "\"; give \"same\", \"valid\" or numbers");
  return name == "same";
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dParams& params) {
  if (const autograd::Autocast cast(kConv1d, x, weight, bias); cast)
    return conv1d(cast(x), cast(weight), cast(bias), params);
  return convolve(kConv1d, x, weight, bias, options_of(params));
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dParams& params) {
  if (const autograd::Autocast cast(kConv2d, x, weight, bias); cast)
    return conv2d(cast(x), cast(weight), cast(bias), params);
  return convolve(kConv2d, x, weight, bias, options_of(params));
}
Tensor conv2d_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dParams& params) {
  if (const autograd::Autocast cast(kConv2dRelu, x, weight, bias); cast)
    return conv2d_relu(cast(x), cast(weight), cast(bias), params);
  Options o = options_of(params);
  o.relu = true;
  return convolve(kConv2dRelu, x, weight, bias, o);
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dParams& params) {
  if (const autograd::Autocast cast(kConv3d, x, weight, bias); cast)
    return conv3d(cast(x), cast(weight), cast(bias), params);
  return convolve(kConv3d, x, weight, bias, options_of(params));
}
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dParams& params) {
  if (const autograd::Autocast cast(kConvTranspose1d, x, weight, bias); cast)
    return conv_transpose1d(cast(x), cast(weight), cast(bias), params);
  return convolve_transposed(kConvTranspose1d, x, weight, bias, options_of(params));
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dParams& params) {
  if (const autograd::Autocast cast(kConvTranspose2d, x, weight, bias); cast)
    return conv_transpose2d(cast(x), cast(weight), cast(bias), params);
  return convolve_transposed(kConvTranspose2d, x, weight, bias, options_of(params));
}
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose3dParams& params) {
  if (const autograd::Autocast cast(kConvTranspose3d, x, weight, bias); cast)
    return conv_transpose3d(cast(x), cast(weight), cast(bias), params);
  return convolve_transposed(kConvTranspose3d, x, weight, bias, options_of(params));
}

}  // namespace tapestry
