#include "tapestry/nn/distributions.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/multinomial.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::distributions {
namespace {

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

const Tensor& checked_parameter(const char* name, const Tensor& t) {
  check(t.defined(), "[", name, "] a parameter is an undefined tensor; pass a defined one");
  check<TypeError>(is_floating(t.dtype()), "[", name, "] a parameter is ", t.dtype(),
                   "; parameters are floating-point numbers");
  return t;
}

// The one parameter that was given.
const Tensor& only_one(const char* name, const DiscreteOptions& o) {
  check(o.probs.defined() != o.logits.defined(), "[", name, "] ",
        o.probs.defined() ? "both probs and logits are given" : "neither probs nor logits are given",
        "; give one of them");
  return checked_parameter(name, o.probs.defined() ? o.probs : o.logits);
}

// Throws unless `condition` is true everywhere. Conditions on a GPU are not checked.
void check_values(const char* name, const Tensor& condition, const char* rule) {
  if (!condition.device().is_cpu()) return;
  check(condition.all().item<bool>(), "[", name, "] ", rule);
}

Shape without_last(const char* name, const Tensor& t) {
  check(t.dim() > 0 && t.size(-1) > 0, "[", name, "] the parameter has shape ", t.sizes(),
        "; its last dimension must have the categories");
  Shape sizes = t.sizes();
  sizes.erase(sizes.size() - 1);
  return sizes;
}

Shape followed_by(Shape a, const Shape& b) {
  for (const std::int64_t size : b) a.push_back(size);
  return a;
}

// Probabilities limited to [eps, 1 - eps], so that their logarithms are finite.
Tensor clamped(const Tensor& probs) {
  const double eps = epsilon(probs.dtype());
  return clamp(probs, eps, 1 - eps);
}

// log(1 + exp(x)) for all x.
Tensor softplus_of(const Tensor& x) { return softplus(x, 1, std::numeric_limits<double>::max()); }

Tensor number(double value) { return scalar_tensor(value, DType::f32); }

}  // namespace

Tensor Distribution::sample(const Shape& sample_shape) const {
  const NoGradGuard no_grad;
  return draw(sample_shape);
}
Tensor Distribution::rsample(const Shape&) const {
  fail<ValueError>(
      "[rsample] a discrete distribution has no differentiable samples; use sample() and log_prob()");
}
Tensor Distribution::stddev() const { return sqrt(variance()); }
Shape Distribution::extended(const Shape& sample_shape) const {
  return followed_by(sample_shape, batch_shape_);
}

// ---- Categorical

Categorical::Categorical(const DiscreteOptions& o)
    : Distribution(without_last("Categorical", only_one("Categorical", o))) {
  if (o.logits.defined()) {
    check_values("Categorical", eq(o.logits, o.logits), "logits have NaN; they must be numbers");
    logits_ = log_softmax(o.logits, -1);
  } else {
    const Tensor total = o.probs.sum(-1, true);
    check_values("Categorical", ge(o.probs, 0), "probs are negative or NaN; they must be at least 0");
    check_values("Categorical", gt(total, 0), "all probs of a row are 0; give at least one positive one");
    logits_ = log(clamped(o.probs / total));
  }
}
Tensor Categorical::probs() const { return softmax(logits_, -1); }
Tensor Categorical::log_prob(const Tensor& value) const {
  detail::check_defined("Categorical", value, "the value");
  const Shape sizes = broadcast_shapes("Categorical", value.sizes(), batch_shape());
  const std::int64_t categories = logits_.size(-1);
  const Tensor rows = logits_.expand(followed_by(sizes, categories)).reshape({sizes.numel(), categories});
  const Tensor targets = value.to(DType::i64).expand(sizes).reshape({sizes.numel()});
  const CrossEntropyParams each{.ignore_index = std::numeric_limits<std::int64_t>::min(),
                                .reduction = Reduction::none};
  return nll_loss(rows, targets, each).neg().reshape(sizes);
}
Tensor Categorical::entropy() const {
  // The limit makes 0 * -inf and its gradient 0.
  const double lowest = logits_.dtype() == DType::f16 ? -65504 : -0x1.fep127;
  return (probs() * clamp(logits_, lowest)).sum(-1).neg();
}
Tensor Categorical::mean() const {
  return full(batch_shape(), std::numeric_limits<double>::quiet_NaN(),
              TensorOptions(logits_.dtype(), logits_.device()));
}
Tensor Categorical::variance() const { return mean(); }
Tensor Categorical::draw(const Shape& sample_shape) const {
  const Shape sizes = extended(sample_shape);
  if (sizes.numel() == 0) return empty(sizes, TensorOptions(DType::i64, logits_.device()));
  const Tensor rows = probs().reshape({batch_shape().numel(), logits_.size(-1)});
  return multinomial(rows, sample_shape.numel(), true).t().reshape(sizes);
}

// ---- Bernoulli

