#include "tapestry/nn/layers/pool.h"

#include <algorithm>

#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {
namespace {

template <int kDims>
using Params =
    std::conditional_t<kDims == 1, Pool1dParams, std::conditional_t<kDims == 2, Pool2dParams, Pool3dParams>>;

template <int kDims>
std::string named(const char* name) {
  return name + std::to_string(kDims) + "d";
}

bool positive(std::int64_t n) { return n > 0; }
bool positive(Pair p) { return p.h > 0 && p.w > 0; }
bool positive(const Shape& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](auto n) { return n > 0; });
}

std::string text_of(std::int64_t n) { return std::to_string(n); }
std::string text_of(Pair p) { return detail::OptionsText().add("", p).str().substr(1); }
std::string text_of(const Shape& s) { return s.size() == 1 ? std::to_string(s[0]) : s.str(); }

// Throws ValueError unless the option is positive; otherwise returns the text of the options.
template <int kDims, class Size>
detail::OptionsText checked(const char* layer, const char* option, const Size& value) {
  check(positive(value), "[", named<kDims>(layer), "] ", option, " must be positive but is ", text_of(value),
        "; set it");
  detail::OptionsText text;
  text.add(option, text_of(value));
  return text;
}
// The effective stride: kernel_size if the stride is 0 or empty.
std::int64_t stride_of(std::int64_t stride, std::int64_t kernel) { return stride ? stride : kernel; }
Pair stride_of(Pair stride, Pair kernel) {
  return {stride.h ? stride.h : kernel.h, stride.w ? stride.w : kernel.w};
}
Shape stride_of(const Shape& stride, const Shape& kernel) { return stride.empty() ? kernel : stride; }

}  // namespace

template <int kDims>
MaxPool<kDims>::MaxPool(const Options& o)
    : PoolLayer(named<kDims>("MaxPool"), checked<kDims>("MaxPool", "kernel_size", o.kernel_size)
                                             .add("stride", text_of(stride_of(o.stride, o.kernel_size)))
                                             .add("padding", text_of(o.padding))
                                             .add("dilation", text_of(o.dilation), std::string("1"))
                                             .add("ceil_mode", o.ceil_mode, false)
                                             .str()),
      options(o) {}
namespace {
template <int kDims>
Params<kDims> params_of(const MaxPoolOptions<kDims>& o) {
  return {.kernel_size = o.kernel_size,
          .stride = o.stride,
          .padding = o.padding,
          .dilation = o.dilation,
          .ceil_mode = o.ceil_mode};
}
}  // namespace
template <int kDims>
Tensor MaxPool<kDims>::forward(const Tensor& x) {
  if constexpr (kDims == 1) return max_pool1d(x, params_of<kDims>(options));
  else if constexpr (kDims == 2) return max_pool2d(x, params_of<kDims>(options));
  else return max_pool3d(x, params_of<kDims>(options));
}
template <int kDims>
std::pair<Tensor, Tensor> MaxPool<kDims>::forward_with_indices(const Tensor& x) {
  if constexpr (kDims == 1) return max_pool1d_with_indices(x, params_of<kDims>(options));
  else if constexpr (kDims == 2) return max_pool2d_with_indices(x, params_of<kDims>(options));
  else return max_pool3d_with_indices(x, params_of<kDims>(options));
}

template <int kDims>
AvgPool<kDims>::AvgPool(const Options& o)
    : PoolLayer(named<kDims>("AvgPool"), checked<kDims>("AvgPool", "kernel_size", o.kernel_size)
                                             .add("stride", text_of(stride_of(o.stride, o.kernel_size)))
                                             .add("padding", text_of(o.padding))
                                             .add("ceil_mode", o.ceil_mode, false)
                                             .add("count_include_pad", o.count_include_pad, true)
                                             .str()),
      options(o) {}
template <int kDims>
Tensor AvgPool<kDims>::forward(const Tensor& x) {
  const Params<kDims> params{.kernel_size = options.kernel_size,
                             .stride = options.stride,
                             .padding = options.padding,
                             .ceil_mode = options.ceil_mode,
                             .count_include_pad = options.count_include_pad};
  if constexpr (kDims == 1) return avg_pool1d(x, params);
  else if constexpr (kDims == 2) return avg_pool2d(x, params);
  else return avg_pool3d(x, params);
}

