// Pools in one and three dimensions, adaptive maxima, power averages, and the inverse of maximum pools. Lines
// are images of one row. The maximum over a volume is the maximum over its planes and then over their depth;
// this keeps the order in which the elements of a window are compared. Averages over volumes are products
// with one matrix per axis.
#include <algorithm>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/pool.h"
#include "tapestry/autograd/ops/internal/resample.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

using autograd::Grad;
using autograd::MaxPooled;
using autograd::Op;

const Op kMaxPool1d("max_pool1d", Grad::twice, kFloats);
const Op kMaxPool3d("max_pool3d", Grad::twice, kFloats);
const Op kAvgPool1d("avg_pool1d", Grad::twice, kFloats);
const Op kAvgPool3d("avg_pool3d", Grad::twice, kFloats);
const Op kLpPool1d("lp_pool1d", Grad::twice, kFloats);
const Op kLpPool2d("lp_pool2d", Grad::twice, kFloats);
const Op kLpPool3d("lp_pool3d", Grad::twice, kFloats);
const Op kAdaptiveAvgPool1d("adaptive_avg_pool1d", Grad::twice, kFloats);
const Op kAdaptiveAvgPool3d("adaptive_avg_pool3d", Grad::twice, kFloats);
const Op kAdaptiveMaxPool1d("adaptive_max_pool1d", Grad::twice, kFloats);
const Op kAdaptiveMaxPool2d("adaptive_max_pool2d", Grad::twice, kFloats);
const Op kAdaptiveMaxPool3d("adaptive_max_pool3d", Grad::twice, kFloats);
const Op kMaxUnpool1d("max_unpool1d", Grad::twice, kFloats);
const Op kMaxUnpool2d("max_unpool2d", Grad::twice, kFloats);
const Op kMaxUnpool3d("max_unpool3d", Grad::twice, kFloats);

constexpr const char* kShapes[] = {"(N, C, L) or (C, L)", "(N, C, H, W) or (C, H, W)",
                                   "(N, C, D, H, W) or (C, D, H, W)"};

// Checks that x has `dims` dimensions after those of channels and, perhaps, samples.
void check_input(const Op& op, const Tensor& x, int dims) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  check(x.dim() == dims + 1 || x.dim() == dims + 2, "[", op.name, "] input has shape ", x.sizes(),
        ", expected ", kShapes[dims - 1]);
  for (int d = x.dim() - dims; d < x.dim(); ++d)
    check(x.sizes()[d] >= 1, "[", op.name, "] input of shape ", x.sizes(), " has images without pixels");
}

// A line as an image of one row, and back.
Tensor to_image(const Tensor& x) { return unsqueeze(x, -2); }
Tensor to_line(const Tensor& x) { return squeeze(x, -2); }
Pool2dParams to_image(const Pool1dParams& p) {
  return {.kernel_size = {1, p.kernel_size},
          .stride = {1, p.stride},
          .padding = {0, p.padding},
          .dilation = {1, p.dilation},
          .ceil_mode = p.ceil_mode,
          .count_include_pad = p.count_include_pad};
}

// One number per dimension of a volume.
Shape three(const Op& op, const char* what, const Shape& value) {
  check(value.size() == 1 || value.size() == 3, "[", op.name, "] ", what, " ", value,
        "; give one number, or three for depth, height and width");
  return value.size() == 3 ? value : Shape::filled(3, value[0]);
}

// The checked windows of a volume. A volume (C, D, H, W) is treated as one sample.
struct Volume {
  Shape kernel, stride, padding, dilation;
  Shape in, out;  // (D, H, W)
  std::int64_t n, c;

