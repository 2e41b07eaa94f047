#pragma once
// The test images on which a classifier errs most.
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"

namespace apps {

/// Collects the misclassified images with the highest losses.
class WorstMistakes {
 public:
  static constexpr std::size_t kCount = 24;
  /// Adds a batch on the CPU: images (n, C, H, W), labels (n) and scores (n, classes).
  void add(const tapestry::Tensor& images, const tapestry::Tensor& labels, const tapestry::Tensor& scores);
  /// A picture of the images with their true and predicted classes and the loss, the worst first. The
  /// brightness of each image is scaled, because the images are normalized.
  std::string svg(const std::vector<std::string>& classes, const std::string& title) const;

 private:
  struct Mistake {
    double loss;
    std::int64_t label, guess;
    tapestry::Tensor image;
  };
  std::vector<Mistake> worst_;  // in descending order of the loss
};

}  // namespace apps
