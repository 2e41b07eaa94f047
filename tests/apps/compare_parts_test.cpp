// Tests the parts of tapestry-compare that need no run of the program.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/apps/common/chart.h"
#include "tapestry/apps/common/table.h"
#include "tapestry/apps/compare/critical_path.h"
#include "tapestry/apps/compare/document.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/apps/compare/report.h"
#include "tapestry/tapestry.h"
#include "tests/apps/compare_results.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"

using namespace apps::compare;
using tapestry::Activity;
using tapestry::Span;
using Strings = std::vector<std::string>;

namespace {

Result measured(const std::string& name, double step_s, std::vector<double> losses) {
  Result r = tests::result_of(name, step_s, {"cpu:0", "cpu:1"},
                              {{"cpu:0", Activity::forward, "forward <1>", 0, step_s / 2}});
  r.peak_bytes = {1 << 20, 3 << 20};
  r.memory = {tests::memory_of("cpu:0", {{0, 1 << 20, 0, 0, 0, 7}, {0.25, 1 << 20, 2 << 20, 0, 0}})};
  r.traffic = {{0, 1, 1 << 18, "replicate", "gradients"}, {1, 0, 1 << 18, "replicate", "gradients"}};
  r.losses = std::move(losses);
  return r;
}

}  // namespace

TEST_CASE("the breakdown of a step has means over devices and adds up to the step") {
  // cpu:0 waits for gradients during backward, and cpu:1 works for a third of the time. The row "cpu:0
  // communication" and the part of a span beyond the end of the step must not be counted.
  const std::vector<Span> spans = {
      {"cpu:0", Activity::forward, "f", 0, 2},
      {"cpu:0", Activity::backward, "b", 2, 8},
      {"cpu:0", Activity::communication, "wait", 7, 8},
      {"cpu:0", Activity::optimizer, "SGD", 8, 9},
      {"cpu:0 communication", Activity::communication, "bucket", 3, 8},
      {"cpu:1", Activity::forward, "f", 1, 4},
      {"cpu:1", Activity::other, "o", 8.5, 20},
  };
  const StepBreakdown s = breakdown_of(spans, {"cpu:0", "cpu:1"}, 9);
  CHECK(s.forward_s == Approx(2.5));
  CHECK(s.backward_s == Approx(2.5));
  CHECK(s.exposed_comm_s == Approx(0.5));
  CHECK(s.update_s == Approx(0.75));
  CHECK(s.idle_s == Approx(2.75));
  CHECK(s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s == Approx(9));

  const StepBreakdown nothing = breakdown_of({}, {"cpu:0"}, 3);
  CHECK(nothing.idle_s == Approx(3));
  CHECK(nothing.forward_s == 0);
}

TEST_CASE("the phases of a step begin with the first span of each activity") {
  std::vector<Span> spans = {{"cpu:0", Activity::forward, "f", 1, 4},
                             {"cpu:0", Activity::forward, "f", 2, 3},
                             {"cpu:0", Activity::backward, "b", 5, 8},
                             {"cpu:0", Activity::optimizer, "o", 8, 9},
                             {"cpu:1", Activity::backward, "b", 0, 20}};
  CHECK(phases_of(spans, "cpu:0") == std::vector<double>{1, 5, 8, 9});
  CHECK(phases_of(spans, "cpu:1").empty());
  CHECK(phases_of({}, "cpu:0").empty());
}