  Volume(const Op& op, const Tensor& x, const Pool3dParams& p)
      : kernel(three(op, "kernel_size", p.kernel_size.empty() ? Shape(0) : p.kernel_size)),
        stride(p.stride.empty() ? kernel : three(op, "stride", p.stride)),
        padding(three(op, "padding", p.padding)),
        dilation(three(op, "dilation", p.dilation)) {
    check_input(op, x, 3);
    const int first = x.dim() - 3;
    n = first == 2 ? x.sizes()[0] : 1;
    c = x.sizes()[first - 1];
    const auto positive = [](const Shape& s) {
      return std::all_of(s.begin(), s.end(), [](std::int64_t v) {
        return v >= 1 && v <= std::numeric_limits<std::int32_t>::max();
      });
    };
    check(positive(kernel), "[", op.name, "] kernel_size ", kernel, ", expected from 1 to 2^31 - 1");
    for (int d = 0; d < 3; ++d)
      if (stride[d] == 0) stride[d] = kernel[d];
    check(positive(stride), "[", op.name, "] stride ", stride, ", expected from 1 to 2^31 - 1");
    check(positive(dilation), "[", op.name, "] dilation ", dilation, ", expected from 1 to 2^31 - 1");
    for (int d = 0; d < 3; ++d) {
      check(padding[d] >= 0 && padding[d] <= kernel[d] / 2, "[", op.name, "] padding ", padding,
            ", expected from 0 to half of the kernel's size");
      in.push_back(x.sizes()[first + d]);
      out.push_back(autograd::pool_size(in[d], kernel[d], stride[d], padding[d], dilation[d], p.ceil_mode));
      check(out[d] >= 1, "[", op.name, "] a window of ", kernel, " with padding ", padding, " and dilation ",
            dilation, " does not fit an input of shape ", x.sizes());
    }
  }
};

struct Maxima {
  Tensor y, indices;  // indices are undefined unless they were asked for
};
using Maximum = std::pair<Tensor, Tensor>;

// The maximum over the second to last dimension, after the planes' maxima `m` (N, C, D, P Q). Their indices
// are within a plane of `plane` pixels.
Maxima over_depth(const Op& op, const Maxima& m, const Pool2dParams& params, std::int64_t plane,
                  const std::vector<std::int64_t>& depths = {}) {
  const MaxPooled pooled = autograd::max_pooled(op, m.y, params, m.indices.defined());
  if (!m.indices.defined()) return {pooled.y, {}};
  const NoGradGuard no_grad;
  // A window in the padding has no place; its plane is then the first one.
  const Tensor depth = autograd::flat_indices(pooled).floor_divide(m.y.sizes()[3]).clamp(0);
  Tensor at = depth;
  if (!depths.empty()) {
    const Tensor table = autograd::uploaded(depths, m.y.device());
    at = index_select(table, 0, depth.flatten()).view(depth.sizes());
  }
  const Tensor inner = gather(m.indices, 2, depth);
  return {pooled.y, where(inner < 0, inner, inner + at * plane)};
}

Maxima max_line(const Op& op, const Tensor& x, const Pool1dParams& params, bool with_indices) {
  check_input(op, x, 1);
  const MaxPooled pooled = autograd::max_pooled(op, to_image(x), to_image(params), with_indices);
  return {to_line(pooled.y), with_indices ? to_line(autograd::flat_indices(pooled)) : Tensor()};
}

Maxima max_volume(const Tensor& x, const Pool3dParams& params, bool with_indices) {
  const Op& op = kMaxPool3d;
  const Volume v(op, x, params);
  const std::int64_t pixels = v.out[1] * v.out[2];
  const MaxPooled planes = autograd::max_pooled(op, reshape(x, {v.n, v.c * v.in[0], v.in[1], v.in[2]}),
                                                {.kernel_size = {v.kernel[1], v.kernel[2]},
                                                 .stride = {v.stride[1], v.stride[2]},
                                                 .padding = {v.padding[1], v.padding[2]},
                                                 .dilation = {v.dilation[1], v.dilation[2]},
                                                 .ceil_mode = params.ceil_mode},
                                                with_indices);
  const Shape split{v.n, v.c, v.in[0], pixels};
  const Maxima m{reshape(planes.y, split),
                 with_indices ? reshape(autograd::flat_indices(planes), split) : Tensor()};
  const Maxima result = over_depth(op, m,
                                   {.kernel_size = {v.kernel[0], 1},
                                    .stride = {v.stride[0], 1},
                                    .padding = {v.padding[0], 0},
                                    .dilation = {v.dilation[0], 1},
                                    .ceil_mode = params.ceil_mode},
                                   v.in[1] * v.in[2]);
  Shape sizes{v.n, v.c, v.out[0], v.out[1], v.out[2]};
  if (x.dim() == 4) sizes.erase(0);
  return {reshape(result.y, sizes), with_indices ? reshape(result.indices, sizes) : Tensor()};
}

