#pragma once
// Pictures of a training run as SVG text: learning curves, a confusion matrix, and images with captions.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/apps/classifier/metrics.h"

namespace apps {

/// Draws training and test loss and accuracy over the epochs. Values that are not finite leave gaps.
std::string curves_svg(const std::vector<EpochMetrics>& epochs, const std::string& title);

/// Draws a confusion matrix. counts[i * n + j] is the number of examples of class i that were predicted as
/// class j.
std::string confusion_svg(const std::vector<std::int64_t>& counts, const std::vector<std::string>& classes,
                          const std::string& title);

/// A picture as a PNG file, and the lines of text below it.
struct CaptionedPicture {
  std::string png;
  std::vector<std::string> lines;
};
/// Draws pictures in rows of six, scaled to squares.
std::string pictures_svg(const std::vector<CaptionedPicture>& pictures, const std::string& title);

}  // namespace apps
