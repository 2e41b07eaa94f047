#pragma once
// RankPipeline runs one stage per rank of a process group: rank i computes stage i, on the calling thread.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/internal/rank_drift.h"
#include "tapestry/distributed/pipeline/internal/rank_messages.h"
#include "tapestry/distributed/pipeline/internal/rank_tied_parameters.h"
#include "tapestry/distributed/pipeline/internal/runner.h"
#include "tapestry/distributed/pipeline/internal/tied_parameters.h"

namespace tapestry::distributed {

class RankPipeline final : public PipelineRunner {
 public:
  /// Collective. `stages` holds the one stage of this rank.
  RankPipeline(std::shared_ptr<ProcessGroup> group, const std::vector<Stage>& stages,
               const PipelineOptions& options);
  ~RankPipeline() override;

  /// What the other axes of a strategy do around the actions of a pass.
  struct Around {
    /// Called before each action of a pass that trains. `last` is true for the last backward or weights of
    /// this rank. The result is destroyed when the action has been computed.
    std::function<std::shared_ptr<void>(const Action& action, bool last)> before;
    /// Called when a backward or weights of a pass that trains has been computed.
    std::function<void(const Action& action, bool last)> after;
    /// Called before each forward, in evaluation too. The result is destroyed when it has been computed.
    std::function<std::shared_ptr<void>()> forward;
  };
  /// Set: the parameters of the stage may be sharded over ranks that have the same stage.
  std::optional<Around> around = {};
  /// Makes all micro-batches of each pass, the last ones empty, however few samples there are. The other axes
  /// need it: ranks with the same stage make collectives in each micro-batch, and may have different numbers
  /// of samples.
  bool makes_all_micro_batches = false;
  /// The axes along which the stages' tensors may be placed. While placements are checked, the inputs of a
  /// stage get the placements of the outputs of the stage before it. Pass the same axes on all ranks, at most
  /// MessageHeader::kMaxAxes.
  std::vector<Axis> placed_along = {};

  Tensor forward_backward(const TensorList& inputs, const TensorList& targets,
                          const Pipeline::LossFunction& loss) override;
  std::vector<Tensor> evaluate(const TensorList& inputs) override;
  PipelineReport report() const override;
  /// The bytes of the tensors that this rank sent to its neighbours in the last pass.
  std::int64_t bytes_to_next() const { return bytes_to_next_; }
  std::int64_t bytes_to_previous() const { return bytes_to_previous_; }
  Tensor clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm, double norm_type,
                         bool error_if_nonfinite) const override;
  nn::StateDict whole_state_dict() const override;
  nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict) override;

 private:
  struct Pass;
  static constexpr std::int64_t kNotCounted = -1;
  /// Values that ranks exchange before a call, as 64-bit integers. They are the options, or the arguments, or
  /// the numbers of samples of inputs and targets with the state of the generator and the optimizers' steps.
  struct CallArguments {
    std::int64_t first = 0, last = 0;
    std::array<std::uint64_t, 2> state = {};
    std::int64_t steps = kNotCounted;
    friend bool operator==(const CallArguments&, const CallArguments&) = default;
  };
  bool is_first() const { return group_->rank() == 0; }
  bool is_last() const { return group_->rank() + 1 == group_->size(); }
  std::string stage_text() const;
  void mark_parameters();
  std::vector<CallArguments> all_gather_arguments(const char* what,
                                                  const std::function<CallArguments()>& prepare) const;
  static void check_same(const char* problem, const std::vector<CallArguments>& all,
                         const std::function<std::string(const CallArguments&)>& describe);
  std::int64_t steps_of_stage();
  static void check_steps(const std::vector<CallArguments>& all);
  std::vector<std::int64_t> sizes_of(std::int64_t samples, bool exactly) const;
  void prepare(Pass& pass, const TensorList& inputs, const TensorList& targets);
  void run(Pass& pass);
  void run_action(Pass& pass, const Action& action) const;
  Message inputs_of(Pass& pass, int micro_batch) const;
  Message gradients_of(Pass& pass, int micro_batch) const;
  void advance_generator(std::uint64_t to) const;
  Message forward(Pass& pass, int micro_batch, const Message& inputs) const;

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<Stage> stages_;
  const PipelineOptions options_;
  const std::vector<Device> devices_;               // the stage's device, for placement_
  const std::vector<std::size_t> device_of_ = {0};  // its index in devices_, for placement_
  std::string row_;                                 // in the timeline
  RankDrift drift_;                                 // knows the optimizers of the stage
  /// The steps of the stage's optimizers at the last pass that trained.
  std::optional<std::map<const optim::Optimizer*, std::int64_t>> counted_steps_;
  std::unique_ptr<TiedParameters> placement_;
  std::unique_ptr<RankTiedParameters> tied_parameters_;
  Generator generator_;
  std::uint64_t passes_ = 0;
  std::vector<nn::Parameter> marked_;  // those of the stage, with stage_memory()

  // The last pass, for report().
  std::optional<StageExecutor> last_;
  std::int64_t bytes_received_ = 0, bytes_to_next_ = 0, bytes_to_previous_ = 0;
  double wall_s_ = 0;
  int micro_batches_ = 0;
};

}  // namespace tapestry::distributed