// ---- adaptive maxima: the windows may overlap and differ in length

// Windows [floor(i in / out), ceil((i + 1) in / out)) as tiles of equal length: shorter windows repeat their
// last element, which changes neither the maximum nor, of equal elements, the first one.
struct Tiles {
  std::int64_t length;
  std::vector<std::int64_t> from;  // the element at each place; empty if the windows are tiles already

  Tiles(std::int64_t in, std::int64_t out) : length((in + out - 1) / out) {
    if (in % out == 0) return;
    const auto begin = [&](std::int64_t i) { return i * in / out; };
    const auto end = [&](std::int64_t i) { return ((i + 1) * in + out - 1) / out; };
    for (std::int64_t i = 0; i < out; ++i) length = std::max(length, end(i) - begin(i));
    for (std::int64_t i = 0; i < out; ++i)
      for (std::int64_t k = 0; k < length; ++k) from.push_back(std::min(begin(i) + k, end(i) - 1));
  }
  Tensor arrange(const Tensor& x, int dim) const {
    if (from.empty()) return x;
    return index_select(x, dim, autograd::uploaded(from, x.device()));
  }
  std::int64_t at(std::int64_t place) const {
    return from.empty() ? place : from[static_cast<std::size_t>(place)];
  }
};

void check_output(const Op& op, const Shape& size) {
  for (const std::int64_t n : size)
    check(n >= 0 && n <= std::numeric_limits<std::int32_t>::max(), "[", op.name, "] output size ", size,
          ", expected from 0 to 2^31 - 1");
}

bool has_zero(const Shape& size) { return std::find(size.begin(), size.end(), 0) != size.end(); }

// The result of adaptive pools without windows: (N, C) of x and then `size`. The gradient of x is 0.
Tensor no_windows(const Tensor& x, const Shape& size) {
  Shape sizes = x.sizes();
  for (int d = 0; d < size.size(); ++d) sizes[x.dim() - size.size() + d] = size[d];
  Tensor part = x;
  for (int d = x.dim() - size.size(); d < x.dim(); ++d) part = part.narrow(d, 0, 0);
  return part.reshape(sizes);
}

// x is (N, C, H, W) or (C, H, W).
Maxima adaptive_maxima(const Op& op, const Tensor& x, Pair size, bool with_indices) {
  check_output(op, {size.h, size.w});
  if (const Shape out{size.h, size.w}; has_zero(out)) {
    const Tensor y = no_windows(x, out);
    return {y, with_indices ? y.detach().to(DType::i64) : Tensor()};
  }
  const std::int64_t height = x.sizes()[x.dim() - 2], width = x.sizes()[x.dim() - 1];
  const Tiles rows(height, size.h), columns(width, size.w);
  const Tensor tiles = columns.arrange(rows.arrange(x, x.dim() - 2), x.dim() - 1);
  const MaxPooled pooled =
      autograd::max_pooled(op, tiles, {.kernel_size = {rows.length, columns.length}}, with_indices);
  if (!with_indices) return {pooled.y, {}};
  const NoGradGuard no_grad;
  Tensor indices = autograd::flat_indices(pooled);
  if (!rows.from.empty() || !columns.from.empty()) {
    std::vector<std::int64_t> table;
    for (std::int64_t h = 0; h < size.h * rows.length; ++h)
      for (std::int64_t w = 0; w < size.w * columns.length; ++w)
        table.push_back(rows.at(h) * width + columns.at(w));
    indices = index_select(autograd::uploaded(table, x.device()), 0, indices.flatten()).view(indices.sizes());
  }
  return {pooled.y, indices};
}