TEST_CASE("results survive conversion to text") {
  Result r = measured("ddp", 0.25, {2.5, std::nan("")});
  r.steps_s = {0.25, 0.5};
  r.memory[0].phases_s = {0, 0.125, 0.25};
  r.spans[0].subject = {.module = "fc1", .bucket = 2, .bytes = 1LL << 40, .axis = "shard"};
  r.traffic[0].phase = "update";
  const Result back = result_from_text(to_text(r));
  CHECK(back.name == "ddp");
  CHECK(back.rows == r.rows);
  CHECK(back.step_s == 0.25);
  CHECK(back.steps_s == r.steps_s);
  CHECK(back.peak_bytes == r.peak_bytes);
  CHECK(back.bytes_sent() == r.bytes_sent());
  REQUIRE(back.memory.size() == 1);
  CHECK(back.memory[0].row == "cpu:0");
  REQUIRE(back.memory[0].samples.size() == 2);
  CHECK(back.memory[0].samples[0].bytes == r.memory[0].samples[0].bytes);
  CHECK(back.memory[0].peak().seconds == 0.25);
  CHECK(back.memory[0].phases_s == r.memory[0].phases_s);
  REQUIRE(back.losses.size() == 2);
  CHECK(back.losses[0] == 2.5);
  CHECK(std::isnan(back.losses[1]));
  REQUIRE(back.spans.size() == 1);
  CHECK(back.spans[0].name == "forward <1>");
  const tapestry::SpanSubject& about = back.spans[0].subject;
  CHECK((about.module == "fc1" && about.bucket == 2 && about.bytes == 1LL << 40 && about.axis == "shard"));
  CHECK((back.traffic[0].phase == "update" && back.traffic[1].phase.empty()));
  CHECK(back.breakdown.idle_s == Approx(r.breakdown.idle_s));
  for (const std::string text : {"", "{}", "[1]", R"({"name": 3})"})
    CHECK_THROWS_WITH(result_from_text(text), ContainsSubstring("not a result"));
}

TEST_CASE("the critical path of a prediction passes from stage to stage, and through collectives") {
  planner::Prediction stages;
  stages.step_s = 10, stages.rows = 2;
  constexpr Activity f = Activity::forward, b = Activity::backward, u = Activity::optimizer,
                     c = Activity::communication;
  stages.timeline = {{0, false, f, "forward 0", 0, 1},        {0, false, f, "forward 1", 1, 2},
                     {0, false, b, "backward 0", 4.5, 6.5},   {0, false, b, "backward 1", 7.5, 9.5},
                     {0, false, u, "update", 9.5, 10},        {1, false, f, "forward 0", 1.25, 2.25},
                     {1, false, b, "backward 0", 2.25, 4.25}, {1, false, f, "forward 1", 4.25, 5.25},
                     {1, false, b, "backward 1", 5.25, 7.25}, {1, false, u, "update", 7.25, 7.75}};
  using Path = std::vector<std::size_t>;
  const Dependencies found = dependencies_of(stages);
  CHECK(found.critical_path == Path{4, 3, 8, 7, 6, 5, 0});
  CHECK(found.needs[3] == Path{8});
  CHECK(found.needs[9] == Path{8});
  planner::Prediction ddp;  // of two rows whose buckets have equal names and nothing in common
  ddp.step_s = 11, ddp.rows = 2;
  ddp.timeline = {{0, false, f, "forward", 0, 2},
                  {0, false, b, "backward", 2, 10},
                  {0, false, c, "wait for bucket 1", 6, 10},
                  {0, true, c, "bucket 0", 4, 7},
                  {0, true, c, "bucket 1", 7, 10},
                  {0, false, u, "update", 10, 11},
                  {1, false, b, "backward", 0, 9},
                  {1, true, c, "bucket 1", 8, 9.5}};
  CHECK(dependencies_of(ddp).critical_path == Path{5, 2, 4, 3, 1, 0});
  planner::Prediction layers;  // that wait for one another while a bucket of another axis ends
  layers.step_s = 6;
  layers.timeline = {{0, false, b, "backward", 0, 6},
                     {0, false, c, "wait for fc1 activations", 2, 4, {.axis = "tensor"}},
                     {0, false, c, "wait for bucket 1", 5, 6, {.bucket = 1, .axis = "replicate"}},
                     {0, true, c, "bucket 0", 1, 3, {.bucket = 0, .axis = "replicate"}},
                     {0, true, c, "bucket 1", 4.5, 6, {.bucket = 1, .axis = "replicate"}}};
  CHECK(dependencies_of(layers).critical_path == Path{2, 4, 0, 1});
  CHECK(dependencies_of(planner::Prediction()).critical_path.empty());
}

