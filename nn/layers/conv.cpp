#include "tapestry/nn/layers/conv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
// The numbers of an extent, of the first dimension first.
Shape list(std::int64_t n) { return {n}; }
Shape list(Pair p) { return {p.h, p.w}; }
Shape list(Triple t) { return {t.d, t.h, t.w}; }
template <int kDims>
Shape list(const ConvPadding<kDims>& p) {
  return list(p.sides);
}

std::string text(const Shape& s) {
  std::string numbers;
  for (const std::int64_t n : s) numbers += (numbers.empty() ? "" : ", ") + std::to_string(n);
  return s.size() == 1 ? numbers : "(" + numbers + ")";
}
bool all_at_least(const Shape& s, std::int64_t least) {
  return std::all_of(s.begin(), s.end(), [=](std::int64_t n) { return n >= least; });
}
bool all_at_most(const Shape& s, std::int64_t most) {
  return std::all_of(s.begin(), s.end(), [=](std::int64_t n) { return n <= most; });
}
// The operations have the same limit. A product of two such numbers fits into i64.
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// Checks the options that both kinds of layer have. Returns the spatial dimensions of the weight.
template <class Options>
Shape checked_kernel(const std::string& name, const Options& o) {
  const Shape kernel = list(o.kernel_size), stride = list(o.stride), padding = list(o.padding),
              dilation = list(o.dilation);
  check(o.in_channels > 0 && o.out_channels > 0, "[", name,
        "] in_channels and out_channels must be positive but are ", o.in_channels, " and ", o.out_channels,
        "; set both");
  check(all_at_least(kernel, 1), "[", name, "] kernel_size must be positive but is ", text(kernel),
        "; set it");
  check(all_at_least(stride, 1) && all_at_least(dilation, 1), "[", name,
        "] stride and dilation must be positive but are ", text(stride), " and ", text(dilation));
  check(all_at_least(padding, 0), "[", name, "] padding must not be negative but is ", text(padding));
  for (const Shape& numbers : {kernel, stride, padding, dilation})
    check(all_at_most(numbers, kMost), "[", name, "] kernel_size, stride, padding and dilation are at most ",
          kMost, " but one is ", text(numbers));
  check(o.groups > 0 && o.in_channels % o.groups == 0 && o.out_channels % o.groups == 0, "[", name,
        "] groups must divide in_channels ", o.in_channels, " and out_channels ", o.out_channels, " but is ",
        o.groups);
  return kernel;
}

Tensor initial_weight(std::int64_t first, std::int64_t second, const Shape& kernel) {
  Shape sizes{first, second};
  for (const std::int64_t n : kernel) sizes.push_back(n);
  return init::kaiming_uniform_(empty(sizes), std::sqrt(5.0));
}
Tensor initial_bias(bool wanted, std::int64_t channels, const Tensor& weight) {
  if (!wanted) return {};
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight).in));
  return init::uniform_(empty({channels}), -bound, bound);
}

template <int kDims>
Tensor weight_of(const ConvOptions<kDims>& o) {
  const std::string name = "Conv" + std::to_string(kDims) + "d";
  const Shape kernel = checked_kernel(name, o);
  check(!o.padding.same || o.stride == Extent<kDims>(1), "[", name, "] padding \"same\" with stride ",
        text(list(o.stride)), "; it needs stride 1, so give the padding as a number");
  return initial_weight(o.out_channels, o.in_channels / o.groups, kernel);
}
template <int kDims>
Tensor weight_of(const ConvTransposeOptions<kDims>& o) {
  const std::string name = "ConvTranspose" + std::to_string(kDims) + "d";
  const Shape kernel = checked_kernel(name, o), extra = list(o.output_padding), stride = list(o.stride),
              dilation = list(o.dilation);
  for (int i = 0; i < kDims; ++i)
    check(extra[i] >= 0 && extra[i] < std::max(stride[i], dilation[i]), "[", name, "] output_padding ",
          text(extra), " must not be negative, and less than stride ", text(stride), " or dilation ",
          text(dilation));
  return initial_weight(o.in_channels, o.out_channels / o.groups, kernel);
}

void check_input(const char* op, const Tensor& x, int dims, std::int64_t channels) {
  constexpr const char* kSides[] = {", L)", ", H, W)", ", D, H, W)"};
  tapestry::detail::check_defined(op, x);
  check((x.dim() == dims + 2 && x.size(1) == channels) || (x.dim() == dims + 1 && x.size(0) == channels), "[",
        op, "] expected an input of shape (N, ", channels, kSides[dims - 1], " but got ", x.sizes(),
        "; reshape it, or set in_channels (N may be absent)");
}

// The functions by their number of dimensions.
template <int kDims>
struct Functions;
template <>
struct Functions<1> {
  static constexpr auto *kConv = &conv1d, *kTranspose = &conv_transpose1d;
};
template <>
struct Functions<2> {
  static constexpr auto *kConv = &conv2d, *kTranspose = &conv_transpose2d;
};
template <>
struct Functions<3> {
  static constexpr auto *kConv = &conv3d, *kTranspose = &conv_transpose3d;
};

template <class Sides>
void add_padding(detail::OptionsText& out, const Sides& sides) {
  out.add("padding", sides, Sides(0));
}
template <int kDims>
void add_padding(detail::OptionsText& out, const ConvPadding<kDims>& padding) {
  if (padding.same) out.add("padding", "same");
  else add_padding(out, padding.sides);
}

