#include <algorithm>
#include <functional>
#include <map>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

namespace {

struct Predictor {
  std::function<Prediction(const CostModel&)> predict;
  bool splits_model = false;
};

const Predictor* predictor_of(const std::string& mode) {
  static const std::map<std::string, Predictor> all = {
      {"single", {predict_single}},
      {"dp-master", {predict_master}},
      {"dp-replicated", {[](const CostModel& c) { return predict_replicas(c, true); }}},
      {"ddp", {[](const CostModel& c) { return predict_replicas(c, false); }}},
      {"zero1", {[](const CostModel& c) { return predict_zero(c, 1); }}},
      {"zero2", {[](const CostModel& c) { return predict_zero(c, 2); }}},
      {"fsdp", {predict_fully_sharded}},
      {"model", {predict_model_parallel, true}},
      {"pipeline-gpipe", {[](const CostModel& c) { return predict_pipeline(c, Schedule::gpipe); }, true}},
      {"pipeline-1f1b",
       {[](const CostModel& c) { return predict_pipeline(c, Schedule::one_f_one_b); }, true}},
      {"pipeline-zero-bubble",
       {[](const CostModel& c) { return predict_pipeline(c, Schedule::zero_bubble); }, true}},
  };
  const auto found = all.find(mode);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<std::pair<std::string, double>> MemoryItems::items() const {
  return {{"parameters", parameters},   {"gradients", gradients}, {"optimizer", optimizer},
          {"activations", activations}, {"buckets", buckets},     {"data", data},
          {"workspace", workspace}};
}

const MemoryItems& Prediction::largest() const {
  return *std::max_element(memory.begin(), memory.end(),
                           [](const MemoryItems& a, const MemoryItems& b) { return a.total() < b.total(); });
}

std::optional<Prediction> predict(const std::string& mode, const Profile& profile, const Link& link,
                                  const TrainingSetup& setup) {
  const Predictor* const predictor = predictor_of(mode);
  if (!predictor) return std::nullopt;
  check(!profile.blocks.empty(), "[predict] the profile has no blocks; measure a model first");
  check(setup.devices >= 1 && setup.devices <= setup.batch_size, "[predict] ", setup.devices,
        " devices for a batch of ", setup.batch_size,
        " samples; use at least 1 and at most as many as samples");
  Prediction p = predictor->predict({profile, link, setup});
  p.mode = mode;
  p.devices = static_cast<int>(p.memory.size());
  const StepBreakdown& s = p.breakdown;
  p.step_s = s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s;
  return p;
}

std::optional<Prediction> simulate_devices(const std::string& mode, const Profile& profile, const Link& link,
                                           const TrainingSetup& setup, int devices) {
  const Predictor* const predictor = predictor_of(mode);
  if (!predictor) return std::nullopt;
  TrainingSetup simulated = setup;
  simulated.devices = devices;
  if (predictor->splits_model) {
    if (devices > static_cast<int>(profile.blocks.size())) return std::nullopt;
    simulated.split = balanced_split(profile, simulated);
  }
  Profile without_contention = profile;
  without_contention.contention = {};
  without_contention.stages.clear();
  without_contention.zero_bubble_stages.clear();
  Link separate = link;
  separate.master_contention = separate.local.contention = separate.ranks.contention = {};
  std::optional<Prediction> p = predict(mode, without_contention, separate, simulated);
  if (p) p->simulated = true;
  return p;
}

Link link_with(const Link& measured, std::optional<double> latency_s, std::optional<double> bandwidth) {
  Link link = measured;
  if (!latency_s && !bandwidth) return link;
  for (TransferCost* const cost :
       {&link.copy, &link.broadcast, &link.add, &link.local.message, &link.ranks.message}) {
    if (latency_s) cost->latency_s = *latency_s;
    if (bandwidth) cost->s_per_byte = 1 / *bandwidth;
  }
  if (bandwidth)
    link.add.s_per_byte += std::max(0.0, measured.add.s_per_byte - measured.broadcast.s_per_byte);
  for (AllReduce* const a : {&link.local, &link.ranks}) *a = {.message = a->message};
  return link;
}

}  // namespace tapestry::distributed::planner