TEST_CASE("a long history keeps the peaks of its intervals, and its ends") {
  std::vector<tapestry::MemorySample> samples;
  for (int i = 0; i <= 1000; ++i) samples.push_back({i * 1e-3, {i % 100 == 50 ? 1000 : i % 7}});
  const auto kept = thinned(samples, 20);
  CHECK(kept.size() <= 22);
  CHECK((kept.front().seconds == 0 && kept.back().seconds == 1));
  CHECK(std::count_if(kept.begin(), kept.end(), [](const auto& s) { return s.total() == 1000; }) == 10);
  CHECK(std::is_sorted(kept.begin(), kept.end(),
                       [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
  CHECK(thinned(samples, 5000).size() == samples.size());
}

TEST_CASE("optimizers have the names and defaults of PyTorch") {
  Workload w;
  const auto made = [&] { return make_optimizer(w, make_model(w, tapestry::kCPU)->parameters()); };
  CHECK(optimizer_title(w) == "SGD");
  CHECK(made()->lr() == 0.01);
  w.momentum = 0.9;
  CHECK(optimizer_title(w) == "SGD with momentum 0.9");
  CHECK(made()->option(0, "momentum") == 0.9);
  w.optimizer = "adamw";
  CHECK(optimizer_title(w) == "AdamW");
  CHECK(made()->lr() == 0.001);
  w.lr = 0.5;
  CHECK(made()->lr() == 0.5);
  w.optimizer = "adam";
  CHECK_THROWS_WITH(made(), ContainsSubstring("choose sgd or adamw"));
}

TEST_CASE("median_of returns the round with the median step time") {
  const auto median = [](std::vector<double> times) {
    std::vector<Result> rounds;
    for (const double t : times) rounds.push_back(measured("x", t, {}));
    return median_of(rounds).step_s;
  };
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2);
  CHECK(median({5}) == 5);
  CHECK_THROWS_WITH(median({}), ContainsSubstring("list of results is empty"));
}

TEST_CASE("losses that differ from those of single are a failure") {
  CHECK(loss_difference({3, 4}, {3, 4}) == 0);
  CHECK(loss_difference({3, 4.5}, {3, 4}) == Approx(0.1));
  CHECK(std::isinf(loss_difference({3}, {3, 4})));
  CHECK(std::isinf(loss_difference({3, std::nan("")}, {3, 4})));
  CHECK(std::isinf(loss_difference({1}, {0})));
  CHECK(loss_difference({0}, {0}) == 0);

  std::vector<Result> results = {measured("single", 1, {1, 2}), measured("a", 1, {1, 2.0001}),
                                 measured("b", 1, {1, 2.001}), Result()};
  results[3].error = "it was killed";
  Workload w;
  compare_losses(results, tolerance(w));
  CHECK(results[0].error.empty());
  CHECK(results[1].error.empty());
  CHECK_THAT(results[2].error, ContainsSubstring("differ from those of single by 0.00045, norm-wise"));
  CHECK(results[3].error == "it was killed");
  w.optimizer = "adamw";
  CHECK(tolerance(w) == 1e-2);
  w.dtype = tapestry::DType::f64;
  CHECK(tolerance(w) == 1e-10);
}

TEST_CASE("tables are aligned in text and in Markdown") {
  const std::vector<Strings> rows = {{"mode", "ms"}, {"single", "10.5"}, {"dp", "9"}, {"bad"}};
  CHECK(apps::text_table(rows) ==
        "mode      ms\n"
        "single  10.5\n"
        "dp         9\n"
        "bad\n");
  CHECK(apps::markdown_table(rows) ==
        "| mode   |   ms |\n"
        "|--------|-----:|\n"
        "| single | 10.5 |\n"
        "| dp     |    9 |\n"
        "| bad    |      |\n");
}

TEST_CASE("pictures are well-formed XML for any names and values") {
  const double nan = std::nan("");
  const std::vector<std::string> all = {
      apps::bars_svg({}, "none", "ms"),
      apps::bars_svg({{"<a>", {{"forward", 1}, {"idle", nan}}}, {"b", {{"backward", -2}}, "'text' & more"}},
                     "t", "ms", {{"forward", "f < b"}}),
      apps::timeline_svg({}, {}, 0, "empty"),
      apps::areas_svg({}, {{"parameters", "p"}}, "nothing", "MiB"),
      apps::areas_svg({{0, {1, nan}}, {0.5, {2, -3, 4}}, {nan, {}}}, {{"parameters", "p <"}, {"other", "o"}},
                      "t & u", "MiB"),
      apps::timeline_svg({{"cpu:0", Activity::forward, "f <0>", -1, 5}, {"x", Activity::other, "", 2, 1}},
                         {"cpu:0", "cpu:1"}, 2, "a & b"),
  };
  for (const std::string& svg : all) {
    CHECK(tests::xml_fault(svg) == "");
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
  }
  // The lane "cpu:0 communication" must come below "cpu:0" and before "cpu:1".
  const std::string lanes = apps::timeline_svg(
      {{"cpu:0", Activity::forward, "f", 0, 1}, {"cpu:0 communication", Activity::communication, "c", 0, 1}},
      {"cpu:0", "cpu:1"}, 1, "lanes");
  CHECK(lanes.find("cpu:0 communication") < lanes.find("cpu:1"));
  // The number of the micro-batch must be printed in a span that is wide enough.
  const std::string numbers = apps::timeline_svg({{"cpu:0", Activity::forward, "forward 12", 0, 0.5},
                                                  {"cpu:0", Activity::forward, "forward 13", 0.5, 0.501},
                                                  {"cpu:0", Activity::other, "load 4 files", 0.6, 1}},
                                                 {"cpu:0"}, 1, "numbers");
  CHECK_THAT(numbers, ContainsSubstring(">12</text>"));
  CHECK_THAT(numbers, !ContainsSubstring(">13</text>") && !ContainsSubstring(">files</text>"));
}

TEST_CASE("a report shows measurements, predictions and failures") {
  Report report;
  report.device_names = {"cpu:0", "cpu:1"};
  report.results = {measured("single", 0.02, {2.5, 2.25}), measured("model", 0.04, {2.5, 2.25}), Result()};
  report.results[1].predicted_step_s = 0.05;
  report.results[1].predicted_peak_bytes = {2 << 20, 4 << 20};
  report.results[2].name = "ddp";
  report.results[2].error = "it was killed by <SIGKILL>";
  const std::string text = table(report, false);
  CHECK_THAT(text, ContainsSubstring("3200.0"));  // 64 samples in 20 ms
  CHECK_THAT(text, ContainsSubstring("50.00  +25.0%"));
  CHECK_THAT(text, ContainsSubstring("1.0, 3.0"));
  CHECK_THAT(text, ContainsSubstring("2.0, 4.0"));
  CHECK_THAT(text, ContainsSubstring("failed"));
  CHECK_THAT(table(report, true), ContainsSubstring("| single |"));
  // At its peak the device holds 1 MiB of parameters and 2 MiB of gradients.
  CHECK_THAT(prediction_text(report, true),
             ContainsSubstring("| single | cpu:0  | 3.00 |       1.00 |      2.00 |"));
}

TEST_CASE("the table of meshes has the fastest twenty") {
  Report report;
  report.device_names = {"cpu:0"};
  for (int i = 1; i <= 21; ++i) {
    report.sweep.push_back({.mode = "shard=" + std::to_string(i), .devices = 128, .step_s = 1.0 * i});
    report.sweep.back().memory = {{}};
  }
  const std::string text = prediction_text(report, true);
  CHECK_THAT(text, ContainsSubstring("The fastest 20 of 21 meshes of 128 devices") &&
                       ContainsSubstring("; --json writes all"));
  CHECK_THAT(text, ContainsSubstring("| shard=20 ") && !ContainsSubstring("shard=21"));
}

TEST_CASE("a table of predictions has one row per mode, as wide as the header") {
  planner::Prediction p{.mode = "single", .step_s = 49};
  p.memory = {{.parameters = 3 << 20}, {.parameters = 5 << 20}};
  const auto rows = prediction_rows({p, p});
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].size() == rows[1].size());
  CHECK(rows[1][0] == "single");
  CHECK(rows[1][2] == "49000.00");
  CHECK(rows[1][8] == "5.00");  // the device that needs most
}

