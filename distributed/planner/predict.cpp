#include <algorithm>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

namespace {

using Predictor = Prediction (*)(const CostModel&);

// Null if nothing predicts the plan, whose axes divide a step as `all` says.
Predictor predictor_of(const StrategyPlan& plan, const std::vector<StepDivision>& all) {
  using Sum = StepDivision::Sum;
  if (plan.axes.empty()) return predict_whole_models;
  if (all.empty()) return nullptr;
  if (all.size() == 1) {
    if (!all[0].schedule.empty()) return predict_stages;
    if (all[0].sum == Sum::master) return predict_master;
    if (all[0].sum == Sum::buckets) return predict_whole_models;
  }
  const bool is_sharded = all.back().sum == Sum::units &&
                          std::all_of(all.begin(), all.end() - 1,
                                      [](const auto& d) { return d.sum == Sum::buckets && d.zero == 0; });
  return is_sharded ? predict_sharded_models : nullptr;
}

// The axes, from the innermost, if they are for this number of devices. An axis of size -1 takes what the
// others leave.
std::optional<std::vector<PlannedAxis>> axes_on(const StrategyPlan& plan,
                                                const std::vector<StepDivision>& divisions, int devices) {
  std::int64_t known = 1, all = 1;
  for (const AxisSpec& axis : plan.axes)
    if ((known *= std::max(axis.size, 1)) > devices) return std::nullopt;
  std::vector<PlannedAxis> axes;
  for (std::size_t i = plan.axes.size(); i-- > 0;) {
    const int size = plan.axes[i].size > 0 ? plan.axes[i].size : static_cast<int>(devices / known);
    if ((all *= size) > devices) return std::nullopt;
    axes.push_back({size, divisions[i]});
  }
  if (all < devices && !axes.empty()) return std::nullopt;
  return axes;
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

std::optional<Prediction> predict(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                  const TrainingSetup& setup) {
  const std::vector<StepDivision> divisions = divisions_of(plan);
  const Predictor predictor = predictor_of(plan, divisions);
  if (!predictor) return std::nullopt;
  check(!profile.blocks.empty(), "[predict] the profile has no blocks; measure a model first");
  check(setup.devices >= 1 && setup.devices <= setup.batch_size, "[predict] ", setup.devices,
        " devices for a batch of ", setup.batch_size,
        " samples; use at least 1 and at most as many as samples");
  const auto axes = axes_on(plan, divisions, setup.devices);
  check(axes.has_value(), "[predict] the sizes of ", to_string(plan.axes), " are not those of ",
        setup.devices, " devices; they must multiply to this number");
  Prediction p = predictor({profile, link, setup, *axes, plan.over_devices});
  p.mode = to_string(plan.axes);
  p.devices = static_cast<int>(p.memory.size());
  const StepBreakdown& s = p.breakdown;
  p.step_s = s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s;
  return p;
}

std::optional<Prediction> simulate_devices(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                           const TrainingSetup& setup, int devices) {
  StrategyPlan wider = plan;
  const auto is_open = [](const AxisSpec& axis) { return axis.size < 0; };
  if (!wider.axes.empty() && std::none_of(wider.axes.begin(), wider.axes.end(), is_open))
    wider.axes[0].size = -1;
  const std::vector<StepDivision> divisions = divisions_of(wider);
  if (!predictor_of(wider, divisions) || !axes_on(wider, divisions, devices)) return std::nullopt;
  TrainingSetup simulated = setup;
  simulated.devices = devices;
  if (plan.splits_model) {
    if (devices > static_cast<int>(profile.blocks.size())) return std::nullopt;
    simulated.split = balanced_split(profile, simulated);
  }
  Profile without_contention = profile;
  without_contention.contention = {};
  without_contention.stages.clear();
  without_contention.zero_bubble_stages.clear();
  Link separate = link;
  separate.master_contention = separate.local.contention = separate.ranks.contention = {};
  std::optional<Prediction> p = predict(wider, without_contention, separate, simulated);
  p->simulated = true;
  p->mode = to_string(plan.axes);
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
