#include <algorithm>
#include <numeric>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/internal/passes.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

namespace {

using Predictor = Prediction (*)(const CostModel&);

// Null if nothing predicts the plan, whose axes divide a step as `all` says, from the outermost.
Predictor predictor_of(const StrategyPlan& plan, const std::vector<StepDivision>& all) {
  using Sum = StepDivision::Sum;
  if (plan.axes.empty()) return predict_whole_models;
  if (all.empty()) return nullptr;
  if (all.size() == 1 && all[0].sum == Sum::master) return predict_master;
  std::size_t i = 0;
  const bool stages = !all[0].schedule.empty();
  // Without stages, what a whole model costs that is kept during a step is not known.
  if (!stages && std::any_of(all.begin(), all.end(), [](const auto& d) { return d.keeps_whole; }))
    return nullptr;
  if (stages && (all.size() == 1 || (!plan.over_devices && all[0].schedule != "sequential"))) ++i;
  const bool replicas = i < all.size() && all[i].sum == Sum::buckets && all[i].schedule.empty();
  const bool zero = replicas && all[i].zero > 0;
  if (replicas) ++i;
  const bool shards = i < all.size() && all[i].sum == Sum::units && all[i].schedule.empty() && !zero;
  if (shards) ++i;
  if (i < all.size() && all[i].layers && !plan.over_devices) ++i;
  if (i < all.size()) return nullptr;
  return stages ? predict_stages : shards ? predict_sharded_models : predict_whole_models;
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
    axes.push_back({.size = size, .division = divisions[i], .name = plan.axes[i].name});
  }
  if (all < devices && !axes.empty()) return std::nullopt;
  return axes;
}

// How many devices have samples of their own.
int data_size(const std::vector<PlannedAxis>& axes) {
  int product = 1;
  for (const PlannedAxis& axis : axes) product *= axis.division.divides_batch() ? axis.size : 1;
  return product;
}

// Gives each axis its costs. Ranks are laid out along the axes, the innermost fastest, host by host.
void set_costs(std::vector<PlannedAxis>& axes, const StrategyPlan& plan, const Link& link,
               const TrainingSetup& setup) {
  const int per_host = setup.devices_per_host;
  check(per_host >= 0 && setup.links_per_host >= 1, "[predict] ", per_host, " devices and ",
        setup.links_per_host, " links per host; pass 0 devices if all are on one host, and 1 link or more");
  int inside = 1;  // the devices that an axis leaves between neighbours
  const int total = std::accumulate(axes.begin(), axes.end(), 1,
                                    [](int product, const PlannedAxis& a) { return product * a.size; });
  for (PlannedAxis& axis : axes) {
    const bool crosses =
        per_host > 0 && per_host < total && axis.size > 1 && per_host % (inside * axis.size) != 0;
    const bool measured = !link.cross.message.is_free();
    axis.costs = plan.over_devices ? link.local : crosses && measured ? link.cross : link.ranks;
    // The groups of the axis communicate at the same time. Those with members on one host share its links:
    // one group for each device that lies between two neighbours along the axis.
    const double sharing =
        crosses ? std::max(1.0, static_cast<double>(std::min(inside, per_host)) / setup.links_per_host) : 1;
    for (TransferCost* const cost : {&axis.costs.message, &axis.costs.gather_message,
                                     &axis.costs.scatter_message, &axis.costs.peer_message})
      cost->s_per_byte *= sharing;
    inside *= axis.size;
  }
}

// The profile of the first of the devices that divide the layers, if it was measured for so many.
std::optional<Profile> profile_on(const std::vector<PlannedAxis>& axes, const Profile& profile) {
  for (const PlannedAxis& axis : axes) {
    if (!axis.division.layers || axis.size == 1) continue;
    for (const DividedLayers& d : profile.divided) {
      if (d.size != axis.size || d.sequence != axis.division.sequence) continue;
      Profile divided = profile;
      divided.blocks = d.blocks;
      divided.loss = d.loss;
      divided.optimizer_state = d.optimizer_state;
      return divided;
    }
    return std::nullopt;
  }
  return profile;
}

int stages_of(const StrategyPlan& plan, const std::vector<StepDivision>& divisions,
              const std::vector<PlannedAxis>& axes) {
  for (std::size_t i = 0; i < divisions.size(); ++i)
    if (!divisions[i].schedule.empty()) return axes[plan.axes.size() - 1 - i].size;
  return 1;
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
  check(setup.devices >= 1 && setup.batch_size >= 1, "[predict] ", setup.devices, " devices for a batch of ",
        setup.batch_size, " samples; pass 1 or more of each");
  auto axes = axes_on(plan, divisions, setup.devices);
  check(axes.has_value(), "[predict] the sizes of ", to_string(plan.axes), " are not those of ",
        setup.devices, " devices; they must multiply to this number");
  check(data_size(*axes) <= setup.batch_size, "[predict] ", data_size(*axes), " devices for a batch of ",
        setup.batch_size, " samples; use at most as many as samples to divide the batch");
  const std::optional<Profile> divided = profile_on(*axes, profile);
  if (!divided) return std::nullopt;
  set_costs(*axes, plan, link, setup);
  const CostModel costs{*divided, link, setup, *axes, plan.over_devices};
  Prediction p = predictor(costs);
  add_layers(p, costs);
  p.mode = to_string(plan.axes);
  p.devices = static_cast<int>(p.memory.size());
  const StepBreakdown& s = p.breakdown;
  p.step_s = s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s;
  return p;
}

std::vector<PredictedTraffic> predict_traffic(const StrategyPlan& plan, const Profile& profile,
                                              const TrainingSetup& setup) {
  const Link link;  // what is sent does not depend on how long it takes
  const std::optional<Prediction> p = predict(plan, profile, link, setup);
  if (!p) return {};
  const auto axes = axes_on(plan, divisions_of(plan), setup.devices);
  return traffic_of({*profile_on(*axes, profile), link, setup, *axes, plan.over_devices});
}

std::optional<Prediction> simulate_devices(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                           const TrainingSetup& setup, int devices) {
  StrategyPlan wider = plan;
  const std::vector<StepDivision> divisions = divisions_of(plan);
  if (!predictor_of(plan, divisions)) return std::nullopt;
  const auto is_open = [](const AxisSpec& axis) { return axis.size < 0; };
  if (!wider.axes.empty() && std::none_of(wider.axes.begin(), wider.axes.end(), is_open)) {
    const auto first = std::find_if(divisions.begin(), divisions.end(),
                                    [](const StepDivision& d) { return d.divides_batch(); });
    wider.axes[first == divisions.end() ? 0 : static_cast<std::size_t>(first - divisions.begin())].size = -1;
  }
  const auto axes = axes_on(wider, divisions, devices);
  if (!axes) return std::nullopt;
  TrainingSetup simulated = setup;
  simulated.devices = devices;
  if (plan.splits_model) {
    const int stages = stages_of(wider, divisions, *axes);
    if (stages > static_cast<int>(profile.blocks.size())) return std::nullopt;
    simulated.split = balanced_split(profile, simulated, stages);
  }
  Profile without_contention = profile;
  without_contention.contention = {};
  without_contention.stages.clear();
  without_contention.zero_bubble_stages.clear();
  Link separate = link;
  separate.master_contention = separate.local.contention = separate.ranks.contention = {};
  std::optional<Prediction> p = predict(wider, without_contention, separate, simulated);
  if (!p) return p;
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

Link link_across(const Link& link, double latency_s, double bandwidth) {
  Link both = link;
  both.cross = {.message = {latency_s, 1 / bandwidth}};
  return both;
}

}  // namespace tapestry::distributed::planner
