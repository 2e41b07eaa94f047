#pragma once
// Pipeline schedules: the order in which each stage runs its micro-batches, as pure functions of the numbers
// of stages and micro-batches.
//
//   const auto actions = distributed::schedule_actions(distributed::Schedule::one_f_one_b, 2, 3);
//   std::puts(distributed::schedule_table(actions).c_str());
//
//   stage 0  F0 F1 .. B0 F2 B1 .. B2
//   stage 1  .. F0 B0 F1 B1 F2 B2 ..
#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::distributed {

enum class Schedule : std::uint8_t {
  /// All forwards, then all backwards (Huang et al., "GPipe", 2019). Every stage holds the activations of all
  /// micro-batches before it frees the first.
  gpipe,
  /// One forward, one backward: each backward starts as early as possible, and one forward follows it
  /// (Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021, under the name
  /// PipeDream-Flush). It takes as long as gpipe. Stage s of S holds the activations of at most S - s
  /// micro-batches.
  one_f_one_b,
  /// 1F1B with every backward split in two (Qi et al., "Zero bubble pipeline parallelism", 2023, under the
  /// name ZB-H1). First come the gradients of a stage's inputs, because the previous stage waits for them.
  /// The gradients of its weights follow when the stage would be idle. The idle time is a third of 1F1B's if
  /// forward and the two halves take equally long. Every stage holds tensors of at most S micro-batches.
  zero_bubble,
};
/// "gpipe", "1f1b", "zero-bubble"
const char* schedule_name(Schedule schedule);

/// One step of a stage: the forward or backward of one micro-batch.
struct Action {
  /// `backward` is the whole backward, or only the gradients of inputs if `weights` follows.
  enum class Kind : std::uint8_t { forward, backward, weights } kind;
  int micro_batch;
  /// "F0", "B12", "W3"
  std::string str() const;
  friend bool operator==(const Action& a, const Action& b) = default;
};
/// "forward"
const char* kind_name(Action::Kind kind);

/// The actions of each stage in their order: result[stage][i]. Every micro-batch goes forward once and
/// backward once. Under every schedule, forwards and backwards are in the order of micro-batch numbers, so
/// gradients are summed in the same order. Throws ValueError unless `stages` and `micro_batches` are at
/// least 1.
std::vector<std::vector<Action>> schedule_actions(Schedule schedule, int stages, int micro_batches);
/// Only the forwards, for evaluation.
std::vector<std::vector<Action>> forward_actions(int stages, int micro_batches);

/// By stage: the largest number of micro-batches that have gone forward but have not completed backward.
std::vector<int> peak_activations(const std::vector<std::vector<Action>>& actions);

/// The idle fraction of all devices' time under gpipe and 1F1B: (stages - 1) / (micro_batches + stages - 1).
/// It holds if all stages take equally long, each is on its own device, and transfers take no time.
double ideal_bubble(int stages, int micro_batches);

/// The time that a stage takes for one micro-batch, in any unit.
struct StageCost {
  double forward = 1;
  double backward = 1;  ///< under zero_bubble only the gradients of inputs
  double weights = 1;   ///< under zero_bubble the gradients of weights
};

struct SimulationOptions {
  std::vector<StageCost> costs = {};  ///< by stage; empty means all 1
  /// By stage and by its actions in their order: what an action takes longer than its cost. Empty: nothing.
  std::vector<std::vector<double>> extra = {};
  double transfer = 0;                ///< time between two devices; both can compute meanwhile
  std::vector<int> devices = {};      ///< by stage, from 0; empty means one device per stage
};

struct TimedAction {
  int stage;
  Action action;
  double begin, end;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> devices;  ///< the actions of each device, in their order
  std::vector<double> idle;                       ///< by device: total minus its busy time
  double total = 0;                               ///< when the last action ends
  /// The idle fraction of all devices' time.
  double bubble() const;
};

/// Simulates the actions on devices that run one action at a time and always the one that can begin first. A
/// forward needs the forward of the previous stage. A backward needs the backward of the next stage and its
/// own forward. `weights` needs its own backward. Devices that keep to the simulated order cannot deadlock,
/// because the order is that of the simulated clock. Throws ValueError if the actions deadlock.
Simulation simulate(const std::vector<std::vector<Action>>& actions, const SimulationOptions& options = {});

/// A table with one row per stage and one column per unit of time, as at the top of this file. Every action
/// takes one unit.
std::string schedule_table(const std::vector<std::vector<Action>>& actions,
                           const std::vector<int>& devices = {});

}  // namespace tapestry::distributed
