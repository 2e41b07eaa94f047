#pragma once
// The measurements of one mode.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/planner/planner.h"

namespace apps::compare {

using tapestry::distributed::planner::StepBreakdown;

/// When forward, backward and the update of a device begin, and when the last of its spans ends. Empty if one
/// of them is missing.
std::vector<double> phases_of(const std::vector<tapestry::Span>& spans, const std::string& row);

/// Sums up the spans per activity, as means over the devices. `rows` are the devices. Other rows of `spans`,
/// such as "cpu:0 communication", run beside a device and are not counted. If spans are nested, the innermost
/// counts. The idle time is the rest of `step_s`.
StepBreakdown breakdown_of(const std::vector<tapestry::Span>& spans, const std::vector<std::string>& rows,
                           double step_s);

/// The memory of a device or rank during one step.
struct MemoryHistory {
  std::string row;
  std::vector<tapestry::MemorySample> samples;
  /// When forward, backward and the update began in the recorded step, and when it ended, in seconds since
  /// the first sample; empty if the step lacks one of them. The recorded step is not the timed one, so a
  /// picture of both stretches the samples between these moments.
  std::vector<double> phases_s;
  /// The sample with the most bytes. The history must have samples.
  const tapestry::MemorySample& peak() const;
};
/// Reduces samples to at most about `count`: of equal intervals of time, each keeps the sample with the most
/// bytes. The first and the last sample stay.
std::vector<tapestry::MemorySample> thinned(const std::vector<tapestry::MemorySample>& samples,
                                            std::size_t count);

/// What a device sends to another in one step. Collectives count as rings.
struct Traffic {
  int from = 0, to = 0;  ///< places in Result::rows
  std::int64_t bytes = 0;
  std::string axis, what;  ///< "replicate", "gradients"
  std::string phase;       ///< "forward", "backward", "update"; empty if the strategy does not know
};

struct Result {
  std::string name;
  std::vector<std::string> rows;  ///< the devices, "cpu:0", or the ranks, "rank 0"
  std::string description;
  tapestry::distributed::StrategyPlan plan;
  /// The axes of the mesh and their sizes, outermost first; none for one device. And their text.
  std::vector<std::pair<std::string, int>> axes;
  std::string title;            ///< "replicate=2:zero=1"
  std::string family;           ///< "single", "data" if devices divide the batch, "stages" if the model
  double step_s = 0;            ///< the median of the timed steps
  std::vector<double> steps_s;  ///< the timed steps, in order
  /// The median of each round; step_s is the median of these. A mode that failed has those of the rounds that
  /// it finished.
  std::vector<double> rounds_s;
  std::vector<std::vector<double>> rounds_steps_s;  ///< the timed steps of each round
  StepBreakdown breakdown;                          ///< the breakdown of the median step
  /// The spans of the median step. SpanSubject::module is the name of a block, and SpanSubject::axis that of
  /// an axis.
  std::vector<tapestry::Span> spans;
  std::vector<std::int64_t> peak_bytes;  ///< per row, during the timed steps
  std::vector<MemoryHistory> memory;     ///< per row, of a step that was not timed; empty if not recorded
  std::vector<Traffic> traffic;          ///< per step
  /// By axis: how long a process waited for communication in the step, as a mean over the processes. Empty if
  /// it was not measured.
  std::vector<std::pair<std::string, double>> exposed_s;
  std::vector<int> split;      ///< blocks per stage; empty if the model is not split
  std::vector<double> losses;  ///< of all steps, including warm-up
  double difference = 0;       ///< loss_difference from the mode single
  std::optional<double> predicted_step_s;
  double predicted_low_s = 0, predicted_high_s = 0;  ///< the predictions from the costs of single rounds
  std::vector<std::int64_t> predicted_peak_bytes;
  std::vector<planner::AxisCost> predicted_axes;
  std::vector<planner::PredictedTraffic> predicted_traffic;
  std::string error;  ///< if not empty, the mode failed

  /// True if the mode ran to its end. It can still have failed, because its losses differ from those of
  /// single.
  bool measured() const { return step_s > 0; }
  /// The bytes that all devices together send in a step: along `axis`, or, without a name, in all.
  std::int64_t bytes_sent(const std::string& axis = {}) const;
  /// The axes, followed by the joined axes, along which gradients are added as along several axes at once. An
  /// example is "replicate_expert". Its size is the product of theirs.
  std::vector<std::pair<std::string, int>> sending_axes() const;
  /// The relative error of the predicted step time.
  double prediction_error() const { return *predicted_step_s / step_s - 1; }
};

/// Converts to JSON and back, without the fields that need the results of other modes or rounds. The parser
/// throws ValueError if the text is not a result.
std::string to_text(const Result& result);
Result result_from_text(const std::string& text);

/// The result with the median step time, the lower median if the number is even.
Result median_of(std::vector<Result> rounds);

/// ||losses - reference|| / ||reference||, or infinity if a loss is not finite or the lengths differ.
double loss_difference(const std::vector<double>& losses, const std::vector<double>& reference);
/// The largest loss_difference that passes. Modes add the same numbers in another order, which changes the
/// losses by rounding only. AdamW divides a gradient by its own size, which makes the rounding of small
/// gradients as large as that of others, so its tolerance in f32 is wider.
double tolerance(const Workload& workload);
/// Fills in `difference`, and `error` if the difference exceeds `tolerance`. results[0] must be the mode
/// single.
void compare_losses(std::vector<Result>& results, double tolerance);

}  // namespace apps::compare
