#pragma once
// When each stage of a pipeline does what: pure functions of the numbers of stages and micro-batches.
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
  /// All forwards, then all backwards (Huang et al., "GPipe", 2019): every stage holds the activations of
  /// every micro-batch before the first is freed.
  gpipe,
  /// A backward as soon as there is one, and a forward after each (Narayanan et al., "Efficient large-scale
  /// language model training on GPU clusters", 2021, there PipeDream-Flush): it takes the same time, and a
  /// stage holds no more micro-batches than there are stages from it to the last.
  one_f_one_b,
  /// 1F1B with every backward in two halves: the gradients of a stage's inputs, for which the stage before
  /// waits, and later those of its weights, for which nobody does, where it would be idle (Qi et al., "Zero
  /// bubble pipeline parallelism", 2023, there ZB-H1). A third of 1F1B's idle time where forward and the
  /// halves take equally long; a stage holds what is left of as many micro-batches as there are stages.
  zero_bubble,
};
/// "gpipe", "1f1b", "zero-bubble"
const char* schedule_name(Schedule schedule);

/// What a stage does with one micro-batch.
struct Action {
  /// `backward` is all of it, unless `weights` follows.
  enum class Kind : std::uint8_t { forward, backward, weights } kind;
  int micro_batch;
  /// "F0", "B12", "W3"
  std::string str() const;
  friend bool operator==(const Action& a, const Action& b) = default;
};
/// "forward"
const char* kind_name(Action::Kind kind);

/// What each stage does, in its order: each micro-batch forward once and backward once. Micro-batches come in
/// the order of their numbers each way under every schedule, so a stage adds gradients in one order.
/// ValueError unless there is a stage and a micro-batch.
std::vector<std::vector<Action>> schedule_actions(Schedule schedule, int stages, int micro_batches);
/// The forwards alone, as when a model is evaluated.
std::vector<std::vector<Action>> forward_actions(int stages, int micro_batches);

/// By stage: how many micro-batches have gone forward and not yet all the way backward, at most.
std::vector<int> peak_activations(const std::vector<std::vector<Action>>& actions);

/// The idle share of all devices' time under gpipe and 1F1B, where all stages take equally long, each on its
/// own device, and nothing else takes any: (stages - 1) / (micro_batches + stages - 1).
double ideal_bubble(int stages, int micro_batches);

/// How long a stage takes with a micro-batch, in any unit.
struct StageCost {
  double forward = 1;
  double backward = 1;  ///< under zero_bubble its first half
  double weights = 1;   ///< the second one
};

struct SimulationOptions {
  std::vector<StageCost> costs = {};  ///< by stage; empty: all ones
  double transfer = 0;                ///< between two devices, which keeps neither of them busy
  std::vector<int> devices = {};      ///< the device of each stage, from 0; empty: each its own
};

struct TimedAction {
  int stage;
  Action action;
  double begin, end;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> devices;  ///< what each does, in its order
  std::vector<double> idle;                       ///< by device, until the last of all has ended
  double total = 0;
  /// The idle share of all devices' time.
  double bubble() const;
};

/// Runs the lists on imagined devices, each of which does one thing at a time and always what can begin
/// first. A stage needs its neighbour's result: forward that of the stage before, backward that of the stage
/// after and its own forward; weights its own backward. Since each device's order is that of the clock,
/// devices that keep to it never wait for each other in a circle. ValueError where that is impossible: some
/// stages wait for ever.
Simulation simulate(const std::vector<std::vector<Action>>& actions, const SimulationOptions& options = {});

/// A row a stage, a column a unit of time in which every action takes one: as at the top of this file.
std::string schedule_table(const std::vector<std::vector<Action>>& actions,
                           const std::vector<int>& devices = {});

}  // namespace tapestry::distributed
