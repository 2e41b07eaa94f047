// Predictions for all meshes of a number of devices, and what to say of one.
#include <algorithm>
#include <array>
#include <cstdio>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

namespace {

// "3.1 ms", "0.02 ms"
std::string in_ms(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), seconds < 0.1e-3 ? "%.3f ms" : "%.1f ms", seconds * 1e3);
  return text.data();
}

}  // namespace

std::vector<std::string> meshes(int devices, int blocks, std::int64_t batch_size,
                                const std::vector<std::string>& layers) {
  check(devices >= 1 && blocks >= 1 && batch_size >= 1, "[meshes] ", devices, " devices, ", blocks,
        " blocks and a batch of ", batch_size, " samples; pass 1 or more of each");
  if (devices == 1) return {"none"};
  std::vector<std::string> all;
  const auto add = [&](const std::string& inner, int size, int data) {
    for (int stages = 1; stages <= std::min(devices / size, blocks); ++stages)
      for (int shards = 1; shards <= devices / size / stages; ++shards) {
        const int replicas = devices / size / stages / shards;
        if (stages * shards * replicas * size != devices || replicas * shards * data > batch_size) continue;
        std::string text;
        for (const auto& [axis, n] :
             {std::pair("pipeline", stages), {"replicate", replicas}, {"shard", shards}})
          if (n > 1) text += (text.empty() ? "" : ",") + std::string(axis) + "=" + std::to_string(n);
        if (size > 1) text += (text.empty() ? "" : ",") + inner;
        all.push_back(text);
      }
  };
  add("", 1, 1);
  for (const std::string& inner : layers) {
    const StrategyPlan plan = plan_strategy(inner, true);
    const std::vector<StepDivision> divisions = divisions_of(plan);
    int data = 1;
    for (std::size_t i = 0; i < divisions.size(); ++i)
      data *= divisions[i].divides_batch() ? plan.axes[i].size : 1;
    if (plan.size > 1 && plan.size <= devices) add(inner, plan.size, data);
  }
  return all;
}

std::vector<Prediction> sweep(const Profile& profile, const Link& link, const TrainingSetup& setup,
                              int devices) {
  std::vector<Prediction> all;
  std::vector<std::string> layers;
  for (const DividedLayers& d : profile.divided)
    if (d.axes.find(':') == std::string::npos &&
        (setup.devices_per_host == 0 || plan_strategy(d.axes, true).size <= setup.devices_per_host))
      layers.push_back(d.axes);
  for (const std::string& text :
       meshes(devices, static_cast<int>(profile.blocks.size()), setup.batch_size, layers))
    if (auto p = simulate_devices(plan_strategy(text, true), profile, link, setup, devices))
      all.push_back(std::move(*p));
  std::stable_sort(all.begin(), all.end(),
                   [](const Prediction& a, const Prediction& b) { return a.step_s < b.step_s; });
  return all;
}

std::string why(const Prediction& p) {
  std::vector<std::pair<double, std::string>> losses;
  for (const AxisCost& a : p.axes)
    losses.emplace_back(a.exposed_s, in_ms(a.exposed_s) + " wait for " + a.axis);
  losses.emplace_back(p.bubble_s, in_ms(p.bubble_s) + " bubble of the pipeline");
  losses.emplace_back(p.breakdown.idle_s - p.bubble_s, in_ms(p.breakdown.idle_s - p.bubble_s) + " idle");
  std::stable_sort(losses.begin(), losses.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [seconds, said] : losses)
    if (seconds >= 0.005 * p.step_s && seconds > 0) text += (text.empty() ? "" : ", ") + said;
  return text.empty() ? "computes nearly all the time" : text;
}

}  // namespace tapestry::distributed::planner
