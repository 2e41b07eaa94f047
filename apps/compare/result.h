#pragma once
// What was measured of one mode.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/dtype.h"
#include "tapestry/core/timeline.h"

namespace apps::compare {

/// Where the time of a step went: means over the devices, so that they add up to the step.
struct StepSplit {
  double forward_s = 0, backward_s = 0;
  double exposed_comm_s = 0;  ///< a device communicates, or waits for it, and computes nothing
  double update_s = 0;        ///< the optimizer, and what is none of the others
  double idle_s = 0;
};

/// `rows` are the devices; other rows of `spans`, such as "cpu:0 communication", run beside them and do not
/// count. Of spans within one another the innermost counts. Idle is what is left of `step_s`.
StepSplit split_of(const std::vector<tapestry::Span>& spans, const std::vector<std::string>& rows,
                   double step_s);

struct Result {
  std::string name;
  std::vector<std::string> rows;  ///< "cpu:0" or "rank 0"
  double step_s = 0;              ///< the median of the timed steps
  std::vector<double> rounds_s;   ///< that of each round, if there are several; step_s is their median
  StepSplit split;                ///< of the step that took that time
  std::vector<tapestry::Span> spans;
  std::vector<std::int64_t> peak_bytes;  ///< by row, from the first timed step on
  std::int64_t bytes_sent = 0;           ///< in a step, by all
  std::vector<double> losses;            ///< of all steps, those before the timed ones too
  double difference = 0;                 ///< of `losses` from those of single, norm-wise
  std::optional<double> predicted_step_s;
  std::vector<std::int64_t> predicted_peak_bytes;
  std::string error;  ///< why there is nothing else
};

/// JSON of one result without what others are needed for, and back. Throws ValueError for other text.
std::string to_text(const Result& result);
Result result_of(const std::string& text);

/// The one whose step time is the median, of an even number the smaller.
Result median_of(std::vector<Result> rounds);

/// ||losses - reference|| / ||reference||; infinite if one is not finite or they are of different lengths.
double loss_difference(const std::vector<double>& losses, const std::vector<double>& reference);
/// How far modes may differ (DESIGN.md, section 7).
double tolerance(tapestry::DType dtype);
/// Fills in `difference`; of what is beyond `tolerance` the error says so. `results[0]` is single.
void compare_losses(std::vector<Result>& results, double tolerance);

}  // namespace apps::compare
