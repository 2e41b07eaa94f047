#include "tapestry/nn/layers/pool.h"

#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
void check_positive(const char* layer, const char* option, Pair value) {
  check(value.h > 0 && value.w > 0, "[", layer, "] ", option, " must be positive but is (", value.h, ", ",
        value.w, "); set it");
}
// Returns the effective stride, which is also printed: kernel_size if the stride is 0.
Pair stride_of(Pair stride, Pair kernel) {
  return {stride.h ? stride.h : kernel.h, stride.w ? stride.w : kernel.w};
}
}  // namespace

MaxPool2d::MaxPool2d(const Options& o) : options(o) {
  check_positive("MaxPool2d", "kernel_size", o.kernel_size);
}
namespace {
Pool2dParams params_of(const MaxPool2dOptions& o) {
  return {.kernel_size = o.kernel_size,
          .stride = o.stride,
          .padding = o.padding,
          .dilation = o.dilation,
          .ceil_mode = o.ceil_mode};
}
}  // namespace
Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, params_of(options)); }
std::pair<Tensor, Tensor> MaxPool2d::forward_with_indices(const Tensor& x) {
  return max_pool2d_with_indices(x, params_of(options));
}
std::string MaxPool2d::options_text() const {
  return detail::OptionsText()
      .add("kernel_size", options.kernel_size)
      .add("stride", stride_of(options.stride, options.kernel_size))
      .add("padding", options.padding)
      .add("dilation", options.dilation, Pair(1))
      .add("ceil_mode", options.ceil_mode, false)
      .str();
}

AvgPool2d::AvgPool2d(const Options& o) : options(o) {
  check_positive("AvgPool2d", "kernel_size", o.kernel_size);
}
Tensor AvgPool2d::forward(const Tensor& x) {
  return avg_pool2d(x, {.kernel_size = options.kernel_size,
                        .stride = options.stride,
                        .padding = options.padding,
                        .ceil_mode = options.ceil_mode,
                        .count_include_pad = options.count_include_pad});
}
std::string AvgPool2d::options_text() const {
  return detail::OptionsText()
      .add("kernel_size", options.kernel_size)
      .add("stride", stride_of(options.stride, options.kernel_size))
      .add("padding", options.padding)
      .add("ceil_mode", options.ceil_mode, false)
      .add("count_include_pad", options.count_include_pad, true)
      .str();
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Options& o) : options(o) {
  check_positive("AdaptiveAvgPool2d", "output_size", o.output_size);
}
Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return adaptive_avg_pool2d(x, options.output_size); }
std::string AdaptiveAvgPool2d::options_text() const {
  return detail::OptionsText().add("output_size", options.output_size).str();
}

}  // namespace tapestry::nn
