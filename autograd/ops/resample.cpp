#include "tapestry/autograd/ops/resample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/resample.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/resample.h"

namespace tapestry {
namespace autograd {
namespace {

AxisMatrix transposed(const AxisMatrix& m) {
  AxisMatrix t;
  t.in = m.out, t.out = m.in;
  t.begin.assign(static_cast<std::size_t>(m.in) + 1, 0);
  for (const std::int32_t i : m.index) ++t.begin[static_cast<std::size_t>(i) + 1];
  for (std::size_t i = 0; i + 1 < t.begin.size(); ++i) t.begin[i + 1] += t.begin[i];
  t.index.resize(m.index.size());
  t.weight.resize(m.index.size());
  std::vector<std::int32_t> next(t.begin.begin(), t.begin.end() - 1);
  for (std::int64_t o = 0; o < m.out; ++o)
    for (std::int32_t e = m.begin[static_cast<std::size_t>(o)]; e < m.begin[static_cast<std::size_t>(o) + 1];
         ++e) {
      const auto entry = static_cast<std::size_t>(e);
      const auto to = static_cast<std::size_t>(next[static_cast<std::size_t>(m.index[entry])]++);
      t.index[to] = static_cast<std::int32_t>(o);
      t.weight[to] = m.weight[entry];
    }
  return t;
}

bool is_identity(const AxisMatrix& m) {
  if (m.in != m.out || static_cast<std::int64_t>(m.index.size()) != m.in) return false;
  for (std::size_t i = 0; i < m.index.size(); ++i)
    if (m.begin[i + 1] != static_cast<std::int32_t>(i + 1) || m.index[i] != static_cast<std::int32_t>(i) ||
        m.weight[i] != 1)
      return false;
  return true;
}

// Not recorded. `format` is the layout of the result.
Tensor resampled(const Tensor& x, const std::vector<AxisMatrix>& axes, MemoryFormat format) {
  const int first = x.dim() - static_cast<int>(axes.size());
  const bool channels_last = format == MemoryFormat::channels_last;
  Shape sizes = x.sizes();
  for (std::size_t i = 0; i < axes.size(); ++i) sizes[first + static_cast<int>(i)] = axes[i].out;
  const Tensor y = empty(sizes, {x.dtype(), x.device()}, format);
  if (y.numel() == 0) return y;  // the matrices have no empty axis, so x is empty too
  const Tensor dense = raw_contiguous(x, format);

  // The matrices move to the device as two arrays, which are the same for all axes.
  std::vector<std::int32_t> numbers;
  std::vector<double> weights;
  std::vector<bool> identity;
  for (const AxisMatrix& m : axes) {
    identity.push_back(is_identity(m));
    if (identity.back()) continue;
    numbers.insert(numbers.end(), m.begin.begin(), m.begin.end());
    numbers.insert(numbers.end(), m.index.begin(), m.index.end());
    weights.insert(weights.end(), m.weight.begin(), m.weight.end());
  }
  const Tensor on_device = uploaded(tensor(numbers, TensorOptions(DType::i32, kCPU)), x.device());
  const Tensor scales =
      uploaded(tensor(weights, TensorOptions(accumulation_dtype(x.dtype()), kCPU)), x.device());

  kernels::ResampleArgs args{};
  args.inner = channels_last ? x.sizes()[1] : 1;
  args.n = 1;
  for (int i = 0; i < first; ++i)
    if (!(channels_last && i == 1)) args.n *= x.sizes()[i];
  args.x = dense;
  args.y = y;
  std::int64_t number = 0, weight = 0;
  const auto part = [](const Tensor& t, std::int64_t& at, std::size_t n) {
    const Tensor p = t.narrow(0, at, static_cast<std::int64_t>(n));
    at += static_cast<std::int64_t>(n);
    return kernels::ConstArray(p);
  };
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const AxisMatrix& m = axes[i];
    kernels::ResampleAxis& axis = args.axes[3 - axes.size() + i];
    axis.in = m.in, axis.out = m.out;
    if (identity[i]) continue;
    axis.begin = part(on_device, number, m.begin.size());
    axis.index = part(on_device, number, m.index.size());
    axis.weight = part(scales, weight, m.weight.size());
  }
  kernels::resample(x.device(), x.dtype(), args);
  return y;
}

// The gradient of a linear map is the transposed map, in the layout of the forward pass.
Tensor resample_as(const Op& op, const Tensor& x, std::vector<AxisMatrix> axes, MemoryFormat format) {
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = resampled(x, axes, format);
  }
  if (recording(x))
    record(
        op, y, {&x},
        [&op, format, axes = std::make_shared<const std::vector<AxisMatrix>>(std::move(axes))](Backward& b) {
          std::vector<AxisMatrix> back;
          for (const AxisMatrix& m : *axes) back.push_back(transposed(m));
          b.set(0, resample_as(op, b.grad(), std::move(back), format));
        });
  return y;
}

}  // namespace