Maxima adaptive_maxima_of_volume(const Tensor& x, const Shape& output_size, bool with_indices) {
  const Op& op = kAdaptiveMaxPool3d;
  const Shape out = three(op, "output_size", output_size);
  check_input(op, x, 3);
  check_output(op, out);
  if (has_zero(out)) {
    const Tensor y = no_windows(x, out);
    return {y, with_indices ? y.detach().to(DType::i64) : Tensor()};
  }
  const int first = x.dim() - 3;
  const std::int64_t n = first == 2 ? x.sizes()[0] : 1, c = x.sizes()[first - 1], depth = x.sizes()[first],
                     height = x.sizes()[first + 1], width = x.sizes()[first + 2];
  const Maxima planes =
      adaptive_maxima(op, reshape(x, {n, c * depth, height, width}), {out[1], out[2]}, with_indices);
  const Shape split{n, c, depth, out[1] * out[2]};
  const Tiles tiles(depth, out[0]);
  Maxima m{tiles.arrange(reshape(planes.y, split), 2), {}};
  if (with_indices) m.indices = tiles.arrange(reshape(planes.indices, split), 2);
  const Maxima result = over_depth(op, m, {.kernel_size = {tiles.length, 1}}, height * width, tiles.from);
  Shape sizes{n, c, out[0], out[1], out[2]};
  if (x.dim() == 4) sizes.erase(0);
  return {reshape(result.y, sizes), with_indices ? reshape(result.indices, sizes) : Tensor()};
}

Maxima adaptive_maxima_of_line(const Tensor& x, std::int64_t output_size, bool with_indices) {
  check_input(kAdaptiveMaxPool1d, x, 1);
  const Maxima m = adaptive_maxima(kAdaptiveMaxPool1d, to_image(x), {1, output_size}, with_indices);
  return {to_line(m.y), with_indices ? to_line(m.indices) : Tensor()};
}

// (sum of x^p)^(1 / p), where `average` is the average of x^p over windows of `elements` elements.
Tensor power_mean(const Tensor& average, double elements, double p) {
  return pow(mul(average, elements), 1 / p);
}
void check_norm(const Op& op, const Tensor& x, double norm_type, bool plain) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  check(norm_type != 0, "[", op.name, "] norm_type 0; give a power");
  check(plain, "[", op.name,
        "] takes kernel_size, stride and ceil_mode only; leave padding and dilation out");
}

// ---- inverse of maximum pools

Tensor unpooled(const Op& op, const Tensor& x, const Tensor& indices, const Shape& kernel,
                const Shape& stride, const Shape& padding, const Shape& output_size) {
  const int dims = kernel.size();
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  autograd::check_operands(op, x, indices);
  check(x.dim() == dims + 1 || x.dim() == dims + 2, "[", op.name, "] input has shape ", x.sizes(),
        ", expected ", kShapes[dims - 1]);
  check<TypeError>(autograd::is_index(indices.dtype()), "[", op.name, "] indices are ", indices.dtype(),
                   "; give those of the maximum pool, which are int64");
  check(indices.sizes() == x.sizes(), "[", op.name, "] indices have shape ", indices.sizes(),
        " and the input ", x.sizes(), "; both must be equal");
  const int first = x.dim() - dims;
  check(output_size.empty() || output_size.size() == dims || output_size.size() == x.dim(), "[", op.name,
        "] output_size ", output_size, "; give ", dims, " sizes, or those of the whole tensor");
  Shape sizes = x.sizes();
  std::int64_t plane = 1, pooled = 1;
  for (int d = 0; d < dims; ++d) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    check(kernel[d] >= 1 && stride[d] >= 1 && padding[d] >= 0 && kernel[d] <= kMost && stride[d] <= kMost &&
              padding[d] <= kMost,
          "[", op.name, "] kernel_size ", kernel, ", stride ", stride, " and padding ", padding,
          "; the first two must be from 1, and padding from 0 to 2^31 - 1");
    const std::int64_t usual = (x.sizes()[first + d] - 1) * stride[d] - 2 * padding[d] + kernel[d];
    std::int64_t& size = sizes[first + d];
    pooled *= size;
    size = usual;
    if (!output_size.empty()) {
      size = output_size[output_size.size() - dims + d];
      check(size > usual - stride[d] && size < usual + stride[d], "[", op.name, "] output_size ", output_size,
            ", but dimension ", d, " of the images may have more than ", usual - stride[d], " and less than ",
            usual + stride[d], " elements");
    }
    check(size >= 1, "[", op.name, "] the result's dimension ", first + d, " would have ", size,
          " elements; use a larger kernel_size or less padding");
    plane *= size;
  }
  Shape flat(x.sizes().begin(), static_cast<std::size_t>(first));
  flat.push_back(pooled);
  const Tensor at = reshape(indices.detach(), flat).to(DType::i64);
  if (x.device().is_cpu() && at.numel() > 0) {
    const std::int64_t low = amin(at).item<std::int64_t>(), high = amax(at).item<std::int64_t>();
    check<IndexError>(low >= 0 && high < plane, "[", op.name, "] index ", low < 0 ? low : high,
                      " is outside [0, ", plane,
                      "), the elements of an image of the result; give the pool's "
                      "input size as output_size");
  }
  Shape wide = flat;
  wide.back() = plane;
  const Tensor y = scatter(zeros(wide, {x.dtype(), x.device()}), -1, at, reshape(x, flat));
  return reshape(y, sizes);
}

