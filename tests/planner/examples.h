#pragma once
// Profiles, links and setups with simple numbers, for tests that compute predictions by hand.
#include <string>
#include <vector>

#include "tapestry/distributed/planner/internal/cost_model.h"
#include "tapestry/distributed/planner/planner.h"
#include "tests/support/catch.h"

namespace tests {

using namespace tapestry::distributed::planner;
using tapestry::distributed::AxisSpec;
using tapestry::distributed::StepDivision;
using tapestry::distributed::StrategyPlan;

inline constexpr double kMiB = 1 << 20;

/// A value that is proportional to the number of samples.
inline Curve proportional(double per_sample) { return Curve({{1, per_sample}, {2, 2 * per_sample}}); }

/// By default, forward takes 1 s per sample and backward 2 s. Forward saves 10 bytes per sample; the output
/// has 4 bytes per sample.
inline BlockProfile block(std::int64_t parameter_bytes, double forward = 1, double backward = 2) {
  BlockProfile b;
  b.name = "block";
  b.parameter_bytes = {parameter_bytes};
  b.forward_s = proportional(forward);
  b.backward_s = proportional(backward);
  b.update_s = 0.5;
  b.saved_bytes = proportional(10);
  b.output_bytes = proportional(4);
  b.forward_extra_bytes = proportional(3);
  const Curve peak(
      {{1, 21.0 + static_cast<double>(parameter_bytes)}, {2, 42.0 + static_cast<double>(parameter_bytes)}});
  b.backward = {{0, peak, peak, peak}};
  return b;
}

/// Returns a profile of `count` equal blocks. The loss costs nothing. The inputs have 6 bytes per sample and
/// the targets 8.
inline Profile profile_with(int count, std::int64_t parameter_bytes = 100) {
  Profile p;
  for (int i = 0; i < count; ++i) p.blocks.push_back(block(parameter_bytes));
  p.loss.name = "loss";
  p.input_sample_bytes = 6;
  p.target_sample_bytes = 8;
  return p;
}

inline TrainingSetup setup_of(int devices, std::int64_t batch, std::vector<int> split = {},
                              int micro_batches = 4) {
  TrainingSetup setup;
  setup.devices = devices;
  setup.batch_size = batch;
  setup.split = std::move(split);
  setup.micro_batches = micro_batches;
  return setup;
}

/// The plan of a text, over ranks if possible.
inline StrategyPlan plan_of(const std::string& text) {
  return tapestry::distributed::plan_strategy(text, true);
}

/// predict(), with checks that hold for every prediction: the breakdown has no negative item and adds up to
/// the step, and there is one memory entry per device.
inline Prediction predicted(const std::string& mode, const Profile& profile, const Link& link,
                            const TrainingSetup& setup) {
  const auto p = predict(plan_of(mode), profile, link, setup);
  REQUIRE(p.has_value());
  CHECK(p->mode == to_string(plan_of(mode).axes));
  const StepBreakdown& s = p->breakdown;
  CHECK(p->step_s ==
        Approx(s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s).epsilon(1e-12));
  CHECK(p->devices == static_cast<int>(p->memory.size()));
  for (const double part : {s.forward_s, s.backward_s, s.exposed_comm_s, s.update_s, s.idle_s})
    CHECK(part >= -1e-9 * p->step_s);
  return *p;
}

inline const std::vector<std::string> kModes = {
    "single",         "dp-master",     "dp-replicated",       "ddp", "zero1", "zero2", "fsdp", "model",
    "pipeline-gpipe", "pipeline-1f1b", "pipeline-zero-bubble"};

/// The axis of fully_shard().
inline PlannedAxis sharded_over(int ranks, const Link& link) {
  return {.size = ranks, .division = {.sum = StepDivision::Sum::units}, .costs = link.ranks, .name = "shard"};
}

/// An all-reduce that interferes with computing.
inline AllReduce interfering(double compute_stall, double overlap_slowdown = 1) {
  return {
      .message = {}, .overlap_slowdown = overlap_slowdown, .compute_stall = compute_stall, .contention = {}};
}

inline Link slow_link() {
  const TransferCost cost{0.25, 1e-3};
  return {.copy = cost, .broadcast = cost, .add = cost, .local = {cost}, .ranks = {cost}};
}

/// A link without latency. Each byte of an all-reduce, of a gather and between stages takes this long.
inline Link link_of(double s_per_byte) { return {.ranks = {.message = {0, s_per_byte}}}; }

inline const AxisCost& axis_of(const Prediction& p, const std::string& name) {
  for (const AxisCost& a : p.axes)
    if (a.axis == name) return a;
  FAIL("no axis " + name);
  return p.axes.front();
}

/// What a block sends along an axis: nothing yet.
inline LayerCollectives sends(const char* axis, const char* what = "activations") {
  LayerCollectives sent;
  sent.axis = axis, sent.what = what;
  return sent;
}

}  // namespace tests
