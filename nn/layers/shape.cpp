#include "tapestry/nn/layers/shape.h"

#include "tapestry/autograd/ops/fold.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

Tensor Unflatten::forward(const Tensor& x) { return unflatten(x, options.dim, options.unflattened_size); }
std::string Unflatten::options_text() const {
  return detail::OptionsText()
      .add("dim", options.dim)
      .add("unflattened_size", options.unflattened_size)
      .str();
}

Tensor PadLayer::forward(const Tensor& x) {
  const auto dims = static_cast<int>(padding_.size() / 2);
  tapestry::detail::check_defined(name_, x);
  check(x.dim() == dims + 1 || x.dim() == dims + 2, "[", name_, "] an input of shape ", x.sizes(),
        "; expected ", dims + 1, " or ", dims + 2, " dimensions");
  return pad(x, padding_, mode_, value_);
}
std::string PadLayer::options_text() const {
  std::string sizes;
  for (const std::int64_t size : padding_) sizes += (sizes.empty() ? "(" : ", ") + std::to_string(size);
  detail::OptionsText text;
  text.add("padding", sizes + ")");
  if (mode_ == PadMode::constant) text.add("value", value_);
  return text.str();
}

PixelShuffle::PixelShuffle(const Options& o) : options(o) {
  check(o.upscale_factor > 0, "[PixelShuffle] upscale_factor must be positive but is ", o.upscale_factor,
        "; set it");
}
Tensor PixelShuffle::forward(const Tensor& x) { return pixel_shuffle(x, options.upscale_factor); }
std::string PixelShuffle::options_text() const {
  return detail::OptionsText().add("upscale_factor", options.upscale_factor).str();
}

PixelUnshuffle::PixelUnshuffle(const Options& o) : options(o) {
  check(o.downscale_factor > 0, "[PixelUnshuffle] downscale_factor must be positive but is ",
        o.downscale_factor, "; set it");
}
Tensor PixelUnshuffle::forward(const Tensor& x) { return pixel_unshuffle(x, options.downscale_factor); }
std::string PixelUnshuffle::options_text() const {
  return detail::OptionsText().add("downscale_factor", options.downscale_factor).str();
}

}  // namespace tapestry::nn
