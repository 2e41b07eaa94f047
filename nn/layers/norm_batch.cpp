#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/layers/internal/norm.h"
#include "tapestry/nn/layers/norm.h"

namespace tapestry::nn {
using detail::ones_if;
using detail::sizes_text;
using detail::zeros_if;

namespace {
template <int kDims>
const BatchNormOptions<kDims>& checked(const BatchNormOptions<kDims>& o) {
  check(o.num_features > 0, "[BatchNorm", kDims, "d] num_features must be positive but is ", o.num_features,
        "; set it");
  check(o.eps >= 0, "[BatchNorm", kDims, "d] eps must not be negative but is ", o.eps);
  return o;
}
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
Tensor BatchNorm<kDims>::normalized(const Tensor& x, bool with_relu, const Tensor& residual) {
  tapestry::detail::check_defined("batch_norm", x);
  const bool dims_fit = x.dim() == kDims + 2 || (kDims == 1 && x.dim() == 2);
  check(dims_fit && x.size(1) == options.num_features, "[batch_norm] expected an input of shape (N, ",
        options.num_features, kDims == 1 ? ") or (N, C, L)" : sizes_text(kDims), " but got ", x.sizes(),
        "; reshape it, or set num_features");
  const bool update = is_training() && options.track_running_stats;
  double factor = momentum.value_or(0);
  if (update && !momentum)
    tapestry::detail::refuse_in_capture("batch_norm",
                                        "without a momentum the host reads num_batches_tracked; give one");
  if (update && !momentum) factor = 1 / (num_batches_tracked->item() + 1);
  const bool batch_statistics = is_training() || !options.track_running_stats;
  Tensor y;
  if (is_training() && training_function_) {
    y = training_function_(x, running_mean, running_var, weight, bias, factor, options.eps);
    if (with_relu) y = relu(residual.defined() ? y + residual : y);
  } else if (with_relu)
    y = batch_norm_relu(x, running_mean, running_var, weight, bias, batch_statistics, factor, options.eps,
                        residual);
  else y = batch_norm(x, running_mean, running_var, weight, bias, batch_statistics, factor, options.eps);
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
  return "BatchNorm" + std::to_string(kDims) + "d";
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
template class BatchNorm<3>;

}  // namespace tapestry::nn