Maximum both(const Maxima& m) { return {m.y, m.indices}; }

}  // namespace

Tensor max_pool1d(const Tensor& x, const Pool1dParams& params) {
  return max_line(kMaxPool1d, x, params, false).y;
}
Tensor max_pool3d(const Tensor& x, const Pool3dParams& params) {
  if (const autograd::Autocast cast(kMaxPool3d, x); cast) return max_pool3d(cast(x), params);
  return max_volume(x, params, false).y;
}
Maximum max_pool1d_with_indices(const Tensor& x, const Pool1dParams& params) {
  return both(max_line(kMaxPool1d, x, params, true));
}
Maximum max_pool3d_with_indices(const Tensor& x, const Pool3dParams& params) {
  if (const autograd::Autocast cast(kMaxPool3d, x); cast) return max_pool3d_with_indices(cast(x), params);
  return both(max_volume(x, params, true));
}

Tensor avg_pool1d(const Tensor& x, const Pool1dParams& params) {
  check_input(kAvgPool1d, x, 1);
  return to_line(autograd::average_pooled(kAvgPool1d, to_image(x), to_image(params)));
}
Tensor avg_pool3d(const Tensor& x, const Pool3dParams& params) {
  if (const autograd::Autocast cast(kAvgPool3d, x); cast) return avg_pool3d(cast(x), params);
  const Volume v(kAvgPool3d, x, params);
  check(v.dilation == Shape{1, 1, 1}, "[avg_pool3d] dilation ", v.dilation,
        ", but only maximum pools have one");
  std::vector<autograd::AxisMatrix> axes;
  for (int d = 0; d < 3; ++d)
    axes.push_back(autograd::fixed_windows(v.in[d], v.out[d], v.kernel[d], v.stride[d], v.padding[d],
                                           params.count_include_pad));
  return autograd::resample(kAvgPool3d, x, std::move(axes));
}