AxisMatrix fixed_windows(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                         std::int64_t padding, bool count_pad) {
  AxisMatrix m;
  m.in = in, m.out = out;
  for (std::int64_t i = 0; i < out; ++i, m.end_row()) {
    const std::int64_t start = i * stride - padding, stop = std::min(start + kernel, in + padding);
    const std::int64_t begin = std::clamp<std::int64_t>(start, 0, in), end = std::clamp(stop, begin, in);
    const double divisor = static_cast<double>(count_pad ? stop - start : end - begin);
    for (std::int64_t k = begin; k < end; ++k) m.add(k, 1 / divisor);
  }
  return m;
}

AxisMatrix adaptive_windows(std::int64_t in, std::int64_t out) {
  AxisMatrix m;
  m.in = in, m.out = out;
  for (std::int64_t i = 0; i < out; ++i, m.end_row()) {
    const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
    for (std::int64_t k = begin; k < end; ++k) m.add(k, 1 / static_cast<double>(end - begin));
  }
  return m;
}

Tensor resample(const Op& op, const Tensor& x, std::vector<AxisMatrix> axes) {
  for (const AxisMatrix& m : axes)
    check(m.in <= std::numeric_limits<std::int32_t>::max() &&
              m.out <= std::numeric_limits<std::int32_t>::max() &&
              m.index.size() <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
          "[", op.name, "] sizes ", m.in, " and ", m.out,
          " of one dimension are too large; at most 2^31 - 1");
  const bool channels_last = axes.size() == 2 && x.memory_format() == MemoryFormat::channels_last;
  return resample_as(op, x, std::move(axes),
                     channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
}

}  // namespace autograd

namespace {

using autograd::AxisMatrix;
using autograd::Grad;
using autograd::Op;

const Op kInterpolate("interpolate", Grad::twice, kFloats);

constexpr std::int64_t kLongestSide = std::numeric_limits<std::int32_t>::max();

struct Mode {
  const char* name;
  int dims;  // the number of spatial dimensions, or 0 for any
  bool aligns, filters;
};
const Mode& mode_of(InterpolateMode mode) {
  static constexpr Mode kModes[] = {{"nearest", 0, false, false},  {"nearest_exact", 0, false, false},
                                    {"linear", 1, true, false},    {"bilinear", 2, true, true},
                                    {"trilinear", 3, true, false}, {"bicubic", 2, true, true},
                                    {"area", 0, false, false}};
  return kModes[static_cast<int>(mode)];
}

// The mapping of an output's coordinate to the input: source = scale * o, or with the centres of the pixels,
// scale * (o + 1/2) - 1/2. std::fma gives the same bits whether this file is compiled for FMA or not.
struct Mapping {
  std::int64_t in, out;
  double scale;
  bool align_corners;

