#include "tapestry/data/formats/synthetic.h"

#include <cmath>
#include <numbers>

#include "tapestry/data/rng.h"

namespace tapestry::data {
namespace {

/// Draws normal numbers by the Box-Muller transform (1958) in double precision.
Tensor normal_images(const RandomDataset::Options& o) {
  check(o.size >= 0 && o.channels >= 0 && o.height >= 0 && o.width >= 0, "[RandomDataset] ", o.size,
        " images of ", o.channels, "x", o.height, "x", o.width, ": a size is negative");
  Tensor images = empty({o.size, o.channels, o.height, o.width}, {DType::f32, kCPU});
  float* out = images.data<float>();
  Rng rng(o.seed, 0);
  for (std::int64_t i = 0; i < images.numel(); i += 2) {
    const double radius = std::sqrt(-2 * std::log1p(-rng.uniform()));
    const double angle = 2 * std::numbers::pi * rng.uniform();
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < images.numel()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return images;
}

Tensor random_labels(const RandomDataset::Options& o) {
  check(o.num_classes >= 1, "[RandomDataset] num_classes is ", o.num_classes, "; it must be at least 1");
  Tensor labels = empty({o.size}, {DType::i64, kCPU});
  std::int64_t* out = labels.data<std::int64_t>();
  Rng rng(o.seed, 1);
  for (std::int64_t i = 0; i < o.size; ++i) out[i] = rng.below(o.num_classes);
  return labels;
}

}  // namespace

RandomDataset::RandomDataset(const Options& options)
    : TensorDataset(normal_images(options), random_labels(options)) {}

}  // namespace tapestry::data