Tensor lp_pool1d(const Tensor& x, double norm_type, const Pool1dParams& params) {
  check_norm(kLpPool1d, x, norm_type, params.padding == 0 && params.dilation == 1);
  return power_mean(avg_pool1d(pow(x, norm_type), params), static_cast<double>(params.kernel_size),
                    norm_type);
}
Tensor lp_pool2d(const Tensor& x, double norm_type, const Pool2dParams& params) {
  check_norm(kLpPool2d, x, norm_type, params.padding == Pair(0) && params.dilation == Pair(1));
  return power_mean(avg_pool2d(pow(x, norm_type), params),
                    static_cast<double>(params.kernel_size.h) * static_cast<double>(params.kernel_size.w),
                    norm_type);
}
Tensor lp_pool3d(const Tensor& x, double norm_type, const Pool3dParams& params) {
  check_norm(kLpPool3d, x, norm_type, params.padding == Shape(0) && params.dilation == Shape(1));
  const Tensor average = avg_pool3d(pow(x, norm_type), params);
  double elements = 1;
  for (const std::int64_t n : three(kLpPool3d, "kernel_size", params.kernel_size))
    elements *= static_cast<double>(n);
  return power_mean(average, elements, norm_type);
}

Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output_size) {
  check_input(kAdaptiveAvgPool1d, x, 1);
  return to_line(autograd::adaptively_averaged(kAdaptiveAvgPool1d, to_image(x), {1, output_size}));
}
Tensor adaptive_avg_pool3d(const Tensor& x, const Shape& output_size) {
  if (const autograd::Autocast cast(kAdaptiveAvgPool3d, x); cast)
    return adaptive_avg_pool3d(cast(x), output_size);
  const Shape out = three(kAdaptiveAvgPool3d, "output_size", output_size);
  check_input(kAdaptiveAvgPool3d, x, 3);
  check_output(kAdaptiveAvgPool3d, out);
  if (has_zero(out)) return no_windows(x, out);
  std::vector<autograd::AxisMatrix> axes;
  for (int d = 0; d < 3; ++d) axes.push_back(autograd::adaptive_windows(x.sizes()[x.dim() - 3 + d], out[d]));
  return autograd::resample(kAdaptiveAvgPool3d, x, std::move(axes));
}

Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output_size) {
  return adaptive_maxima_of_line(x, output_size, false).y;
}
Tensor adaptive_max_pool2d(const Tensor& x, Pair output_size) {
  check_input(kAdaptiveMaxPool2d, x, 2);
  return adaptive_maxima(kAdaptiveMaxPool2d, x, output_size, false).y;
}
Tensor adaptive_max_pool3d(const Tensor& x, const Shape& output_size) {
  if (const autograd::Autocast cast(kAdaptiveMaxPool3d, x); cast)
    return adaptive_max_pool3d(cast(x), output_size);
  return adaptive_maxima_of_volume(x, output_size, false).y;
}
Maximum adaptive_max_pool1d_with_indices(const Tensor& x, std::int64_t output_size) {
  return both(adaptive_maxima_of_line(x, output_size, true));
}
Maximum adaptive_max_pool2d_with_indices(const Tensor& x, Pair output_size) {
  check_input(kAdaptiveMaxPool2d, x, 2);
  return both(adaptive_maxima(kAdaptiveMaxPool2d, x, output_size, true));
}
Maximum adaptive_max_pool3d_with_indices(const Tensor& x, const Shape& output_size) {
  if (const autograd::Autocast cast(kAdaptiveMaxPool3d, x); cast)
    return adaptive_max_pool3d_with_indices(cast(x), output_size);
  return both(adaptive_maxima_of_volume(x, output_size, true));
}

Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const Pool1dParams& p, const Shape& output_size) {
  return unpooled(kMaxUnpool1d, x, indices, {p.kernel_size}, {p.stride ? p.stride : p.kernel_size},
                  {p.padding}, output_size);
}
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const Pool2dParams& p, const Shape& output_size) {
  if (const autograd::Autocast cast(kMaxUnpool2d, x); cast)
    return max_unpool2d(cast(x), indices, p, output_size);
  return unpooled(kMaxUnpool2d, x, indices, {p.kernel_size.h, p.kernel_size.w},
                  {p.stride.h ? p.stride.h : p.kernel_size.h, p.stride.w ? p.stride.w : p.kernel_size.w},
                  {p.padding.h, p.padding.w}, output_size);
}
Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const Pool3dParams& p, const Shape& output_size) {
  if (const autograd::Autocast cast(kMaxUnpool3d, x); cast)
    return max_unpool3d(cast(x), indices, p, output_size);
  const Op& op = kMaxUnpool3d;
  const Shape kernel = three(op, "kernel_size", p.kernel_size.empty() ? Shape(0) : p.kernel_size);
  return unpooled(op, x, indices, kernel, p.stride.empty() ? kernel : three(op, "stride", p.stride),
                  three(op, "padding", p.padding), output_size);
}

}  // namespace tapestry