  double source(std::int64_t o) const {
    const auto at = static_cast<double>(o);
    return align_corners ? scale * at : std::fma(scale, at + 0.5, -0.5);
  }
};

// PyTorch multiplies in f32, and the rounding decides which of two elements is the nearest.
AxisMatrix nearest(const Mapping& m, bool exact) {
  AxisMatrix axis;
  const auto scale = static_cast<float>(m.scale);
  for (std::int64_t o = 0; o < m.out; ++o, axis.end_row()) {
    const float at = (static_cast<float>(o) + (exact ? 0.5f : 0.0f)) * scale;
    axis.add(std::min(static_cast<std::int64_t>(std::floor(at)), m.in - 1), 1);
  }
  return axis;
}

AxisMatrix linear(const Mapping& m) {
  AxisMatrix axis;
  for (std::int64_t o = 0; o < m.out; ++o, axis.end_row()) {
    const double at = std::max(m.source(o), 0.0);
    const std::int64_t below = std::min(static_cast<std::int64_t>(at), m.in - 1);
    const double part = std::clamp(at - static_cast<double>(below), 0.0, 1.0);
    axis.add(below, 1 - part);
    axis.add(std::min(below + 1, m.in - 1), part);
  }
  return axis;
}

// The cubic convolution kernel at distance x (Keys 1981, equation 4).
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return std::fma(std::fma(a + 2, x, -(a + 3)) * x, x, 1);
  return x < 2 ? std::fma(std::fma(std::fma(a, x, -5 * a), x, 8 * a), x, -4 * a) : 0;
}

AxisMatrix bicubic(const Mapping& m) {
  AxisMatrix axis;
  for (std::int64_t o = 0; o < m.out; ++o, axis.end_row()) {
    const double at = m.source(o), floor = std::floor(at);
    for (int k = -1; k <= 2; ++k)
      axis.add(std::clamp<std::int64_t>(static_cast<std::int64_t>(floor) + k, 0, m.in - 1),
               cubic(at - floor - k, -0.75));
  }
  return axis;
}

// The filter covers `scale` times as many pixels when the image shrinks. Its weights add up to 1.
AxisMatrix antialiased(const Mapping& m, bool is_cubic) {
  AxisMatrix axis;
  const double wider = std::max(m.scale, 1.0), reach = (is_cubic ? 2 : 1) * wider;
  for (std::int64_t o = 0; o < m.out; ++o, axis.end_row()) {
    const double center = m.scale * (static_cast<double>(o) + 0.5);
    const auto begin = std::max<std::int64_t>(static_cast<std::int64_t>(center - reach + 0.5), 0),
               end = std::min(static_cast<std::int64_t>(center + reach + 0.5), m.in);
    const std::size_t first = axis.weight.size();
    double sum = 0;
    for (std::int64_t k = begin; k < end; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) / wider;
      const double w = is_cubic ? cubic(x, -0.5) : std::max(1 - std::abs(x), 0.0);
      axis.add(k, w);
      sum += w;
    }
    for (std::size_t k = first; k < axis.weight.size() && sum != 0; ++k) axis.weight[k] /= sum;
  }
  return axis;
}