template <class Options>
detail::OptionsText common_text(const Options& o) {
  detail::OptionsText out;
  out.add("in_channels", o.in_channels)
      .add("out_channels", o.out_channels)
      .add("kernel_size", o.kernel_size)
      .add("stride", o.stride);
  add_padding(out, o.padding);
  out.add("dilation", o.dilation, decltype(o.dilation)(1));
  return out;
}
const char* name_of(PadMode mode) {
  return mode == PadMode::reflect     ? "reflect"
         : mode == PadMode::replicate ? "replicate"
         : mode == PadMode::circular  ? "circular"
                                      : "zeros";
}
}  // namespace

// ---- Conv ----

template <int kDims>
Conv<kDims>::Conv(const Options& o)
    : options(o),
      weight(param("weight", weight_of(o))),
      bias(param("bias", initial_bias(o.bias, o.out_channels, weight))) {}

template <int kDims>
Tensor Conv<kDims>::forward(const Tensor& x) {
  constexpr const char* kNames[] = {"conv1d", "conv2d", "conv3d"};
  check_input(kNames[kDims - 1], x, kDims, options.in_channels);
  ConvParams<kDims> params{options.stride, options.padding, options.dilation, options.groups};
  if (options.padding_mode == PadMode::constant) return Functions<kDims>::kConv(x, weight, bias, params);
  std::vector<std::int64_t> sides;  // of the last dimension first
  const Shape padding = list(options.padding), kernel = list(options.kernel_size),
              dilation = list(options.dilation);
  for (int i = kDims - 1; i >= 0; --i) {
    const std::int64_t both = options.padding.same ? dilation[i] * (kernel[i] - 1) : 2 * padding[i];
    sides.insert(sides.end(), {both / 2, both - both / 2});
  }
  params.padding = 0;
  return Functions<kDims>::kConv(pad(x, sides, options.padding_mode), weight, bias, params);
}

template <int kDims>
std::string Conv<kDims>::type_name() const {
  return "Conv" + std::to_string(kDims) + "d";
}
template <int kDims>
std::string Conv<kDims>::options_text() const {
  return common_text(options)
      .add("groups", options.groups, std::int64_t{1})
      .add("bias", options.bias, true)
      .add("padding_mode", std::string(name_of(options.padding_mode)), std::string("zeros"))
      .str();
}

template class Conv<1>;
template class Conv<2>;
template class Conv<3>;

// ---- ConvTranspose ----

template <int kDims>
ConvTranspose<kDims>::ConvTranspose(const Options& o)
    : options(o),
      weight(param("weight", weight_of(o))),
      bias(param("bias", initial_bias(o.bias, o.out_channels, weight))) {}

template <int kDims>
Tensor ConvTranspose<kDims>::forward(const Tensor& x) {
  constexpr const char* kNames[] = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
  check_input(kNames[kDims - 1], x, kDims, options.in_channels);
  return Functions<kDims>::kTranspose(
      x, weight, bias,
      {options.stride, options.padding, options.output_padding, options.groups, options.dilation});
}

template <int kDims>
Tensor ConvTranspose<kDims>::forward(const Tensor& x, const Shape& output_size) {
  check_input("conv_transpose", x, kDims, options.in_channels);
  check(output_size.size() == kDims || output_size.size() == x.dim(), "[", type_name(), "] output_size ",
        output_size, " for an input of shape ", x.sizes(), "; give ", kDims, " or ", x.dim(), " numbers");
  const Shape kernel = list(options.kernel_size), stride = list(options.stride),
              padding = list(options.padding), dilation = list(options.dilation);
  Shape extra;
  for (int i = 0; i < kDims; ++i) {
    const std::int64_t in = x.size(x.dim() - kDims + i), size = output_size[output_size.size() - kDims + i];
    check(in <= kMost, "[", type_name(), "] an input of shape ", x.sizes(), "; sizes are at most ", kMost);
    const std::int64_t least = (in - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1;
    check(size >= least && size - least < stride[i], "[", type_name(), "] output_size ", output_size,
          " for an input of shape ", x.sizes(), ": dimension ", i, " can be from ", least, " to ",
          least + stride[i] - 1);
    extra.push_back(size - least);
  }
  ConvTransposeParams<kDims> params{options.stride, options.padding, {}, options.groups, options.dilation};
  if constexpr (kDims == 1) params.output_padding = extra[0];
  else if constexpr (kDims == 2) params.output_padding = {extra[0], extra[1]};
  else params.output_padding = {extra[0], extra[1], extra[2]};
  return Functions<kDims>::kTranspose(x, weight, bias, params);
}
template <int kDims>
Tensor ConvTranspose<kDims>::operator()(const Tensor& x, const Shape& output_size) const {
  return call(*this, x, output_size);
}

template <int kDims>
std::string ConvTranspose<kDims>::type_name() const {
  return "ConvTranspose" + std::to_string(kDims) + "d";
}
template <int kDims>
std::string ConvTranspose<kDims>::options_text() const {
  return common_text(options)
      .add("output_padding", options.output_padding, Extent<kDims>(0))
      .add("groups", options.groups, std::int64_t{1})
      .add("bias", options.bias, true)
      .str();
}

template class ConvTranspose<1>;
template class ConvTranspose<2>;
template class ConvTranspose<3>;

}  // namespace tapestry::nn
