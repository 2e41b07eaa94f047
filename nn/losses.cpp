#include "tapestry/nn/losses.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/ops/loss.h"

namespace tapestry::nn::functional {

namespace {

Tensor reduced(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? losses.sum() : losses.mean();
}

void check_shape(const char* op, const Tensor& x, const Tensor& other, const char* what) {
  tapestry::detail::check_defined(op, x);
  tapestry::detail::check_defined(op, other, what);
  check(x.sizes() == other.sizes(), "[", op, "] input has shape ", x.sizes(), ", ", what, " ", other.sizes(),
        "; they must be equal (nothing is broadcast)");
}

Tensor number_like(const Tensor& x, double value) { return full({}, value, {x.dtype(), x.device()}); }
Tensor zero_like(const Tensor& x) { return number_like(x, 0); }

// log(1 + e^x), without overflow and without softplus()'s threshold.
Tensor log1p_exp(const Tensor& x) { return softplus(x, 1, std::numeric_limits<double>::infinity()); }

const autograd::Op kSmoothL1Loss{"smooth_l1_loss", autograd::Grad::twice, kFloats};
const autograd::Op kHuberLoss{"huber_loss", autograd::Grad::twice, kFloats};

// scale d^2 / 2 for d = |x - target| < limit, else scale limit (d - limit / 2).
Tensor limited_square(const autograd::Op& op, const Tensor& x, const Tensor& target, double limit,
                      double scale) {
  check<DeviceError>(x.device() == target.device(), "[", op.name, "] target is on ", target.device(),
                     ", the input on ", x.device(), "; move one of them with .to()");
  const DType dtype = promote(x.dtype(), target.dtype());
  op.check_dtype(dtype);
  const Tensor a = x.to(dtype), t = target.to(dtype);
  const Tensor y = empty_like(a);
  kernels::slot<kernels::HuberError>(y.device(), dtype, {autograd::planned(y, a, t), {limit, scale}});
  if (autograd::recording(a, t))
    autograd::record(
        op, y, {&a, &t}, [limit, scale, a = autograd::save(a), t = autograd::save(t)](autograd::Backward& b) {
          const Tensor in = b.saved(a), to = b.saved(t);
          const auto gradient = [&](double factor) {
            if (b.create_graph()) return clamp(in - to, -limit, limit) * b.grad() * factor;
            const Tensor d = empty_like(in);
            kernels::slot<kernels::HuberErrorBackward>(
                d.device(), d.dtype(), {autograd::planned(d, in, to, b.grad()), {limit, factor}});
            return d;
          };
          if (b.needs(0)) b.set(0, gradient(scale));
          if (b.needs(1)) b.set(1, gradient(-scale));
        });
  return y;
}

// Throws ValueError unless all elements lie in [low, high]. Tensors on a GPU are not checked.
void check_values(const char* op, const Tensor& x, const char* what, double low, double high) {
  if (!x.device().is_cpu() || x.numel() == 0) return;
  const NoGradGuard no_grad;
  const Tensor t = x.detach();
  const double least = amin(t).item(), largest = amax(t).item();
  check(least >= low && largest <= high, "[", op, "] ", what, " has values from ", least, " to ", largest,
        "; they must lie in [", low, ", ", high, "]");
}

}  // namespace

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (const autograd::Autocast cast("l1_loss", x, target); cast)
    return l1_loss(cast(x), cast(target), reduction);
  check_shape("l1_loss", x, target, "target");
  return reduced(abs(x - target), reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1LossParams& params) {
  if (const autograd::Autocast cast("smooth_l1_loss", x, target); cast)
    return smooth_l1_loss(cast(x), cast(target), params);
  check(params.beta >= 0, "[smooth_l1_loss] beta must not be negative but is ", params.beta);
  if (params.beta == 0) return l1_loss(x, target, params.reduction);
  check_shape("smooth_l1_loss", x, target, "target");
  return reduced(limited_square(kSmoothL1Loss, x, target, params.beta, 1 / params.beta), params.reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberLossParams& params) {
  if (const autograd::Autocast cast("huber_loss", x, target); cast)
    return huber_loss(cast(x), cast(target), params);
  check(params.delta > 0, "[huber_loss] delta must be positive but is ", params.delta);
  check_shape("huber_loss", x, target, "target");
  return reduced(limited_square(kHuberLoss, x, target, params.delta, 1), params.reduction);
}

Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivLossParams& params) {
  if (const autograd::Autocast cast("kl_div", x, target); cast) return kl_div(cast(x), cast(target), params);
  tapestry::detail::check_defined("kl_div", x);
  tapestry::detail::check_defined("kl_div", target, "target");
  check(params.reduction != KLDivReduction::batchmean || x.dim() > 0,
        "[kl_div] the input is 0-d and has no batch; use another reduction than batchmean");
  // log(target) is replaced by 0 where the target is 0, because 0 * -infinity would be NaN.
  const Tensor losses = params.log_target
                            ? exp(target) * (target - x)
                            : target * log(where(target == 0, number_like(target, 1), target)) - target * x;
  switch (params.reduction) {
    case KLDivReduction::none:
      return losses;
    case KLDivReduction::mean:
      return losses.mean();
    case KLDivReduction::sum:
      return losses.sum();
    case KLDivReduction::batchmean:
      return losses.sum() / static_cast<double>(x.size(0));
  }
  return losses;
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingLossParams& params) {
  if (const autograd::Autocast cast("cosine_embedding_loss", a, b); cast)
    return cosine_embedding_loss(cast(a), cast(b), target, params);
  check_shape("cosine_embedding_loss", a, b, "the second input");
  tapestry::detail::check_defined("cosine_embedding_loss", target, "target");
  check((a.dim() == 2 && target.dim() == 1 && target.size(0) == a.size(0)) ||
            (a.dim() == 1 && target.dim() == 0),
        "[cosine_embedding_loss] inputs have shape ", a.sizes(), " and the target ", target.sizes(),
        "; pass inputs (N, D) with a target (N), or (D) with ()");
  constexpr double eps = 1e-12;  // keeps the quotient defined if a vector is 0
  const Tensor squares = (sum(a * a, {-1}) + eps) * (sum(b * b, {-1}) + eps);
  const Tensor cosine = sum(a * b, {-1}) / sqrt(squares), none = zero_like(cosine);
  const Tensor losses =
      where(target == 1, 1 - cosine, none) + where(target == -1, relu(cosine - params.margin), none);
  return reduced(losses, params.reduction);
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginLossParams& params) {
  if (const autograd::Autocast cast("triplet_margin_loss", anchor, positive, negative); cast)
    return triplet_margin_loss(cast(anchor), cast(positive), cast(negative), params);
  check_shape("triplet_margin_loss", anchor, positive, "positive");
  check_shape("triplet_margin_loss", anchor, negative, "negative");
  check(params.margin > 0, "[triplet_margin_loss] margin must be positive but is ", params.margin);
  check(anchor.dim() > 0, "[triplet_margin_loss] the inputs are 0-d; pass (N, D) or (D)");
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    return norm(a - b + params.eps, params.p, {-1});
  };
  Tensor far = distance(anchor, negative);
  if (params.swap) far = minimum(far, distance(positive, negative));
  return reduced(relu(distance(anchor, positive) - far + params.margin), params.reduction);
}

Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, const HingeEmbeddingLossParams& params) {
  if (const autograd::Autocast cast("hinge_embedding_loss", x); cast)
    return hinge_embedding_loss(cast(x), target, params);
  check_shape("hinge_embedding_loss", x, target, "target");
  const Tensor none = zero_like(x);
  const Tensor losses = where(target == 1, none, relu(params.margin - x)) + where(target == -1, none, x);
  return reduced(losses, params.reduction);
}

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                           const MarginRankingLossParams& params) {
  if (const autograd::Autocast cast("margin_ranking_loss", a, b, target); cast)
    return margin_ranking_loss(cast(a), cast(b), cast(target), params);
  check_shape("margin_ranking_loss", a, b, "the second input");
  check_shape("margin_ranking_loss", a, target, "target");
  return reduced(relu(target * (b - a) + params.margin), params.reduction);
}