AxisMatrix matrix_of(const Mapping& m, InterpolateMode mode, bool antialias) {
  AxisMatrix axis;
  switch (mode) {
    case InterpolateMode::nearest:
      axis = nearest(m, false);
      break;
    case InterpolateMode::nearest_exact:
      axis = nearest(m, true);
      break;
    case InterpolateMode::area:
      axis = autograd::adaptive_windows(m.in, m.out);
      break;
    case InterpolateMode::bicubic:
      axis = antialias ? antialiased(m, true) : bicubic(m);
      break;
    default:
      axis = antialias ? antialiased(m, false) : linear(m);
  }
  axis.in = m.in, axis.out = m.out;
  return axis;
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateParams& params) {
  if (const autograd::Autocast cast(kInterpolate, x); cast) return interpolate(cast(x), params);
  detail::check_defined(kInterpolate.name, x);
  kInterpolate.check_dtype(x.dtype());
  const Mode& mode = mode_of(params.mode);
  check(x.dim() >= 3 && x.dim() <= 5, "[interpolate] an input of shape ", x.sizes(),
        "; expected (N, C, L), (N, C, H, W) or (N, C, D, H, W)");
  const int dims = x.dim() - 2;
  check(mode.dims == 0 || mode.dims == dims, "[interpolate] mode ", mode.name, " takes inputs of ",
        mode.dims + 2, " dimensions, got shape ", x.sizes(),
        "; use linear for 3, bilinear or bicubic for 4, trilinear for 5");
  check(mode.aligns || !params.align_corners, "[interpolate] mode ", mode.name,
        " has no align_corners; leave it out, or use a linear mode or bicubic");
  check(mode.filters || !params.antialias, "[interpolate] mode ", mode.name,
        " has no antialias; use bilinear or bicubic");
  std::vector<double> factors = params.scale_factor.factors;
  check(params.size.empty() != factors.empty(), "[interpolate] give either size or scale_factor, not ",
        factors.empty() ? "neither" : "both");
  check(factors.empty() || factors.size() == 1 || factors.size() == static_cast<std::size_t>(dims),
        "[interpolate] ", factors.size(), " scale factors for ", dims, " spatial dimensions; give one, or ",
        dims);
  check(params.size.size() <= 1 || params.size.size() == dims, "[interpolate] size ", params.size, " for ",
        dims, " spatial dimensions; give one number, or ", dims);
  check(!params.recompute_scale_factor || !factors.empty(),
        "[interpolate] recompute_scale_factor without a scale_factor; leave it out, because `size` already "
        "gives the scale");
  if (factors.size() == 1) factors.resize(static_cast<std::size_t>(dims), factors[0]);

  std::vector<Mapping> mappings;
  for (int d = 0; d < dims; ++d) {
    Mapping m{
        .in = x.sizes()[d + 2], .out = 0, .scale = 0, .align_corners = params.align_corners.value_or(false)};
    check(m.in >= 1, "[interpolate] an input of shape ", x.sizes(), " has images without pixels");
    double factor = 0;
    if (factors.empty()) {
      m.out = params.size[params.size.size() == 1 ? 0 : d];
    } else {
      factor = factors[static_cast<std::size_t>(d)];
      const double size = std::floor(static_cast<double>(m.in) * factor);
      check(factor > 0 && size <= static_cast<double>(kLongestSide), "[interpolate] scale factor ", factor,
            " for a size of ", m.in, "; the result must have from 1 to 2^31 - 1 pixels");
      m.out = static_cast<std::int64_t>(size);
    }
    check(m.in <= kLongestSide && m.out >= 1 && m.out <= kLongestSide, "[interpolate] size ", m.out,
          " from a size of ", m.in, "; both must be from 1 to 2^31 - 1");
    const bool given = factor > 0 && !params.recompute_scale_factor;
    if (m.align_corners)
      m.scale = m.out > 1 ? static_cast<double>(m.in - 1) / static_cast<double>(m.out - 1) : 0;
    else m.scale = given ? 1 / factor : static_cast<double>(m.in) / static_cast<double>(m.out);
    mappings.push_back(m);
  }
  // The tables below have an entry for each line of pixels. So a result that is too large for the memory
  // fails here, before they are computed. Its memory goes back to the allocator, which gives it to the real
  // result.
  Shape sizes = x.sizes();
  for (int d = 0; d < dims; ++d) sizes[d + 2] = mappings[static_cast<std::size_t>(d)].out;
  empty(sizes, {x.dtype(), x.device()});
  std::vector<AxisMatrix> axes;
  for (const Mapping& m : mappings) axes.push_back(matrix_of(m, params.mode, params.antialias));
  return autograd::resample(kInterpolate, x, std::move(axes));
}

}  // namespace tapestry