template <int kDims>
LPPool<kDims>::LPPool(const Options& o)
    : PoolLayer(named<kDims>("LPPool"), checked<kDims>("LPPool", "kernel_size", o.kernel_size)
                                            .add("norm_type", o.norm_type)
                                            .add("stride", text_of(stride_of(o.stride, o.kernel_size)))
                                            .add("ceil_mode", o.ceil_mode, false)
                                            .str()),
      options(o) {
  check(o.norm_type != 0, "[", named<kDims>("LPPool"), "] norm_type is 0; give a power");
}
template <int kDims>
Tensor LPPool<kDims>::forward(const Tensor& x) {
  const Params<kDims> params{
      .kernel_size = options.kernel_size, .stride = options.stride, .ceil_mode = options.ceil_mode};
  if constexpr (kDims == 1) return lp_pool1d(x, options.norm_type, params);
  else if constexpr (kDims == 2) return lp_pool2d(x, options.norm_type, params);
  else return lp_pool3d(x, options.norm_type, params);
}

template <int kDims>
AdaptiveAvgPool<kDims>::AdaptiveAvgPool(const Options& o)
    : PoolLayer(named<kDims>("AdaptiveAvgPool"),
                checked<kDims>("AdaptiveAvgPool", "output_size", o.output_size).str()),
      options(o) {}
template <int kDims>
Tensor AdaptiveAvgPool<kDims>::forward(const Tensor& x) {
  if constexpr (kDims == 1) return adaptive_avg_pool1d(x, options.output_size);
  else if constexpr (kDims == 2) return adaptive_avg_pool2d(x, options.output_size);
  else return adaptive_avg_pool3d(x, options.output_size);
}

template <int kDims>
AdaptiveMaxPool<kDims>::AdaptiveMaxPool(const Options& o)
    : PoolLayer(named<kDims>("AdaptiveMaxPool"),
                checked<kDims>("AdaptiveMaxPool", "output_size", o.output_size).str()),
      options(o) {}
template <int kDims>
Tensor AdaptiveMaxPool<kDims>::forward(const Tensor& x) {
  if constexpr (kDims == 1) return adaptive_max_pool1d(x, options.output_size);
  else if constexpr (kDims == 2) return adaptive_max_pool2d(x, options.output_size);
  else return adaptive_max_pool3d(x, options.output_size);
}
template <int kDims>
std::pair<Tensor, Tensor> AdaptiveMaxPool<kDims>::forward_with_indices(const Tensor& x) {
  if constexpr (kDims == 1) return adaptive_max_pool1d_with_indices(x, options.output_size);
  else if constexpr (kDims == 2) return adaptive_max_pool2d_with_indices(x, options.output_size);
  else return adaptive_max_pool3d_with_indices(x, options.output_size);
}

template <int kDims>
MaxUnpool<kDims>::MaxUnpool(const Options& o)
    : PoolLayer(named<kDims>("MaxUnpool"), checked<kDims>("MaxUnpool", "kernel_size", o.kernel_size)
                                               .add("stride", text_of(stride_of(o.stride, o.kernel_size)))
                                               .add("padding", text_of(o.padding))
                                               .str()),
      options(o) {}
template <int kDims>
Tensor MaxUnpool<kDims>::forward(const Tensor& x, const Tensor& indices, const Shape& output_size) {
  const Params<kDims> params{
      .kernel_size = options.kernel_size, .stride = options.stride, .padding = options.padding};
  if constexpr (kDims == 1) return max_unpool1d(x, indices, params, output_size);
  else if constexpr (kDims == 2) return max_unpool2d(x, indices, params, output_size);
  else return max_unpool3d(x, indices, params, output_size);
}
template <int kDims>
Tensor MaxUnpool<kDims>::operator()(const Tensor& x, const Tensor& indices, const Shape& output_size) const {
  return call(*this, x, indices, output_size);
}

template class MaxPool<1>;
template class MaxPool<2>;
template class MaxPool<3>;
template class AvgPool<1>;
template class AvgPool<2>;
template class AvgPool<3>;
template class LPPool<1>;
template class LPPool<2>;
template class LPPool<3>;
template class AdaptiveAvgPool<1>;
template class AdaptiveAvgPool<2>;
template class AdaptiveAvgPool<3>;
template class AdaptiveMaxPool<1>;
template class AdaptiveMaxPool<2>;
template class AdaptiveMaxPool<3>;
template class MaxUnpool<1>;
template class MaxUnpool<2>;
template class MaxUnpool<3>;

}  // namespace tapestry::nn
