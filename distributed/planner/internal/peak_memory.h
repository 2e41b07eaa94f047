#pragma once
// The peak memory of one device, found by replaying the device's actions in a step.
#include <cstdint>
#include <utility>
#include <vector>

#include "tapestry/distributed/pipeline/schedule.h"
#include "tapestry/distributed/planner/internal/cost_model.h"

namespace tapestry::distributed::planner {

/// The most that a device holds from a part of an action on, until the next one. The part is 0 at the begin
/// of the action, and 1 at its end.
struct HeldMemory {
  std::size_t action = 0;
  double part = 0;
  MemoryItems items = {};
  bool between = false;  ///< between actions, where nothing computes
};
/// An action with this number is the begin of the step.
inline constexpr std::size_t kBeforeActions = SIZE_MAX;

/// The work of one device in a step.
struct DeviceSchedule {
  BlockRange range;             ///< the blocks on the device
  std::vector<double> samples;  ///< of each micro-batch
  std::vector<Action> actions;  ///< in the order of execution
  double data = 0;              ///< bytes of the batch on the device
  bool has_loss = true;         ///< the device computes the loss
  bool keeps_input = false;     ///< the device keeps a copy of its input, which another device sent
  bool is_stage = false;  ///< the device runs a stage of a pipeline, which keeps the inputs of a micro-batch
  bool keeps_output = false;   ///< the device keeps the output of the last block until the end of backward
  bool has_gathered = false;   ///< `data` counts the gathered gradient, of which the output's is a part
  bool has_buckets = false;    ///< gradients live in all-reduce buckets
  bool zero_bubble = false;    ///< Action::Kind::backward computes input gradients only
  double optimizer_share = 1;  ///< the part of the optimizer's state that is on the device
  /// The number of ranks that divide parameters and gradients, as under fully_shard(). A block's parameters
  /// are then whole from shortly before its forward or backward until that ends. Its gradients are whole
  /// until they are divided, in the last of several backwards.
  int sharded = 1;
  /// If they divide: the blocks are whole during the step, because a pipeline gathers them once.
  bool keeps_whole = false;
  /// By block, if they divide: the part of the next block's backward at whose end the gradients are divided.
  std::vector<double> divided_after = {};
  /// Ranks divide the gradients in buckets, as under stage 2 of ZeRO. Then a bucket has memory from its first
  /// gradient until it and two later buckets are complete.
  bool divides_buckets = false;
  /// If it is not null, peak_memory() appends what the device holds while it computes each block, and between
  /// actions.
  std::vector<HeldMemory>* held = nullptr;
};

/// The actions of a step without micro-batches.
inline const std::vector<Action> kOnePass = {{Action::Kind::forward, 0}, {Action::Kind::backward, 0}};

/// The memory at the moment when the device holds most.
MemoryItems peak_memory(const CostModel& c, const DeviceSchedule& schedule);

/// Begin and end of each action in seconds of the step.
using ActionTimes = std::vector<std::pair<double, double>>;
/// Puts held memory on the clock of the step.
std::vector<PredictedMemory> on_clock(const std::vector<HeldMemory>& held, const ActionTimes& actions);
/// Makes `samples` the memory over time of the prediction, if this device needs more than that whose memory
/// it has so far.
void keep_memory_over_time(Prediction& p, std::size_t device, std::vector<PredictedMemory> samples);

}  // namespace tapestry::distributed::planner
