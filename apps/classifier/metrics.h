#pragma once
// metrics.jsonl: the results of each epoch of a run, a JSON object per line.
#include <string>
#include <vector>

namespace apps {

/// The results of an epoch. Accuracies are between 0 and 1. `seconds` is the training time since the start of
/// the run.
struct EpochMetrics {
  int epoch = 0;
  double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0, seconds = 0;
};

/// The text of the file.
std::string to_lines(const std::vector<EpochMetrics>& epochs);
/// Reads the metrics of the epochs up to `last_epoch`. None if the file does not exist. Throws IoError if a
/// line is not metrics, or if its epoch is not later than that of the line before.
std::vector<EpochMetrics> read_metrics(const std::string& path, int last_epoch);

}  // namespace apps
