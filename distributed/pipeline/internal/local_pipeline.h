#pragma once
// LocalPipeline runs all stages in one process. The worker thread of each device runs the actions of its
// stages in the order in which simulate() runs them.
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/pipeline/internal/runner.h"
#include "tapestry/distributed/pipeline/internal/stage_executor.h"
#include "tapestry/distributed/pipeline/internal/tied_parameters.h"

namespace tapestry::distributed {

class LocalPipeline final : public PipelineRunner {
 public:
  LocalPipeline(const std::vector<Stage>& stages, const PipelineOptions& options);
  ~LocalPipeline() override;

  Tensor forward_backward(const TensorList& inputs, const TensorList& targets,
                          const Pipeline::LossFunction& loss) override;
  std::vector<Tensor> evaluate(const TensorList& inputs) override;
  PipelineReport report() const override;
  Tensor clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm, double norm_type,
                         bool error_if_nonfinite) const override;
  nn::StateDict whole_state_dict() const override;
  nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict) override;

 private:
  // What report() needs from the last pass.
  struct Times {
    std::vector<StageExecutor> stages;
    std::vector<std::pair<Timestamp, Timestamp>> devices;  // begin and end of its work
    double wall_s = 0;
    int micro_batches = 0;
  };
  struct Pass;
  void run(Pass& pass);
  void run_device(Pass& pass, std::size_t device) const;
  bool run_action(Pass& pass, const TimedAction& timed) const;
  bool forward(Pass& pass, std::size_t stage, int micro_batch) const;
  bool backward(Pass& pass, std::size_t stage, int micro_batch) const;
  void seed_generators();
  void advance_generator() const;

  const std::vector<Stage> stages_;
  const PipelineOptions options_;
  std::vector<Device> devices_;            // each device once, in the order of stages
  std::vector<CopyStreams> copy_streams_;  // by device
  std::vector<std::size_t> device_of_;     // by stage
  std::unique_ptr<TiedParameters> tied_parameters_;
  std::vector<std::unique_ptr<Generator>> generators_;  // by stage
  Times last_;
};

}  // namespace tapestry::distributed
