#include "tapestry/nn/layers/norm.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/nn/functional.h"
#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/layers/internal/norm.h"

namespace tapestry::nn {
using detail::ones_if;
using detail::sizes_text;
using detail::zeros_if;

namespace {
void check_normalized_shape(const char* layer, const Shape& sizes) {
  check(!sizes.empty(), "[", layer,
        "] normalized_shape is empty; set it to the sizes of the last dimensions");
  for (const std::int64_t size : sizes)
    check(size > 0, "[", layer, "] normalized_shape must be positive but is ", sizes);
}
const LayerNormOptions& checked(const LayerNormOptions& o) {
  check_normalized_shape("LayerNorm", o.normalized_shape);
  return o;
}
const RMSNormOptions& checked(const RMSNormOptions& o) {
  check_normalized_shape("RMSNorm", o.normalized_shape);
  check(!o.eps || *o.eps >= 0, "[RMSNorm] eps must not be negative but is ", o.eps.value_or(0));
  return o;
}
const GroupNormOptions& checked(const GroupNormOptions& o) {
  check(o.num_groups > 0 && o.num_channels > 0,
        "[GroupNorm] num_groups and num_channels must be positive but are ", o.num_groups, " and ",
        o.num_channels, "; set both");
  check(o.num_channels % o.num_groups == 0, "[GroupNorm] num_groups ", o.num_groups,
        " does not divide num_channels ", o.num_channels, "; choose a divisor");
  check(o.eps >= 0, "[GroupNorm] eps must not be negative but is ", o.eps);
  return o;
}
template <int kDims>
const InstanceNormOptions<kDims>& checked(const InstanceNormOptions<kDims>& o) {
  check(o.num_features > 0, "[InstanceNorm", kDims, "d] num_features must be positive but is ",
        o.num_features, "; set it");
  check(o.eps >= 0, "[InstanceNorm", kDims, "d] eps must not be negative but is ", o.eps);
  return o;
}
}  // namespace

LayerNorm::LayerNorm(const Options& o)
    : options(checked(o)),
      weight(param("weight", ones_if(o.elementwise_affine, o.normalized_shape))),
      bias(param("bias", zeros_if(o.elementwise_affine && o.bias, o.normalized_shape))) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, options.normalized_shape, weight, bias, options.eps);
}

std::string LayerNorm::options_text() const {
  return detail::OptionsText()
      .add("normalized_shape", options.normalized_shape)
      .add("eps", options.eps)
      .add("elementwise_affine", options.elementwise_affine)
      .add("bias", options.bias, true)
      .str();
}

RMSNorm::RMSNorm(const Options& o)
    : options(checked(o)), weight(param("weight", ones_if(o.elementwise_affine, o.normalized_shape))) {}

Tensor RMSNorm::forward(const Tensor& x) {
  return rms_norm(x, options.normalized_shape, weight, options.eps);
}

std::string RMSNorm::options_text() const {
  detail::OptionsText text;
  text.add("normalized_shape", options.normalized_shape);
  if (options.eps) text.add("eps", *options.eps);
  else text.add("eps", "none");
  return text.add("elementwise_affine", options.elementwise_affine).str();
}

GroupNorm::GroupNorm(const Options& o)
    : options(checked(o)),
      weight(param("weight", ones_if(o.affine, o.num_channels))),
      bias(param("bias", zeros_if(o.affine, o.num_channels))) {}

Tensor GroupNorm::forward(const Tensor& x) {
  tapestry::detail::check_defined("group_norm", x);
  check(x.dim() >= 2 && x.size(1) == options.num_channels, "[group_norm] expected an input of shape (N, ",
        options.num_channels, ", ...) but got ", x.sizes(), "; reshape it, or set num_channels");
  return group_norm(x, options.num_groups, weight, bias, options.eps);
}

std::string GroupNorm::options_text() const {
  return detail::OptionsText()
      .add("num_groups", options.num_groups)
      .add("num_channels", options.num_channels)
      .add("eps", options.eps)
      .add("affine", options.affine)
      .str();
}

template <int kDims>
InstanceNorm<kDims>::InstanceNorm(const Options& o)
    : options(checked(o)),
      weight(param("weight", ones_if(o.affine, o.num_features))),
      bias(param("bias", zeros_if(o.affine, o.num_features))),
      running_mean(buffer("running_mean", zeros_if(o.track_running_stats, o.num_features))),
      running_var(buffer("running_var", ones_if(o.track_running_stats, o.num_features))),
      num_batches_tracked(
          buffer("num_batches_tracked", o.track_running_stats ? zeros({}, DType::i64) : Tensor())) {}

template <int kDims>
Tensor InstanceNorm<kDims>::forward(const Tensor& x) {
  tapestry::detail::check_defined("instance_norm", x);
  const bool batched = x.dim() == kDims + 2;
  check((batched || x.dim() == kDims + 1) && x.size(batched ? 1 : 0) == options.num_features,
        "[instance_norm] expected an input of shape (N, ", options.num_features, sizes_text(kDims), " or (",
        options.num_features, sizes_text(kDims), " but got ", x.sizes(), "; reshape it, or set num_features");
  const bool own_statistics = is_training() || !options.track_running_stats;
  const Tensor y = instance_norm(batched ? x : x.unsqueeze(0), running_mean, running_var, weight, bias,
                                 own_statistics, options.momentum, options.eps);
  return batched ? y : y.squeeze(0);
}

template <int kDims>
std::string InstanceNorm<kDims>::type_name() const {
  return "InstanceNorm" + std::to_string(kDims) + "d";
}

template <int kDims>
std::string InstanceNorm<kDims>::options_text() const {
  return detail::OptionsText()
      .add("num_features", options.num_features)
      .add("eps", options.eps)
      .add("momentum", options.momentum)
      .add("affine", options.affine)
      .add("track_running_stats", options.track_running_stats)
      .str();
}

template class InstanceNorm<1>;
template class InstanceNorm<2>;
template class InstanceNorm<3>;

LocalResponseNorm::LocalResponseNorm(const Options& o) : options(o) {
  check(o.size > 0, "[LocalResponseNorm] size must be positive but is ", o.size, "; set it");
}

Tensor LocalResponseNorm::forward(const Tensor& x) {
  return functional::local_response_norm(x, options.size, options.alpha, options.beta, options.k);
}

std::string LocalResponseNorm::options_text() const {
  return detail::OptionsText()
      .add("size", options.size)
      .add("alpha", options.alpha)
      .add("beta", options.beta)
      .add("k", options.k)
      .str();
}

}  // namespace tapestry::nn
