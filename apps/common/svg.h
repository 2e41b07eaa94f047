#pragma once
// The two pictures of a training run, as SVG text.
#include <cstdint>
#include <string>
#include <vector>

namespace apps {

/// What an epoch ended with; accuracies are fractions, `seconds` of training so far.
struct EpochMetrics {
  int epoch = 0;
  double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0, seconds = 0;
};

/// Loss and accuracy over the epochs, training and test. Values that are not finite leave gaps.
std::string curves_svg(const std::vector<EpochMetrics>& epochs, const std::string& title);

/// counts[i * n + j]: examples of class i that were taken for class j.
std::string confusion_svg(const std::vector<std::int64_t>& counts, const std::vector<std::string>& classes,
                          const std::string& title);

}  // namespace apps
