#include "tapestry/nn/layers/norm.h"

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
template <int kDims>
const BatchNormOptions<kDims>& checked(const BatchNormOptions<kDims>& o) {
  check(o.num_features > 0, "[BatchNorm", kDims, "d] num_features must be positive but is ", o.num_features,
        "; set it");
  check(o.eps >= 0, "[BatchNorm", kDims, "d] eps must not be negative but is ", o.eps);
  return o;
}
const LayerNormOptions& checked(const LayerNormOptions& o) {
  check(!o.normalized_shape.empty(),
        "[LayerNorm] normalized_shape is empty; set it to the sizes of the last dimensions");
  for (const std::int64_t size : o.normalized_shape)
    check(size > 0, "[LayerNorm] normalized_shape must be positive but is ", o.normalized_shape);
  return o;
}
Tensor ones_if(bool wanted, const Shape& sizes) { return wanted ? ones(sizes) : Tensor(); }
Tensor zeros_if(bool wanted, const Shape& sizes) { return wanted ? zeros(sizes) : Tensor(); }
}  // namespace

template <int kDims>
BatchNorm<kDims>::BatchNorm(const Options& o)
    : options(checked(o)),
      momentum(o.momentum),
      weight(param("weight", ones_if(o.affine, o.num_features))),
      bias(param("bias", zeros_if(o.affine, o.num_features))),
      running_mean(buffer("running_mean", zeros_if(o.track_running_stats, o.num_features))),
      running_var(buffer("running_var", ones_if(o.track_running_stats, o.num_features))),
      num_batches_tracked(
          buffer("num_batches_tracked", o.track_running_stats ? zeros({}, DType::i64) : Tensor())) {}

template <int kDims>
Tensor BatchNorm<kDims>::forward(const Tensor& x) {
  tapestry::detail::check_defined("batch_norm", x);
  const bool dims_fit = kDims == 2 ? x.dim() == 4 : x.dim() == 2 || x.dim() == 3;
  check(dims_fit && x.size(1) == options.num_features, "[batch_norm] expected an input of shape (N, ",
        options.num_features, kDims == 2 ? ", H, W)" : ") or (N, C, L)", " but got ", x.sizes(),
        "; reshape it, or set num_features");
  const bool update = is_training() && options.track_running_stats;
  double factor = momentum.value_or(0);
  if (update && !momentum) factor = 1 / (num_batches_tracked->item() + 1);
  const bool batch_statistics = is_training() || !options.track_running_stats;
  const Tensor y =
      is_training() && training_function_
          ? training_function_(x, running_mean, running_var, weight, bias, factor, options.eps)
          : batch_norm(x, running_mean, running_var, weight, bias, batch_statistics, factor, options.eps);
  // num_batches_tracked is updated last, so that a batch that throws is not counted. A recomputation by
  // checkpoint() is not counted either.
  if (update && !autograd::recomputing()) num_batches_tracked->add_(Scalar(1));
  return y;
}

template <int kDims>
void BatchNorm<kDims>::set_training_function(std::string name, BatchNormTraining function) {
  training_name_ = std::move(name);
  training_function_ = std::move(function);
}

template <int kDims>
std::string BatchNorm<kDims>::type_name() const {
  if (training_function_) return training_name_;
  return kDims == 1 ? "BatchNorm1d" : "BatchNorm2d";
}

template <int kDims>
std::string BatchNorm<kDims>::options_text() const {
  detail::OptionsText text;
  text.add("num_features", options.num_features).add("eps", options.eps);
  if (options.momentum) text.add("momentum", *options.momentum);
  else text.add("momentum", "none");
  return text.add("affine", options.affine).add("track_running_stats", options.track_running_stats).str();
}

template class BatchNorm<1>;
template class BatchNorm<2>;

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

}  // namespace tapestry::nn
