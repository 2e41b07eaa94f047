#include "tapestry/nn/layers/upsample.h"

#include <sstream>

#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

Upsample::Upsample(const Options& o) : options(o) {
  check(o.size.empty() != o.scale_factor.factors.empty(), "[Upsample] give either size or scale_factor, not ",
        o.size.empty() ? "neither" : "both");
}
Tensor Upsample::forward(const Tensor& x) {
  return interpolate(x, {.size = options.size,
                         .scale_factor = options.scale_factor,
                         .mode = options.mode,
                         .align_corners = options.align_corners,
                         .recompute_scale_factor = options.recompute_scale_factor});
}
std::string Upsample::options_text() const {
  constexpr const char* kModes[] = {"nearest",   "nearest_exact", "linear", "bilinear",
                                    "trilinear", "bicubic",       "area"};
  detail::OptionsText text;
  const std::vector<double>& factors = options.scale_factor.factors;
  if (factors.size() == 1) {
    text.add("scale_factor", factors[0]);
  } else if (!factors.empty()) {
    std::ostringstream all;
    for (std::size_t i = 0; i < factors.size(); ++i) all << (i == 0 ? "(" : ", ") << factors[i];
    text.add("scale_factor", all.str() + ")");
  } else if (options.size.size() == 1) {
    text.add("size", options.size[0]);
  } else {
    text.add("size", options.size);
  }
  return text.add("mode", kModes[static_cast<int>(options.mode)]).str();
}

}  // namespace tapestry::nn
