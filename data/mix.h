#pragma once
// MixUp and CutMix: batch transforms that mix each image and its label with another one of the batch.
#include <cstdint>

#include "tapestry/data/dataloader.h"

namespace tapestry::data {

struct MixOptions {
  std::int64_t num_classes = 0;
  double alpha = 1;  ///< the part of the first image is drawn from Beta(alpha, alpha)
};

/// Mixes pairs of samples: Example and std::pair batches of images [N, C, H, W] and labels i64 [N], or
/// probabilities f32 [N, num_classes]. The labels become probabilities f32 [N, num_classes], which
/// cross_entropy takes. Each image i is mixed with image i - 1, and image 0 with the last one. All pairs of a
/// batch have the same random numbers, which depend on the seed, the epoch and the batch's first sample.
class MixTransform {
 public:
  enum class Kind : std::uint8_t { mixup, cutmix };
  MixTransform(Kind kind, MixOptions options);
  Example operator()(const Example& batch, Rng random) const;
  void operator()(Example& batch, const BatchContext& context) const;
  void operator()(std::pair<Tensor, Tensor>& batch, const BatchContext& context) const;

 private:
  const char* name() const;
  Kind kind_;
  MixOptions options_;
};

/// x_i = part * x_i + (1 - part) * x_{i-1}, for images and labels alike (Zhang et al., "mixup: Beyond
/// Empirical Risk Minimization", 2018). Images are f32. Throws ValueError unless num_classes >= 1 and alpha >
/// 0.
MixTransform mixup(MixOptions options);
/// Pastes a rectangle of image i - 1 into image i, and mixes the labels by the areas (Yun et al., "CutMix:
/// Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019). Any dtype.
MixTransform cutmix(MixOptions options);

}  // namespace tapestry::data