TEST_CASE("modes are named by the table of strategies, and sorted with single first") {
  CHECK(modes().size() == 11);
  for (const Mode& mode : modes()) CHECK(plan_json(mode_named(mode.name).plan) != "null");
  CHECK(plan_json(mode_named("replicate=-1:zero=2").plan) == plan_json(mode_named("zero2").plan));
  CHECK(plan_json(mode_named("replicate=2:compress=bf16").plan) == "null");
  CHECK(mode_named("replicate=2:zero=2").one_process_per_device());
  CHECK(mode_named("pipeline=2:schedule=1f1b").splits_model());
  REQUIRE(!modes().empty());
  CHECK(modes()[0].name == "single");
  for (std::size_t i = 2; i < modes().size(); ++i) CHECK(modes()[i - 1].name < modes()[i].name);
  CHECK_THROWS_WITH(mode_named("horovod"), ContainsSubstring("single, "));
}

TEST_CASE("the stages of a split compute the same outputs as the whole model") {
  for (const std::string& name : model_names()) {
    INFO(name);
    Workload w;
    w.model = name;
    w.image_size = 8;
    w.length = 5;
    w.batch_size = 3;
    w.dtype = tapestry::DType::f64;
    const Batch batch = make_batch(w);
    const tapestry::Tensor whole = (*make_model(w, tapestry::kCPU))(batch.inputs);
    if (reads_images(w)) {
      CHECK(batch.inputs.sizes() == tapestry::Shape{3, 3, 8, 8});
      CHECK(batch.inputs.dtype() == tapestry::DType::f64);
      CHECK(batch.targets.sizes() == tapestry::Shape{3});
      CHECK(whole.sizes() == tapestry::Shape{3, 10});
    } else {
      CHECK(batch.inputs.sizes() == tapestry::Shape{3, 5});
      // The target of a token is the next one.
      CHECK(equal(batch.inputs.narrow(1, 1, 4), batch.targets.narrow(1, 0, 4)));
      CHECK(whole.sizes() == tapestry::Shape{3, 5, 1024});
      // A token sees itself and earlier ones alone.
      CHECK(allclose((*make_model(w, tapestry::kCPU))(batch.inputs.narrow(1, 0, 2)), whole.narrow(1, 0, 2),
                     1e-12, 1e-12));
    }

    const int blocks = static_cast<int>(make_blocks(w).size());
    w.split = {1, blocks - 1};
    const auto parts = make_stages(w, make_blocks(w));
    REQUIRE(parts.size() == 2);
    CHECK(allclose((*parts[1])((*parts[0])(batch.inputs)), whole, 0, 0));
    // The output of a sample must not depend on the other samples.
    CHECK(allclose((*make_model(w, tapestry::kCPU))(batch.inputs.narrow(0, 1, 1)), whole.narrow(0, 1, 1),
                   1e-12, 1e-12));
    w.split = {blocks, 0};
    CHECK_THROWS_WITH(make_stages(w, make_blocks(w)), ContainsSubstring("at least one"));
    w.split = {1, 1};
    CHECK_THROWS_WITH(make_stages(w, make_blocks(w)), ContainsSubstring("2 stages with 2 blocks"));
  }
  Workload w;
  w.model = "vgg";
  CHECK_THROWS_WITH(make_blocks(w), ContainsSubstring("mlp, cnn, resnet18 or gpt"));
  w.model = "cnn";
  w.image_size = 3;
  CHECK_THROWS_WITH(make_blocks(w), ContainsSubstring("at least 4x4"));
}

