#pragma once
// One pass of a device over its blocks with the collectives beside it. Whole models, divided models and
// stages of a pipeline are predicted from such passes.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tapestry/distributed/planner/internal/cost_model.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/step_queues.h"

namespace tapestry::distributed::planner {

/// The seconds of computing in a forward or a backward, with the waits of divided layers for one another.
struct BlockTimes {
  std::vector<double> blocks_s;  ///< by block of the range, in the order of the model
  double loss_s = 0;
  std::vector<double> layers_s = {};  ///< the part of blocks_s in which layers wait
  double loss_layers_s = 0;           ///< that of loss_s
  double samples = 0;
  double sum() const;
  double layers_sum() const;
  /// The same in proportion, with another sum and the same waits.
  BlockTimes scaled_to(double sum) const;
};
BlockTimes forward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown);
BlockTimes backward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown);

/// The name of a collective, and what it moves.
struct Collected {
  std::string name;
  SpanSubject subject = {};
};
/// A collective of a pass, or a wait for one, in seconds since the begin of the pass.
struct Communication {
  bool beside = false;  ///< the collective, which runs beside computing; otherwise the wait
  Collected what;
  double begin_s = 0, end_s = 0;
};

/// What a pass costs with its collectives.
struct PassCost {
  double computing_s = 0;         ///< with the delays that collectives cause
  std::vector<double> exposed_s;  ///< by axis: waiting without computing
  std::vector<Communication> communication = {};
  double exposed() const;
};

/// The waits of a block's divided layers in a pass over n samples, axis by axis; the last one ends at
/// `end_s`.
std::vector<Communication> block_waits(const CostModel& c, const BlockProfile& b, bool backward, double n,
                                       double end_s);
/// The waits of all divided layers in a pass without other collectives. In backward, the gradients of a block
/// are copied into buckets after it, which takes `copies` times as long as alone.
std::vector<Communication> layer_waits(const CostModel& c, BlockRange range, const BlockTimes& times,
                                       bool backward, double copies = 0);

/// A backward whose gradients are added in buckets during it. Copies into them take `slowdown` times as long
/// as alone.
PassCost backward_with_buckets(const CostModel& c, BlockRange range, const BlockTimes& times,
                               double slowdown);

/// Returns the waits of simulated phases, and the collectives that run beside them. `collectives` says what
/// each of them moves.
std::vector<Communication> communication_of(const StepQueues& times, std::span<const ComputePhase> phases,
                                            const std::vector<Collected>& collectives);

/// The collectives that a pass over a divided model has.
struct UnitCollectives {
  bool gathers = true;  ///< parameters are gathered
  bool divides = true;  ///< gradients are added, in backward
};
PassCost forward_with_units(const CostModel& c, BlockRange range, const BlockTimes& times);
PassCost backward_with_units(const CostModel& c, BlockRange range, const BlockTimes& times,
                             const UnitCollectives& collectives);

/// The optimizer of a range whose state an axis may divide. Under stages 1 and 2 of ZeRO, each device gathers
/// the parameters of a bucket while it updates the next one.
PassCost update_cost(const CostModel& c, BlockRange range, double slowdown);
/// The memory at the peak of a step under ZeRO: that of `peak`, or that of the update, which is the last
/// action. Appends the update to `held`, if it is not null.
MemoryItems with_update(const CostModel& c, BlockRange range, const MemoryItems& peak,
                        std::vector<HeldMemory>* held = nullptr);

/// The bytes that a device with this range sends over each axis in a step in which it gathers parameters
/// `gathers` times and adds gradients once, with the gather that follows an update under ZeRO.
std::vector<double> sent_by_axis(const CostModel& c, BlockRange range, int gathers);

/// Adds a span to the timeline, unless it takes no time.
void add_span(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
              double end_s, const SpanSubject& subject = {});
/// What a copy of these bytes along axis `i` moves.
SpanSubject moved(const CostModel& c, std::size_t i, double bytes);
/// Adds a pass that begins at `begin_s`, with its communication, and returns when it ends.
double add_pass(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
                const PassCost& pass);
void add_communication(Prediction& p, int row, double begin_s, const std::vector<Communication>& all);

/// For divided layers: moves their waits for one another from forward and backward to exposed communication,
/// and adds these and the bytes to the axes. Repeats the memory of a device for all devices that compute its
/// samples.
void add_layers(Prediction& p, const CostModel& c);

/// Fills in Prediction::axes. `exposed_s` is by axis from the innermost, a mean over the devices, and
/// `bytes_sent` is of all devices together. Axes that do nothing but add gradients as a part of a joined axis
/// are left out.
void set_axes(Prediction& p, const CostModel& c, const std::vector<double>& exposed_s,
              const std::vector<double>& bytes_sent);

}  // namespace tapestry::distributed::planner
