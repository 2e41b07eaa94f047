#pragma once
// Layers that change the shape: Unflatten, padding, and exchanges of channels with pixels.
#include <initializer_list>
#include <string>
#include <vector>

#include "tapestry/autograd/ops/pad.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct UnflattenOptions {
  using Layer = class Unflatten;
  std::int64_t dim = 1;
  Shape unflattened_size;  ///< one size may be -1 and is inferred
};
/// Replaces dimension `dim` by several dimensions of the sizes unflattened_size.
class Unflatten : public Module {
 public:
  using Options = UnflattenOptions;
  explicit Unflatten(const Options& o) : options(o) {}
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

/// The padding of kDims dimensions: one number for all sides, or two per dimension, of the last dimension
/// first, as in pad(). For images: left, right, top, bottom.
template <int kDims>
struct Sides {
  std::int64_t sizes[2 * kDims] = {};
  Sides() = default;
  Sides(std::int64_t all) {  // NOLINT: `.padding = 1` reads well
    for (std::int64_t& size : sizes) size = all;
  }
  /// Throws ValueError unless there are two numbers per dimension.
  Sides(std::initializer_list<std::int64_t> each) {
    check(each.size() == 2 * kDims, "[padding] ", each.size(), " numbers; give one, or ", 2 * kDims);
    std::int64_t* size = sizes;
    for (const std::int64_t one : each) *size++ = one;
  }
};

/// The common part of all layers that pad: pads the last kDims dimensions of an input that also has a
/// dimension of channels and may have one of samples.
class PadLayer : public Module {
 public:
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return name_; }
  std::string options_text() const override;

 protected:
  PadLayer(const char* name, PadMode mode, std::vector<std::int64_t> padding, double value = 0)
      : name_(name), mode_(mode), padding_(std::move(padding)), value_(value) {}

 private:
  const char* const name_;
  const PadMode mode_;
  const std::vector<std::int64_t> padding_;
  const double value_;
};

template <int kDims, PadMode kMode>
class Pad;
template <int kDims, PadMode kMode>
struct PadOptions {
  using Layer = Pad<kDims, kMode>;
  Sides<kDims> padding;
};
template <int kDims>
struct PadOptions<kDims, PadMode::constant> {
  using Layer = Pad<kDims, PadMode::constant>;
  Sides<kDims> padding;
  double value = 0;
};
/// Pads the last kDims dimensions. PyTorch's names are below. ConstantPad with its default value is ZeroPad.
template <int kDims, PadMode kMode>
class Pad : public PadLayer {
 public:
  using Options = PadOptions<kDims, kMode>;
  explicit Pad(const Options& o) : PadLayer(kName, kMode, numbers(o), value(o)), options(o) {}
  const Options options;

 private:
  static constexpr const char* kNames[4][3] = {{"ConstantPad1d", "ConstantPad2d", "ConstantPad3d"},
                                               {"ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d"},
                                               {"ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d"},
                                               {"CircularPad1d", "CircularPad2d", "CircularPad3d"}};
  static constexpr const char* kName = kNames[static_cast<int>(kMode)][kDims - 1];
  static std::vector<std::int64_t> numbers(const Options& o) {
    return {o.padding.sizes, o.padding.sizes + 2 * kDims};
  }
  static double value(const Options& o) {
    if constexpr (kMode == PadMode::constant) return o.value;
    else return 0;
  }
};
using ConstantPad1d = Pad<1, PadMode::constant>;
using ConstantPad2d = Pad<2, PadMode::constant>;
using ConstantPad3d = Pad<3, PadMode::constant>;
using ZeroPad1d = ConstantPad1d;
using ZeroPad2d = ConstantPad2d;
using ZeroPad3d = ConstantPad3d;
using ReflectionPad1d = Pad<1, PadMode::reflect>;
using ReflectionPad2d = Pad<2, PadMode::reflect>;
using ReflectionPad3d = Pad<3, PadMode::reflect>;
using ReplicationPad1d = Pad<1, PadMode::replicate>;
using ReplicationPad2d = Pad<2, PadMode::replicate>;
using ReplicationPad3d = Pad<3, PadMode::replicate>;
using CircularPad1d = Pad<1, PadMode::circular>;
using CircularPad2d = Pad<2, PadMode::circular>;
using CircularPad3d = Pad<3, PadMode::circular>;

struct PixelShuffleOptions {
  using Layer = class PixelShuffle;
  std::int64_t upscale_factor = 0;
};
/// Rearranges (..., C r r, H, W) to (..., C, H r, W r), where r is upscale_factor.
class PixelShuffle : public Module {
 public:
  using Options = PixelShuffleOptions;
  explicit PixelShuffle(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct PixelUnshuffleOptions {
  using Layer = class PixelUnshuffle;
  std::int64_t downscale_factor = 0;
};
/// Rearranges (..., C, H r, W r) to (..., C r r, H, W), where r is downscale_factor.
class PixelUnshuffle : public Module {
 public:
  using Options = PixelUnshuffleOptions;
  explicit PixelUnshuffle(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

}  // namespace tapestry::nn