TEST_CASE("meshes divide layers as far as the model, its sequences and experts, and the hosts allow") {
  Workload w;
  using Texts = std::vector<std::string>;
  CHECK(layers_of_meshes(w, 8) == Texts{"tensor=2", "tensor=4", "tensor=8"});  // the MLP
  w.model = "cnn";
  CHECK(layers_of_meshes(w, 8).empty());
  w.model = "gpt";  // with three heads, a context of two is a ring, which needs four equal parts
  CHECK(layers_of_meshes(w, 2) == Texts{"context=2"});
  w.length = 6;
  CHECK(layers_of_meshes(w, 2).empty());
  w.length = 64, w.heads = 4, w.experts = 6;
  CHECK(layers_of_meshes(w, 4) == Texts{"tensor=2", "tensor=4", "context=2", "context=4", "expert=2",
                                        "context=2,tensor=2", "expert=2,tensor=2", "expert=2,context=2"});
  w.devices_per_host = 2;
  CHECK(layers_of_meshes(w, 4) == Texts{"tensor=2", "context=2", "expert=2"});
  CHECK(why_not_divided(w, "").empty());
  CHECK_THAT(why_not_divided(w, "expert=4"), ContainsSubstring("the last of 4 ranks would have none"));
  // A rank of the axis tensor has two of the heads.
  CHECK(why_not_divided(w, "context=2:attention=all-to-all,tensor=2").empty());
  CHECK_THAT(why_not_divided(w, "context=4:attention=all-to-all,tensor=2"), ContainsSubstring("has 2 heads"));
  CHECK_THAT(why_not_divided(w, "tensor=2:sequence=1"), ContainsSubstring("need whole sequences"));
}
