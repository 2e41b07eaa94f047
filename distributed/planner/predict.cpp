#include <algorithm>
#include <utility>

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
  while (i < all.size() && all[i].layers && !plan.over_devices) ++i;
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

// How many devices lie between neighbours along an axis.
int between(const std::vector<PlannedAxis>& axes, std::size_t axis) {
  int product = 1;
  for (std::size_t i = 0; i < axis; ++i) product *= axes[i].size;
  return product;
}

// Gives each axis its costs. Ranks are laid out along the axes, the innermost fastest, host by host.
void set_costs(std::vector<PlannedAxis>& axes, const StrategyPlan& plan, const Link& link,
               const TrainingSetup& setup) {
  const int per_host = setup.devices_per_host;
  check(per_host >= 0 && setup.links_per_host >= 1, "[predict] ", per_host, " devices and ",
        setup.links_per_host, " links per host; pass 0 devices if all are on one host, and 1 link or more");
  const int total = setup.devices;
  const auto leaves_host = [&](std::size_t i) {
    return per_host > 0 && per_host < total && axes[i].size > 1 &&
           per_host % (between(axes, i) * axes[i].size) != 0;
  };
  for (std::size_t at = 0; at < axes.size(); ++at) {
    PlannedAxis& axis = axes[at];
    const bool crosses =
        axis.of.empty() ? leaves_host(at) : std::any_of(axis.of.begin(), axis.of.end(), leaves_host);
    // `own` counts the members of a group on one host, `inside` those of other groups between two neighbours.
    int own = 1, inside = axis.of.empty() ? between(axes, at) : per_host;
    for (const std::size_t i : axis.of)
      if (!leaves_host(i)) own *= axes[i].size;
      else inside = std::min(inside, between(axes, i));
    if (!axis.of.empty()) inside = std::max(1, inside / own);
    const bool measured = !link.cross.message.is_free();
    axis.costs = plan.over_devices ? link.local : crosses && measured ? link.cross : link.ranks;
    // The groups of the axis communicate at the same time. Those with members on one host share its links:
    // one group for each device that lies between two neighbours along the axis.
    const double sharing =
        crosses ? std::max(1.0, static_cast<double>(std::min(inside, per_host)) / setup.links_per_host) : 1;
    for (TransferCost* const cost : {&axis.costs.message, &axis.costs.gather_message,
                                     &axis.costs.scatter_message, &axis.costs.peer_message})
      cost->s_per_byte *= sharing;
  }
}

// See layers_of() of planner.h.
std::string layers_on(const std::vector<PlannedAxis>& axes) {
  std::string text;
  for (std::size_t i = axes.size(); i-- > 0;) {
    const PlannedAxis& axis = axes[i];
    if (!axis.division.layers || axis.size == 1) continue;
    text += (text.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
    if (!axis.division.options.empty()) text += ":" + axis.division.options;
  }
  return text;
}

// The profile of one of the devices that divide the layers, if it was measured for the text of these axes.
std::optional<Profile> profile_on(const std::vector<PlannedAxis>& axes, const Profile& profile) {
  const std::string layers = layers_on(axes);
  if (layers.empty()) return profile;
  for (const DividedLayers& d : profile.divided) {
    if (d.axes != layers) continue;
    Profile divided = profile;
    divided.blocks = d.blocks;
    divided.loss = d.loss;
    divided.optimizer_state = d.optimizer_state;
    divided.input_sample_bytes = d.input_sample_bytes;
    divided.target_sample_bytes = d.target_sample_bytes;
    return divided;
  }
  return std::nullopt;
}

// The plan as simulate_devices() takes it: one axis takes the devices that the others leave.
StrategyPlan widened(const StrategyPlan& plan, const std::vector<StepDivision>& divisions) {
  StrategyPlan wider = plan;
  const auto is_open = [](const AxisSpec& axis) { return axis.size < 0; };
  if (wider.axes.empty() || std::any_of(wider.axes.begin(), wider.axes.end(), is_open)) return wider;
  const auto first = std::find_if(divisions.begin(), divisions.end(),
                                  [](const StepDivision& d) { return d.divides_batch(); });
  wider.axes[first == divisions.end() ? 0 : static_cast<std::size_t>(first - divisions.begin())].size = -1;
  return wider;
}

int stages_of(const StrategyPlan& plan, const std::vector<StepDivision>& divisions,
              const std::vector<PlannedAxis>& axes) {
  for (std::size_t i = 0; i < divisions.size(); ++i)
    if (!divisions[i].schedule.empty()) return axes[plan.axes.size() - 1 - i].size;
  return 1;
}

}  // namespace

std::vector<PlannedAxis> with_sums(std::vector<PlannedAxis> axes) {
  const std::size_t count = axes.size();
  std::vector<std::size_t> all, of_parts;
  bool parts = false;
  for (std::size_t i = 0; i < count; ++i) {
    const StepDivision& d = axes[i].division;
    if (!d.copies || axes[i].size == 1) continue;
    all.push_back(i);
    parts = parts || d.parts;
    if (!d.parts) of_parts.push_back(i);
  }
  // If `replicate` is the only axis with copies, its row adds the gradients, and nothing is joined.
  if (all.empty() || (all.size() == 1 && axes[all[0]].division.sum != StepDivision::Sum::none)) return axes;
  StepDivision sum{.sum = StepDivision::Sum::buckets};
  for (PlannedAxis& axis : axes)  // also `replicate` of one device, whose row adds along all
    sum.zero = std::max(sum.zero, std::exchange(axis.division.zero, 0));
  for (const std::size_t i : all) axes[i].division.sum = StepDivision::Sum::none;
  const auto join = [&](const std::vector<std::size_t>& of, bool of_experts) {
    PlannedAxis joined{.division = sum, .of = of, .parts = of_experts};
    for (const std::size_t i : of) {  // names from the outermost
      joined.size *= axes[i].size;
      joined.name = axes[i].name + (joined.name.empty() ? "" : "_") + joined.name;
    }
    axes.push_back(std::move(joined));
  };
  join(all, false);
  if (parts && !of_parts.empty()) join(of_parts, true);
  return axes;
}

std::string layers_of(const StrategyPlan& plan, int devices, bool simulated) {
  const std::vector<StepDivision> divisions = divisions_of(plan, /*predictable=*/false);
  if (divisions.size() < plan.axes.size()) return "";
  const auto axes = axes_on(simulated ? widened(plan, divisions) : plan, divisions, devices);
  return axes ? layers_on(*axes) : "";
}

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
  axes = with_sums(std::move(*axes));
  set_costs(*axes, plan, link, setup);
  const CostModel costs{*divided, link, setup, *axes, plan.over_devices};
  // Under ZeRO, ranks divide the state of experts only if these have copies.
  const auto divides_parts = [](const PlannedAxis& a) { return a.division.parts && a.size > 1; };
  if (costs.zero() > 0 && costs.dividing_axis(/*of_parts=*/true) == axes->size() &&
      std::any_of(axes->begin(), axes->end(), divides_parts))
    return std::nullopt;
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
  return traffic_of({*profile_on(*axes, profile), link, setup, with_sums(*axes), plan.over_devices});
}

std::optional<Prediction> simulate_devices(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                           const TrainingSetup& setup, int devices) {
  const std::vector<StepDivision> divisions = divisions_of(plan);
  if (!predictor_of(plan, divisions)) return std::nullopt;
  const StrategyPlan wider = widened(plan, divisions);
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