Tensor soft_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (const autograd::Autocast cast("soft_margin_loss", x, target); cast)
    return soft_margin_loss(cast(x), cast(target), reduction);
  check_shape("soft_margin_loss", x, target, "target");
  return reduced(log1p_exp(-target * x), reduction);
}

Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& var,
                         const GaussianNLLLossParams& params) {
  check_shape("gaussian_nll_loss", x, target, "target");
  tapestry::detail::check_defined("gaussian_nll_loss", var, "var");
  check(params.eps > 0, "[gaussian_nll_loss] eps must be positive but is ", params.eps);
  Shape without_last, with_one;
  for (int i = 0; i < x.dim(); ++i) {
    const bool last = i == x.dim() - 1;
    if (!last) without_last.push_back(x.size(i));
    with_one.push_back(last ? 1 : x.size(i));
  }
  check(var.sizes() == x.sizes() || var.sizes() == with_one || (x.dim() > 0 && var.sizes() == without_last),
        "[gaussian_nll_loss] var has shape ", var.sizes(), ", input ", x.sizes(),
        "; pass the shape of the input, "
        "or that without the last dimension or with size 1 there");
  check_values("gaussian_nll_loss", var, "var", 0, std::numeric_limits<double>::infinity());
  // The limit is applied unrecorded, so that variances below it still get a gradient.
  const Tensor variance =
      (var.sizes() == x.sizes() || var.sizes() == with_one ? var : var.unsqueeze(-1)).clone();
  {
    const NoGradGuard no_grad;
    variance.clamp_(params.eps);
  }
  const Tensor difference = x - target;
  Tensor losses = (log(variance) + difference * difference / variance) * 0.5;
  if (params.full) losses = losses + 0.5 * std::log(2 * std::numbers::pi);
  return reduced(losses, params.reduction);
}

Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNLLLossParams& params) {
  if (const autograd::Autocast cast("poisson_nll_loss", x, target); cast)
    return poisson_nll_loss(cast(x), cast(target), params);
  check_shape("poisson_nll_loss", x, target, "target");
  Tensor losses = params.log_input ? exp(x) - target * x : x - target * log(x + params.eps);
  if (params.full) {
    const Tensor none = target <= 1, count = where(none, number_like(target, 1), target);
    const Tensor stirling = count * log(count) - count + 0.5 * log(count * (2 * std::numbers::pi));
    losses = losses + where(none, zero_like(stirling), stirling);
  }
  return reduced(losses, params.reduction);
}

}  // namespace tapestry::nn::functional
