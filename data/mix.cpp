#include "tapestry/data/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace tapestry::data {
namespace {

/// A number of the gamma distribution with this shape (Marsaglia and Tsang, "A simple method for generating
/// gamma variables", 2000). Shapes below 1 are reached from shape + 1 by a power of a uniform number.
double gamma(Rng& rng, double shape) {
  if (shape < 1) {
    const double u = 1 - rng.uniform();
    return gamma(rng, shape + 1) * std::pow(u, 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double radius = std::sqrt(-2 * std::log1p(-rng.uniform()));
    const double x = radius * std::cos(2 * std::numbers::pi * rng.uniform());
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v > 0 && std::log1p(-rng.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

/// A number of Beta(alpha, alpha).
double beta(Rng& rng, double alpha) {
  const double a = gamma(rng, alpha), b = gamma(rng, alpha);
  return a + b > 0 ? a / (a + b) : rng.uniform() < 0.5 ? 0.0 : 1.0;
}

/// Returns out[i] = part * x[i] + (1 - part) * x[i - 1] along the first dimension, for contiguous f32.
Tensor mixed(const Tensor& x, float part) {
  Tensor out = empty(x.sizes(), {DType::f32, kCPU});
  const std::int64_t n = x.size(0), row = n == 0 ? 0 : x.numel() / n;
  for (std::int64_t i = 0; i < n; ++i) {
    const float* a = x.data<float>() + i * row;
    const float* b = x.data<float>() + (i == 0 ? n - 1 : i - 1) * row;
    float* to = out.data<float>() + i * row;
    for (std::int64_t j = 0; j < row; ++j) to[j] = part * a[j] + (1 - part) * b[j];
  }
  return out;
}

/// Returns labels as probabilities f32 [N, classes].
Tensor probabilities(const char* op, const Tensor& target, std::int64_t n, std::int64_t classes) {
  check_cpu(op, target, "target");
  const Tensor labels = dense(target);
  if (labels.dtype() == DType::f32) {
    check(labels.sizes() == Shape{n, classes}, "[", op, "] expected probabilities [", n, ", ", classes,
          "], got ", labels.sizes());
    return labels;
  }
  check<TypeError>(labels.dtype() == DType::i64, "[", op, "] labels are ", labels.dtype(),
                   "; give int64 classes or float32 probabilities");
  check(labels.sizes() == Shape{n}, "[", op, "] expected labels [", n, "], got ", labels.sizes());
  Tensor out = empty({n, classes}, {DType::f32, kCPU});
  std::fill_n(out.data<float>(), out.numel(), 0.0f);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t label = labels.data<std::int64_t>()[i];
    check<IndexError>(label >= 0 && label < classes, "[", op, "] label ", label, " of image ", i,
                      " is not in [0, ", classes, ")");
    out.data<float>()[i * classes + label] = 1;
  }
  return out;
}

/// Copies the images, and pastes a rectangle of image i - 1 into image i. `part`, the area that stays,
/// becomes exact.
Tensor pasted(const Tensor& images, double& part, Rng& rng) {
  const std::int64_t n = images.size(0), channels = images.size(1), h = images.size(2), w = images.size(3);
  const std::int64_t y = rng.below(std::max<std::int64_t>(h, 1)), x = rng.below(std::max<std::int64_t>(w, 1));
  const double side = 0.5 * std::sqrt(1 - part);
  const std::int64_t half_w = static_cast<std::int64_t>(side * static_cast<double>(w)),
                     half_h = static_cast<std::int64_t>(side * static_cast<double>(h));
  const std::int64_t left = std::max<std::int64_t>(x - half_w, 0), right = std::min(x + half_w, w);
  const std::int64_t top = std::max<std::int64_t>(y - half_h, 0), bottom = std::min(y + half_h, h);
  Tensor out = empty(images.sizes(), {images.dtype(), kCPU});
  if (images.numel() == 0) return out;
  part = 1 - static_cast<double>((right - left) * (bottom - top)) / static_cast<double>(w * h);
  const std::size_t item = dtype_size(images.dtype());
  const char* from = static_cast<const char*>(images.raw_data());
  char* to = static_cast<char*>(out.raw_data());
  std::memcpy(to, from, images.nbytes());
  const auto offset = [&](std::int64_t i, std::int64_t c, std::int64_t row) {
    return static_cast<std::size_t>(((i * channels + c) * h + row) * w + left) * item;
  };
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t row = top; row < bottom; ++row)
        std::memcpy(to + offset(i, c, row), from + offset(i == 0 ? n - 1 : i - 1, c, row),
                    static_cast<std::size_t>(right - left) * item);
  return out;
}

}  // namespace

MixTransform::MixTransform(Kind kind, MixOptions options) : kind_(kind), options_(options) {
  check(options.num_classes >= 1, "[", name(), "] num_classes is ", options.num_classes,
        "; give the number of classes");
  check(options.alpha > 0 && std::isfinite(options.alpha), "[", name(), "] alpha is ", options.alpha,
        "; it must be positive");
}

const char* MixTransform::name() const { return kind_ == Kind::mixup ? "mixup" : "cutmix"; }

Example MixTransform::operator()(const Example& batch, Rng random) const {
  check_cpu(name(), batch.input, "input");
  check(batch.input.dim() == 4, "[", name(), "] expected a batch of images [N, C, H, W], got ",
        batch.input.sizes());
  const Tensor images = dense(batch.input);
  check<TypeError>(kind_ == Kind::cutmix || images.dtype() == DType::f32, "[", name(), "] images are ",
                   images.dtype(), "; put normalize() or to_float() before it");
  const Tensor labels = probabilities(name(), batch.target, images.size(0), options_.num_classes);
  double part = beta(random, options_.alpha);
  const Tensor input =
      kind_ == Kind::mixup ? mixed(images, static_cast<float>(part)) : pasted(images, part, random);
  return {input, mixed(labels, static_cast<float>(part))};
}

void MixTransform::operator()(Example& batch, const BatchContext& context) const {
  check(!context.indices.empty(), "[", name(), "] the batch is empty");
  batch = (*this)(batch, context.rng(0));
}

void MixTransform::operator()(std::pair<Tensor, Tensor>& batch, const BatchContext& context) const {
  Example example{batch.first, batch.second};
  (*this)(example, context);
  batch = {example.input, example.target};
}

MixTransform mixup(MixOptions options) { return {MixTransform::Kind::mixup, options}; }
MixTransform cutmix(MixOptions options) { return {MixTransform::Kind::cutmix, options}; }

}  // namespace tapestry::data
