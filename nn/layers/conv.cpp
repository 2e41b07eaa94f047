#include "tapestry/nn/layers/conv.h"

#include <cmath>

#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
Tensor weight_of(const Conv2dOptions& o) {
  check(o.in_channels > 0 && o.out_channels > 0,
        "[Conv2d] in_channels and out_channels must be positive but are ", o.in_channels, " and ",
        o.out_channels, "; set both");
  check(o.kernel_size.h > 0 && o.kernel_size.w > 0, "[Conv2d] kernel_size must be positive but is (",
        o.kernel_size.h, ", ", o.kernel_size.w, "); set it");
  check(o.stride.h > 0 && o.stride.w > 0 && o.dilation.h > 0 && o.dilation.w > 0,
        "[Conv2d] stride and dilation must be positive but are (", o.stride.h, ", ", o.stride.w, ") and (",
        o.dilation.h, ", ", o.dilation.w, ")");
  check(o.padding.h >= 0 && o.padding.w >= 0, "[Conv2d] padding must not be negative but is (", o.padding.h,
        ", ", o.padding.w, ")");
  check(o.groups > 0 && o.in_channels % o.groups == 0 && o.out_channels % o.groups == 0,
        "[Conv2d] groups must divide in_channels ", o.in_channels, " and out_channels ", o.out_channels,
        " but is ", o.groups);
  return init::kaiming_uniform_(
      empty({o.out_channels, o.in_channels / o.groups, o.kernel_size.h, o.kernel_size.w}), std::sqrt(5.0));
}
Tensor bias_of(const Conv2dOptions& o) {
  if (!o.bias) return {};
  const std::int64_t fan_in = o.in_channels / o.groups * o.kernel_size.h * o.kernel_size.w;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return init::uniform_(empty({o.out_channels}), -bound, bound);
}
}  // namespace

Conv2d::Conv2d(const Options& o)
    : options(o), weight(param("weight", weight_of(o))), bias(param("bias", bias_of(o))) {}

Tensor Conv2d::forward(const Tensor& x) {
  tapestry::detail::check_defined("conv2d", x);
  check(x.dim() == 4 && x.size(1) == options.in_channels, "[conv2d] expected an input of shape (N, ",
        options.in_channels, ", H, W) but got ", x.sizes(), "; reshape it, or set in_channels");
  return conv2d(x, weight, bias,
                {.stride = options.stride,
                 .padding = options.padding,
                 .dilation = options.dilation,
                 .groups = options.groups});
}

std::string Conv2d::options_text() const {
  return detail::OptionsText()
      .add("in_channels", options.in_channels)
      .add("out_channels", options.out_channels)
      .add("kernel_size", options.kernel_size)
      .add("stride", options.stride)
      .add("padding", options.padding, Pair(0))
      .add("dilation", options.dilation, Pair(1))
      .add("groups", options.groups, std::int64_t{1})
      .add("bias", options.bias, true)
      .str();
}

}  // namespace tapestry::nn
