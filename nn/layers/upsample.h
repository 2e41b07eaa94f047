#pragma once
// Layers that resize images.
#include <optional>
#include <string>

#include "tapestry/autograd/ops/resample.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Give either `size` or `scale_factor`.
struct UpsampleOptions {
  using Layer = class Upsample;
  Shape size = {};  ///< of the result's spatial dimensions; one number stands for all of them
  ScaleFactor scale_factor = {};
  InterpolateMode mode = InterpolateMode::nearest;
  std::optional<bool> align_corners = {};  ///< for the linear modes and bicubic
  bool recompute_scale_factor = false;
};
/// Resizes (N, C, L), (N, C, H, W) or (N, C, D, H, W) by interpolate().
class Upsample : public Module {
 public:
  using Options = UpsampleOptions;
  explicit Upsample(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct UpsamplingNearest2dOptions {
  using Layer = class UpsamplingNearest2d;
  Shape size = {};
  ScaleFactor scale_factor = {};
};
/// Resizes images by interpolate() in mode nearest.
class UpsamplingNearest2d : public Upsample {
 public:
  using Options = UpsamplingNearest2dOptions;
  explicit UpsamplingNearest2d(const Options& o)
      : Upsample({.size = o.size, .scale_factor = o.scale_factor}) {}
};

struct UpsamplingBilinear2dOptions {
  using Layer = class UpsamplingBilinear2d;
  Shape size = {};
  ScaleFactor scale_factor = {};
};
/// Resizes images by interpolate() in mode bilinear with align_corners = true.
class UpsamplingBilinear2d : public Upsample {
 public:
  using Options = UpsamplingBilinear2dOptions;
  explicit UpsamplingBilinear2d(const Options& o)
      : Upsample({.size = o.size,
                  .scale_factor = o.scale_factor,
                  .mode = InterpolateMode::bilinear,
                  .align_corners = true}) {}
};

}  // namespace tapestry::nn
