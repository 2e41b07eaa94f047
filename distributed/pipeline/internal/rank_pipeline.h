#pragma once
// A pipeline over the ranks of a group: rank i computes stage i, on the thread that calls.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/internal/rank_parcels.h"
#include "tapestry/distributed/pipeline/internal/rank_ties.h"
#include "tapestry/distributed/pipeline/internal/runner.h"
#include "tapestry/distributed/pipeline/internal/tied.h"

namespace tapestry::distributed {

class RankPipeline final : public PipelineRunner {
 public:
  /// A collective call. `stages` holds this rank's.
  RankPipeline(std::shared_ptr<ProcessGroup> group, const std::vector<Stage>& stages,
               const PipelineOptions& options);
  ~RankPipeline() override;

  Tensor forward_backward(const TensorList& inputs, const TensorList& targets,
                          const Pipeline::LossFunction& loss) override;
  std::vector<Tensor> evaluate(const TensorList& inputs) override;
  PipelineReport report() const override;
  Tensor clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm, double norm_type,
                         bool error_if_nonfinite) const override;
  nn::StateDict whole_state_dict() const override;
  nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict) override;

 private:
  struct Pass;
  /// What a rank brings to a call: its options or arguments, or how many samples of inputs and of targets it
  /// has, and where its generator is. Travels as 64-bit integers.
  struct Brought {
    std::int64_t first = 0, last = 0;
    std::array<std::uint64_t, 2> state = {};
    friend bool operator==(const Brought&, const Brought&) = default;
  };
  bool is_first() const { return group_->rank() == 0; }
  bool is_last() const { return group_->rank() + 1 == group_->size(); }
  std::string place() const;
  std::vector<Brought> meet(const char* what, const std::function<Brought()>& prepare) const;
  static void check_same(const char* problem, const std::vector<Brought>& all,
                         const std::function<std::string(const Brought&)>& in_words);
  void prepare(Pass& pass, const TensorList& inputs, const TensorList& targets) const;
  void run(Pass& pass);
  void act(Pass& pass, const Action& action) const;
  Parcel values_for(Pass& pass, int micro_batch) const;
  Parcel gradients_for(Pass& pass, int micro_batch) const;
  void move_generator_on(std::uint64_t to) const;
  Parcel forward(Pass& pass, int micro_batch, const Parcel& inputs) const;

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<Stage> stages_;
  const PipelineOptions options_;
  const std::vector<Device> devices_;               // the stage's, for places_
  const std::vector<std::size_t> device_of_ = {0};  // likewise
  std::string row_;                                 // of the timeline
  std::unique_ptr<TiedParameters> places_;
  std::unique_ptr<RankTies> ties_;
  Generator generator_;
  std::uint64_t passes_ = 0;

  // Of the last pass.
  std::optional<StageGraphs> last_;
  std::int64_t bytes_received_ = 0;
  double wall_s_ = 0;
  int micro_batches_ = 0;
};

}  // namespace tapestry::distributed