Bernoulli::Bernoulli(const DiscreteOptions& o) : Distribution(only_one("Bernoulli", o).sizes()) {
  if (o.logits.defined()) {
    check_values("Bernoulli", eq(o.logits, o.logits), "logits have NaN; they must be numbers");
    logits_ = o.logits;
  } else {
    check_values("Bernoulli", ge(o.probs, 0), "probs are negative or NaN; they must be in [0, 1]");
    check_values("Bernoulli", le(o.probs, 1), "probs are above 1; they must be in [0, 1]");
    const Tensor p = clamped(o.probs);
    logits_ = log(p) - log(1 - p);
  }
}
Tensor Bernoulli::probs() const { return sigmoid(logits_); }
Tensor Bernoulli::log_prob(const Tensor& value) const {
  detail::check_defined("Bernoulli", value, "the value");
  return value * logits_ - softplus_of(logits_);
}
Tensor Bernoulli::entropy() const { return softplus_of(logits_) - logits_ * probs(); }
Tensor Bernoulli::variance() const {
  const Tensor p = probs();
  return p * (1 - p);
}
Tensor Bernoulli::draw(const Shape& sample_shape) const {
  const TensorOptions options(logits_.dtype(), logits_.device());
  return lt(rand(extended(sample_shape), options), probs()).to(logits_.dtype());
}

// ---- Normal

Normal::Normal(const Tensor& loc, const Tensor& scale)
    : Distribution(broadcast_shapes("Normal", checked_parameter("Normal", loc).sizes(),
                                    checked_parameter("Normal", scale).sizes())),
      loc_(loc.expand(batch_shape())),
      scale_(scale.expand(batch_shape())) {
  check_values("Normal", gt(scale, 0), "scale is negative, 0 or NaN; it must be positive");
}
Normal::Normal(double loc, double scale) : Normal(number(loc), number(scale)) {}
Tensor Normal::rsample(const Shape& sample_shape) const {
  return loc_ + scale_ * randn(extended(sample_shape), TensorOptions(loc_.dtype(), loc_.device()));
}
Tensor Normal::log_prob(const Tensor& value) const {
  detail::check_defined("Normal", value, "the value");
  const Tensor z = (value - loc_) / scale_;
  return z * z * -0.5 - log(scale_) - 0.5 * std::log(2 * std::numbers::pi);
}
Tensor Normal::entropy() const { return log(scale_) + (0.5 + 0.5 * std::log(2 * std::numbers::pi)); }
Tensor Normal::variance() const { return scale_ * scale_; }

// ---- Uniform

Uniform::Uniform(const Tensor& low, const Tensor& high)
    : Distribution(broadcast_shapes("Uniform", checked_parameter("Uniform", low).sizes(),
                                    checked_parameter("Uniform", high).sizes())),
      low_(low.expand(batch_shape())),
      high_(high.expand(batch_shape())) {
  check_values("Uniform", lt(low, high), "low is not below high; give low < high");
}
Uniform::Uniform(double low, double high) : Uniform(number(low), number(high)) {}
Tensor Uniform::rsample(const Shape& sample_shape) const {
  return low_ + (high_ - low_) * rand(extended(sample_shape), TensorOptions(low_.dtype(), low_.device()));
}
Tensor Uniform::log_prob(const Tensor& value) const {
  detail::check_defined("Uniform", value, "the value");
  const Tensor inside = le(low_, value).mul(gt(high_, value));
  return log(inside.to(low_.dtype())) - log(high_ - low_);
}
Tensor Uniform::entropy() const { return log(high_ - low_); }
Tensor Uniform::mean() const { return (low_ + high_) / 2; }
Tensor Uniform::variance() const {
  const Tensor width = high_ - low_;
  return width * width / 12;
}

namespace {

// p log(p / q), which is 0 where p = 0, and infinite where only q = 0.
Tensor divergence_of(const Tensor& p, const Tensor& log_p, const Tensor& q, const Tensor& log_q) {
  const Tensor nothing = eq(p, 0), excluded = logical_and(eq(q, 0), ne(p, 0));
  const Tensor difference = masked_fill(log_p - log_q, logical_or(nothing, excluded), 0);
  return masked_fill(p * difference, excluded, std::numeric_limits<double>::infinity());
}

}  // namespace

Tensor kl_divergence(const Categorical& p, const Categorical& q) {
  const auto classes = p.logits().size(-1);
  check(q.logits().size(-1) == classes, "[kl_divergence] ", classes, " categories and ", q.logits().size(-1),
        "; they must be equal");
  return sum(divergence_of(p.probs(), p.logits(), q.probs(), q.logits()), -1);
}
Tensor kl_divergence(const Bernoulli& p, const Bernoulli& q) {
  const auto log_of = [](const Tensor& logits) { return -softplus_of(-logits); };
  const Tensor a = p.logits(), b = q.logits();
  return divergence_of(p.probs(), log_of(a), q.probs(), log_of(b)) +
         divergence_of(1 - p.probs(), log_of(-a), 1 - q.probs(), log_of(-b));
}
Tensor kl_divergence(const Normal& p, const Normal& q) {
  const Tensor ratio = p.variance() / q.variance(), distance = square(p.mean() - q.mean()) / q.variance();
  return (ratio + distance - 1 - log(ratio)) / 2;
}
Tensor kl_divergence(const Uniform& p, const Uniform& q) {
  const Tensor excluded = logical_or(gt(q.low(), p.low()), lt(q.high(), p.high()));
  return masked_fill(log((q.high() - q.low()) / (p.high() - p.low())), excluded,
                     std::numeric_limits<double>::infinity());
}

}  // namespace tapestry::distributions
