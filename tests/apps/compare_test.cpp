// Runs tapestry-compare as a user does.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tapestry/apps/compare/mode.h"
#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using nlohmann::json;
using tests::Ended;
namespace planner = tapestry::distributed::planner;

namespace {

Ended compare(std::vector<std::string> arguments) {
  return run(tests::Launch{.arguments = std::move(arguments), .program = "tapestry-compare"});
}

// Options for a small and short comparison on the CPU, with a batch that does not divide evenly. Options in
// `more` replace these.
std::vector<std::string> tiny(std::vector<std::string> more) {
  const std::vector<std::pair<std::string, std::string>> small = {
      {"--device", "cpu"},    {"--model", "cnn"}, {"--image-size", "4"}, {"--dtype", "f64"},
      {"--batch-size", "11"}, {"--steps", "2"},   {"--warmup", "1"},     {"--rounds", "1"}};
  for (const auto& [option, value] : small)
    if (std::find(more.begin(), more.end(), option) == more.end()) more.insert(more.end(), {option, value});
  return more;
}

// What a mode sent is what its prediction says. Buckets have flags, and aligned ends. Targets are neither
// sent by dp-master, nor predicted for stages.
void check_traffic(const json& mode, const json& prediction) {
  std::map<std::string, std::pair<double, double>> sent_by;
  const auto key = [](const json& t) {
    std::string text;
    for (const char* const part : {"from", "to", "axis", "kind", "phase"}) text += t.at(part).dump() + " ";
    return text;
  };
  for (const json& t : mode.at("traffic")) sent_by[key(t)].first += t.at("bytes").get<double>();
  for (const json& t : prediction.at("traffic")) sent_by[key(t)].second += t.at("bytes").get<double>();
  for (const auto& [what, bytes] : sent_by) {
    INFO(mode.at("name") << ": " << what);
    if (what.find("batch") == std::string::npos || mode.at("name") == "dp-replicated")
      CHECK(bytes.second == Approx(bytes.first).epsilon(0.02));
  }
}

}  // namespace

TEST_CASE("modes train the GPT alike") {
  const Ended ended = compare(tiny({"--model", "gpt", "--width", "48", "--length", "3", "--batch-size", "5",
                                    "--steps", "1", "--optimizer", "adamw", "--modes",
                                    "dp-replicated,fsdp,pipeline-1f1b,zero2", "--parallel", "pipeline=2"}));
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, ContainsSubstring("gpt on sequences of 3 tokens, batch of 5, float64"));
}

TEST_CASE("all modes compute the same losses, and each reports its costs") {
  const tests::TempDir folder;
  const Ended ended = compare(tiny({"--warmup", "2", "--predict-devices", "8", "--link-latency-us", "30",
                                    "--link-bandwidth-gbs", "1.25", "--markdown", "--json", folder / "r.json",
                                    "--html", folder / "r.html", "--svg", folder / "svg"}));
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, ContainsSubstring("cnn on images of 4x4, batch of 11, float64"));
  CHECK_THAT(ended.out, ContainsSubstring("| single"));

  const json report = json::parse(tests::read_file(folder / "r.json"));
  CHECK(report.at("options").at("devices") == 2);
  CHECK(report.at("threads_per_device").get<int>() >= 1);
  CHECK(report.at("devices").size() == 2);
  const json& modes = report.at("modes");
  REQUIRE(modes.size() == apps::compare::modes().size());
  const std::string html = tests::read_file(folder / "r.html");
  CHECK(html.size() < 900'000);
  CHECK_THAT(ended.out, ContainsSubstring(report.at("answer").at("headline").get<std::string>()));
  CHECK(report.at("schema") == 2);
  CHECK_THAT(report.at("run").at("command").dump(), ContainsSubstring("--predict-devices"));
  CHECK(report.at("run").at("host").at("cores").get<int>() >= 1);
  CHECK(report.at("run").at("seconds").get<double>() > 0);
  for (const json& mode : modes) {
    const std::string name = mode.at("name");
    INFO(name);
    CHECK(mode.at("difference_from_single").get<double>() <= 1e-10);
    CHECK(mode.at("final_loss").get<double>() > 0);
    CHECK(mode.at("samples_per_s").get<double>() == Approx(11 / (mode.at("step_ms").get<double>() / 1000)));
    double sum = 0;
    for (const char* part : {"forward_ms", "backward_ms", "exposed_comm_ms", "update_ms", "idle_ms"}) {
      CHECK(mode.at(part).get<double>() >= 0);
      sum += mode.at(part).get<double>();
    }
    CHECK(sum == Approx(mode.at("step_ms").get<double>()));
    CHECK(mode.at("forward_ms").get<double>() > 0);
    CHECK(mode.at("backward_ms").get<double>() > 0);
    CHECK(mode.at("update_ms").get<double>() > 0);
    const bool single = name == "single";
    CHECK((mode.at("bytes_sent").get<std::int64_t>() == 0) == single);
    CHECK(mode.at("peak_bytes").size() == (single ? 1 : 2));
    // Both devices send: parts of rings, activations and their gradients, or batches and summands.
    std::int64_t sent = 0;
    for (const json& t : mode.at("traffic")) {
      CHECK(t.at("from").get<int>() + t.at("to").get<int>() == 1);
      CHECK(t.at("bytes").get<std::int64_t>() > 0);
      const std::string kind = t.at("kind"), phase = t.at("phase");
      if (kind == "gradients") CHECK(phase == "backward");
      else if (kind == "parameters" && name.starts_with("zero")) CHECK(phase == "update");
      else if (kind == "parameters" && name == "fsdp") CHECK((phase == "forward" || phase == "backward"));
      else CHECK(phase == "forward");
      sent += t.at("bytes").get<std::int64_t>();
    }
    CHECK(sent == mode.at("bytes_sent"));
    CHECK(mode.at("holdings").size() == (single ? 4 : 8));
    CHECK((mode.at("axes").empty()) == single);
    CHECK_FALSE(mode.at("critical_path").empty());
    for (const json& span : mode.at("timeline"))
      for (const json& needed : span.at("needs"))
        CHECK(needed.get<std::size_t>() < mode.at("timeline").size());
    for (const json& bytes : mode.at("peak_bytes")) CHECK(bytes.get<std::int64_t>() > 0);
    CHECK(mode.at("rounds_ms") == json({mode.at("step_ms")}));
    REQUIRE(mode.at("rounds").size() == 1);
    CHECK(mode.at("rounds").at(0).at("steps_ms").size() == 2);
    CHECK(mode.at("rounds").at(0).at("step_ms") == mode.at("step_ms"));
    CHECK(mode.at("status") == "ok");
    CHECK(mode.at("predicted_low_ms") == mode.at("predicted_step_ms"));  // there is one round
    CHECK(mode.at("verdict").at("word") == (mode.at("place") == "~1" ? "fastest" : "undecided"));
    if (!single) {
      double losses = 0;
      for (const auto& [part, ms] : mode.at("losses_ms").items()) losses += ms.get<double>();
      CHECK(losses == Approx(mode.at("step_ms").get<double>() - modes.at(0).at("step_ms").get<double>() / 2));
    }
    CHECK(mode.at("predicted_step_ms").get<double>() > 0);
    CHECK(mode.at("prediction_error").get<double>() > -1);
    // What exists at one time under these modes depends on when collectives end.
    const double tolerance = name == "fsdp" || name.starts_with("zero") ? 0.15 : 0.05;
    REQUIRE(mode.at("predicted_peak_bytes").size() == mode.at("peak_bytes").size());
    for (std::size_t i = 0; i < mode.at("peak_bytes").size(); ++i) {
      const double measured = mode.at("peak_bytes").at(i), predicted = mode.at("predicted_peak_bytes").at(i);
      // A later stage of a pipeline holds fewer received micro-batches if the stage before it was delayed.
      if (i > 0 && name.starts_with("pipeline") && measured < predicted) CHECK(measured > 0.5 * predicted);
      else CHECK(predicted == Approx(measured).epsilon(tolerance));
    }
    REQUIRE(mode.at("memory").size() == mode.at("peak_bytes").size());
    for (std::size_t i = 0; i < mode.at("memory").size(); ++i) {
      const json& memory = mode.at("memory").at(i);
      std::int64_t total = 0;
      for (const json& kind : report.at("memory_kinds"))
        total += memory.at("peak").at(kind.get<std::string>()).get<std::int64_t>();
      CHECK(memory.at("peak").at("total") == total);
      CHECK(static_cast<double>(total) ==
            Approx(mode.at("peak_bytes").at(i).get<double>()).epsilon(tolerance));
      CHECK(memory.at("samples").size() > 10);
    }
    CHECK(tests::xml_fault(tests::read_file(folder / ("svg/memory-" + name + ".svg"))) == "");
    CHECK_FALSE(mode.at("timeline").empty());
    CHECK_THAT(html, ContainsSubstring("\"name\":\"" + name + "\""));
    CHECK(tests::xml_fault(tests::read_file(folder / ("svg/timeline-" + name + ".svg"))) == "");
  }
  for (const char* picture : {"speed.svg", "step.svg", "memory.svg"})
    CHECK(tests::xml_fault(tests::read_file((folder / "svg/") + picture)) == "");

  // All-reduces that overlap backward must be in a row of their own beside the device's row.
  const auto activity_in_row = [&](const std::string& mode_name, const std::string& row) {
    for (const json& mode : modes)
      for (const json& span : mode.at("timeline"))
        if (mode.at("name") == mode_name && span.at("row") == row)
          return span.at("activity").get<std::string>();
    return std::string();
  };
  CHECK(activity_in_row("ddp", "rank 1 communication") == "communication");
  CHECK(activity_in_row("dp-replicated", "cpu:1 communication") == "communication");
  CHECK(activity_in_row("dp-master", "cpu:0") != "");
  const auto sent = [&](const std::string& mode_name, int from, const std::string& what) {
    for (const json& mode : modes)
      for (const json& t : mode.at("traffic"))
        if (mode.at("name") == mode_name && t.at("from") == from && t.at("kind") == what)
          return t.at("bytes").get<std::int64_t>();
    return std::int64_t{0};
  };
  std::int64_t parameters = 0;  // of f64
  for (const json& block : report.at("profile").at("blocks"))
    for (const json& bytes : block.at("parameter_bytes")) parameters += bytes.get<std::int64_t>();
  for (const int rank : {0, 1}) {
    // 2 (n - 1) / n of the gradients, in buckets whose ends are aligned.
    CHECK(static_cast<double>(sent("ddp", rank, "gradients")) == Approx(parameters).epsilon(1e-3));
    CHECK(sent("zero1", rank, "parameters") == parameters / 2);
    CHECK(sent("dp-replicated", rank, "gradients") == parameters);
  }
  // What spans are about: buckets, the blocks of units, and the bytes of copies.
  std::map<std::string, std::int64_t> block_bytes;
  for (const json& block : report.at("profile").at("blocks"))
    for (const json& bytes : block.at("parameter_bytes"))
      block_bytes[block.at("name")] += bytes.get<std::int64_t>();
  std::map<std::string, int> seen;
  for (const json& mode : modes)
    for (const json& span : mode.at("timeline")) {
      const std::string mode_name = mode.at("name"), name = span.at("name");
      INFO(mode_name << span.dump());
      const bool moves = span.at("activity") == "communication";
      CHECK(span.at("axis") == (!moves                        ? json()
                                : mode_name == "fsdp"         ? json("shard")
                                : mode.at("family") == "data" ? json("replicate")
                                                              : json("pipeline")));
      if (name.starts_with("bucket ")) {
        CHECK(span.at("bucket") == std::stoi(name.substr(7)));
        CHECK(span.at("bytes").get<std::int64_t>() > 0);
        ++seen[mode_name];
      } else if (name.starts_with("parameters of bucket ")) {
        CHECK(span.at("bucket") == std::stoi(name.substr(21)));
        ++seen[mode_name + " update"];
      } else {
        CHECK(span.at("bucket").is_null());
      }
      if (mode_name == "fsdp" && moves) {
        CHECK(span.at("bytes") == block_bytes.at(span.at("block")));
        ++seen[mode_name];
      }
      if (name.starts_with("backward of ")) CHECK(block_bytes.contains(span.at("block")));
      if (mode_name == "dp-master" && name == "scatter") CHECK(span.at("bytes") == 5 * 3 * 4 * 4 * 8);
      if (mode_name == "dp-master" && name == "add gradients") CHECK(span.at("bytes") == parameters);
      if (mode_name == "model" && name == "activations")
        CHECK(span.at("bytes") == sent("model", 0, "activations"));
    }
  for (const char* const some : {"ddp", "dp-replicated", "zero1", "zero1 update", "zero2 update", "fsdp"})
    CHECK(seen[some] >= 2);

  CHECK(sent("dp-master", 0, "parameters") == parameters);
  CHECK(sent("dp-master", 1, "gradients") == parameters);
  CHECK(sent("dp-master", 0, "batch") == 5 * 3 * 4 * 4 * 8);  // 5 of 11 samples
  for (const char* const mode : {"model", "pipeline-gpipe", "pipeline-1f1b", "pipeline-zero-bubble"}) {
    CHECK(sent(mode, 0, "activations") > 0);
    CHECK(sent(mode, 0, "activations") == sent(mode, 1, "gradients"));
    CHECK(sent(mode, 0, "activations") == sent("model", 0, "activations"));
  }

  CHECK_THAT(ended.out, ContainsSubstring("Predicted, in ms and MiB, from blocks measured on one device"));
  const planner::Profile profile = planner::profile_from_text(report.at("profile").dump());
  const planner::Link link = planner::link_from_text(report.at("link").dump());
  CHECK(profile.blocks.size() == 6);
  CHECK(link.ranks.message.latency_s + link.ranks.message.s_per_byte > 0);
  for (const auto& c :
       {profile.contention, link.master_contention, link.local.contention, link.ranks.contention})
    for (const double factor : {c.forward, c.backward, c.update}) CHECK(factor >= 1);
  REQUIRE(profile.stages.size() == 2);
  REQUIRE(profile.zero_bubble_stages.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    const planner::ZeroBubbleStage& stage = profile.zero_bubble_stages[s];
    for (const auto& c : {profile.stages[s], stage.contention})
      for (const double factor : {c.forward, c.backward, c.weights}) CHECK(factor >= 1);
    CHECK((stage.input_grad_s > 0) == (s > 0));
    CHECK(stage.weight_grad_s > 0);
    CHECK(stage.weight_grad_accumulate_s > 0);
  }
  REQUIRE(report.at("predictions").size() == modes.size());
  for (const json& p : report.at("predictions")) {
    CHECK(p.at("simulated") == false);
    CHECK(p.at("low_ms") == p.at("step_ms"));  // there is one round
    CHECK_FALSE(p.at("critical_path").empty());
    double most = 0, peak = 0;
    for (const json& sample : p.at("memory_over_time").at("samples")) {
      double held = 0;
      for (const auto& [item, bytes] : sample.items()) held += item == "begin_ms" ? 0 : bytes.get<double>();
      most = std::max(most, held);
    }
    for (const json& device : p.at("memory")) peak = std::max(peak, device.at("total").get<double>());
    CHECK(most == Approx(peak));
    const auto mode =
        std::find_if(modes.begin(), modes.end(), [&](const json& m) { return m.at("name") == p.at("name"); });
    check_traffic(*mode, p);
  }
  const std::string label = "A simulation, not a measurement, of 8 devices";
  CHECK_THAT(ended.out, ContainsSubstring(label));
  // cnn has six blocks, too few to split for eight devices
  const auto simulated = std::count_if(apps::compare::modes().begin(), apps::compare::modes().end(),
                                       [](const apps::compare::Mode& m) { return !m.splits_model(); });
  REQUIRE(report.at("simulations").size() == static_cast<std::size_t>(simulated));
  CHECK_THAT(ended.out,
             ContainsSubstring("\nmodel: cannot run on 8 devices, since the model has 6 blocks\npipeline-"));
  for (const json& p : report.at("simulations")) {
    CHECK(p.at("simulated") == true);
    CHECK(p.at("devices") == (p.at("name") == "single" ? 1 : 8));
    // The exposed communication must exceed a lower bound: the time to send all parameters to 7 devices and
    // their gradients back at 1.25 GB/s.
    const double bytes = p.at("memory").at(0).at("parameters").get<double>();
    if (p.at("name") == "dp-master") CHECK(p.at("exposed_comm_ms").get<double>() > 2 * 7 * bytes / 1.25e6);
  }
}

TEST_CASE("meshes are measured and predicted, axis by axis, and all meshes are swept") {
  const tests::TempDir folder;
  const Ended ended =
      compare(tiny({"--devices", "4", "--batch-size", "8", "--micro-batches", "2", "--modes", "single",
                    "--parallel", "pipeline=2,replicate=2", "--meshes", "8", "--devices-per-host", "2",
                    "--cross-bandwidth-gbs", "1e-6", "--json", folder / "r.json"}));
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, ContainsSubstring("Axes of the modes that combine several"));
  CHECK_THAT(ended.out,
             ContainsSubstring("All meshes of 8 devices, each like the measured one, 2 on a host"));
  const json report = json::parse(tests::read_file(folder / "r.json"));
  const json& mode = report.at("modes").at(1);
  CHECK(mode.at("difference_from_single").get<double>() <= 1e-10);
  CHECK(mode.at("family") == "stages");
  CHECK(mode.at("peak_bytes").size() == 4);
  REQUIRE(mode.at("split").size() == 2);
  CHECK(mode.at("split").at(0).get<int>() + mode.at("split").at(1).get<int>() == 6);
  REQUIRE(mode.at("axis_costs").size() == 2);
  std::int64_t sent = 0;
  for (const json& axis : mode.at("axis_costs")) {
    INFO(axis.dump());
    sent += axis.at("bytes_sent").get<std::int64_t>();
    // Buckets also have flags, and their ends are aligned.
    CHECK(axis.at("predicted_bytes_sent").get<double>() ==
          Approx(axis.at("bytes_sent").get<double>()).epsilon(0.02));
    // A pipeline does not measure how long its stages wait for messages.
    CHECK(axis.contains("exposed_ms") == (axis.at("axis") == "replicate"));
    CHECK(axis.at("predicted_exposed_ms").get<double>() >= 0);
  }
  CHECK(sent == mode.at("bytes_sent"));
  for (const json& h : mode.at("holdings")) {  // ranks 0 and 1 have the first stage
    const int first = mode.at("split").at(0), device = h.at("device");
    CHECK(h.at("layers") == (device < 2 ? json({0, first}) : json({first, 6})));
  }
  const json& sweep = report.at("sweep");
  CHECK(sweep.at("devices") == 8);
  CHECK(sweep.at("devices_per_host") == 2);
  CHECK(sweep.at("link").is_null());
  CHECK(sweep.at("cross") == json({{"latency_us", nullptr}, {"bandwidth_gbs", 1e-6}}));
  // The measured devices are on one host, so that the predictions for them do not depend on the options.
  const planner::Profile profile = planner::profile_from_text(report.at("profile").dump());
  const planner::Link link = planner::link_from_text(report.at("link").dump());
  planner::TrainingSetup setup{.batch_size = 8, .devices = 4, .micro_batches = 2};
  setup.split = mode.at("split").get<std::vector<int>>();
  const auto plan = apps::compare::mode_named("pipeline=2,replicate=2").plan;
  CHECK(mode.at("predicted_step_ms").get<double>() ==
        Approx(planner::predict(plan, profile, link, setup)->step_s * 1e3).epsilon(1e-6));
  CHECK(sweep.at("rows").size() == planner::meshes(8, 6, 8).size());
  double before = 0;
  for (const json& row : sweep.at("rows")) {
    CHECK(row.at("step_ms").get<double>() >= before);
    before = row.at("step_ms");
    CHECK(row.at("peak_bytes").get<std::int64_t>() > 0);
    CHECK(row.at("fits").is_null());
    double exposed = 0;
    for (const json& axis : row.at("axes")) exposed += axis.at("exposed_ms").get<double>();
    CHECK(exposed == Approx(row.at("exposed_comm_ms").get<double>()));
  }
}

TEST_CASE("layers are divided between ranks, in table, JSON, page, simulations and meshes") {
  const tests::TempDir folder;
  const Ended ended = compare(tiny({"--model",
                                    "gpt",
                                    "--width",
                                    "48",
                                    "--heads",
                                    "4",
                                    "--length",
                                    "3",
                                    "--batch-size",
                                    "4",
                                    "--steps",
                                    "1",
                                    "--devices",
                                    "4",
                                    "--modes",
                                    "single",
                                    "--parallel",
                                    "replicate=2,tensor=2",
                                    "--predict-devices",
                                    "4",
                                    "--meshes",
                                    "2",
                                    "--json",
                                    folder / "r.json",
                                    "--html",
                                    folder / "r.html"}));
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(tests::read_file(folder / "r.html"), ContainsSubstring("\"layers\":true"));
  const json report = json::parse(tests::read_file(folder / "r.json"));
  const json& mode = report.at("modes").at(1);
  CHECK(mode.at("status") == "ok");
  CHECK(mode.at("difference_from_single").get<double>() <= 1e-10);
  REQUIRE(mode.at("axis_costs").size() == 2);
  for (const json& axis : mode.at("axis_costs")) {
    INFO(axis.dump());
    // Buckets have flags, and their ends are aligned.
    CHECK(axis.at("predicted_bytes_sent").get<double>() ==
          Approx(axis.at("bytes_sent").get<double>()).epsilon(0.02));
    CHECK(axis.at("bytes_sent").get<std::int64_t>() > 0);
    CHECK(axis.at("predicted_exposed_ms").get<double>() > 0);
  }
  const json& tensor = mode.at("axis_costs").back();
  CHECK(tensor.at("axis") == "tensor");
  CHECK(tensor.at("bytes_sent") == tensor.at("predicted_bytes_sent").get<double>());
  CHECK(tensor.at("exposed_ms").get<double>() > 0);
  for (std::size_t d = 0; d < 4; ++d)
    CHECK(mode.at("predicted_peak_bytes").at(d).get<double>() ==
          Approx(mode.at("peak_bytes").at(d).get<double>()).epsilon(0.02));
  check_traffic(mode, report.at("predictions").at(1));
  int waits = 0;
  for (const json& span : mode.at("timeline"))
    if (span.at("name") == "wait for activations") {
      ++waits;
      CHECK(span.at("axis") == "tensor");
      CHECK(span.at("bytes").get<std::int64_t>() > 0);
    }
  CHECK(waits > 0);
  CHECK(report.at("simulations").back().at("devices") == 4);
  const json& rows = report.at("sweep").at("rows");
  CHECK(rows.size() == planner::meshes(2, 8, 4, {"tensor=2"}).size());
  CHECK(std::any_of(rows.begin(), rows.end(), [](const json& row) { return row.at("mesh") == "tensor=2"; }));
}

TEST_CASE("one device, and three devices with a split by hand, run successfully") {
  const std::vector<std::string> modes = {"--modes", "ddp,dp-master,pipeline-gpipe"};
  std::vector<std::string> three = modes;
  three.insert(three.end(), {"--devices", "3", "--split", "1,4,1", "--micro-batches", "3"});
  const tests::TempDir folder;
  const std::string file = folder / "linked.json";
  std::vector<std::string> one = modes;
  one.insert(one.end(),
             {"--devices", "1", "--link-latency-us", "5000", "--link-bandwidth-gbs", "1", "--json", file});
  for (const auto& arguments : {one, three}) {
    const Ended ended = compare(tiny(arguments));
    INFO(ended.out << ended.err);
    CHECK(ended.status == 0);
    CHECK_THAT(ended.out, ContainsSubstring("single"));  // single must be added although it is not in --modes
    CHECK(ended.out.find("dp-replicated") == std::string::npos);
  }
  // One device has no link to measure, so the scaling takes the one that is given.
  double waits_ms = 0;
  const json scaling = json::parse(tests::read_file(file)).at("scaling");
  for (const json& row : scaling)
    if (row.at("name") == "ddp" && row.at("devices") == 2) waits_ms = row.at("exposed_comm_ms");
  CHECK(waits_ms > 4);  // two messages of 5 ms, of which backward hides a part
}

TEST_CASE("--serve shows the page at the address that it prints, until a signal ends it") {
  const tests::TempDir folder;
  std::string command = "echo $$; exec timeout -s KILL 120 " TAPESTRY_PROGRAMS "/tapestry-compare";
  for (const std::string& argument :
       tiny({"--modes", "single", "--memory", "1", "--serve", "--html", folder / "r.html"}))
    command += " '" + argument + "'";
  std::unique_ptr<FILE, int (*)(FILE*)> program(popen((command + " 2>/dev/null").c_str(), "r"), pclose);
  REQUIRE(program);
  std::string text, url;
  const std::string before = "The page is at http://127.0.0.1:";
  for (std::array<char, 4096> line{}; url.empty() && std::fgets(line.data(), line.size(), program.get());) {
    text += line.data();
    if (std::string_view(line.data()).starts_with(before)) url = line.data() + before.size();
  }
  INFO(text);
  const pid_t pid = std::stoi(text);
  const std::size_t slash = url.find('/');
  CHECK(slash != std::string::npos);
  if (slash != std::string::npos) {
    // bash opens TCP connections by itself.
    const std::string get = "timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/" + url.substr(0, slash) +
                            "; printf \"GET " + url.substr(slash, url.find('\n') - slash) +
                            " HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n\" >&3; cat <&3' >" +
                            (folder / "answer");
    CHECK(std::system(get.c_str()) == 0);  // NOLINT
    const std::string answer = tests::read_file(folder / "answer");
    CHECK(answer.starts_with("HTTP/1.1 200 OK"));
    CHECK(answer.ends_with(tests::read_file(folder / "r.html")));
  }
  kill(pid, SIGTERM);
  CHECK(pclose(program.release()) == 0);
}

TEST_CASE("Ctrl-C ends the program with status 130") {
  const Ended ended = run(tests::Launch{
      .arguments = tiny({"--steps", "1000000"}), .pending_signal = SIGINT, .program = "tapestry-compare"});
  INFO(ended.out << ended.err);
  CHECK(ended.status == 130);
}

TEST_CASE("a failing mode is reported, the other modes are shown, and the status is 1") {
  const tests::TempDir folder;
  setenv("TAPESTRY_TIMEOUT_S", "soon", 1);  // only process groups read this variable
  const Ended ended = compare(tiny({"--modes", "ddp,model", "--json", folder / "r.json"}));
  unsetenv("TAPESTRY_TIMEOUT_S");
  INFO(ended.out << ended.err);
  CHECK(ended.status == 1);
  CHECK_THAT(ended.err, ContainsSubstring("[compare] ddp: the process ended with exit code 1"));
  CHECK_THAT(ended.err, ContainsSubstring("TAPESTRY_TIMEOUT_S"));
  CHECK_THAT(ended.out, ContainsSubstring("failed"));
  CHECK_THAT(ended.out, ContainsSubstring("model"));
  const json modes = json::parse(tests::read_file(folder / "r.json")).at("modes");
  CHECK_THAT(modes.at(1).at("error").get<std::string>(), ContainsSubstring("TAPESTRY_TIMEOUT_S"));
  CHECK_FALSE(modes.at(1).contains("step_ms"));
  CHECK(modes.at(1).at("status") == "failed");
  CHECK(modes.at(2).at("step_ms").get<double>() > 0);
}

TEST_CASE("a mode that exceeds --timeout is killed and reported") {
  const Ended ended =
      compare(tiny({"--modes", "single", "--devices", "1", "--steps", "1000000", "--timeout", "0.5"}));
  INFO(ended.out << ended.err);
  CHECK(ended.status == 1);
  CHECK_THAT(ended.err, ContainsSubstring("single: the process did not end within 0.5 s"));
}

TEST_CASE("wrong options are reported before anything runs") {
  const tests::TempDir folder;
  const std::string name = folder.path().filename();
  struct Wrong {
    std::vector<std::string> arguments;
    int status;
    std::string text;
  };
  const std::vector<Wrong> all = {
      {{"--modes", "single,horovod"}, 2, "horovod"},
      {{"--modes", "single,horovod"}, 2, "dp-replicated"},  // the message lists all modes
      {{"--model", "vgg"}, 2, "resnet18"},
      {{"--devices", "0"}, 2, "--devices"},
      {{"--steps", "none"}, 2, "--steps"},
      {{"--lr", "nan"}, 2, "--lr"},
      {{"--optimizer", "adam"}, 2, "adamw"},
      {{"--optimizer", "adamw", "--momentum", "0.9"}, 2, "--momentum 0.9 has no effect on adamw"},
      {{"--momentum", "-1"}, 2, "--momentum"},
      {{"--dtype", "bf16"}, 2, "--dtype"},
      {{"--timeout", "0"}, 2, "--timeout"},
      {{"--bogus"}, 2, "--bogus"},
      {{"--devices", "9", "--batch-size", "8"}, 2, "9 devices for a batch of 8"},
      {{"--micro-batches", "9", "--batch-size", "8"}, 2, "9 micro-batches"},
      {{"--split", "1,2,2"}, 2, "3 stages for 2 devices"},
      {{"--predict-devices", "12"}, 2, "12 simulated devices for a batch of 11"},
      {{"--predict-devices", "65"}, 2, "--predict-devices"},
      {{"--link-bandwidth-gbs", "1"}, 2, "give --predict-devices too"},
      {{"--meshes", "67"}, 2, "no mesh of 67 devices trains 6 blocks on a batch of 11 samples"},
      {{"--meshes", "1025"}, 2, "--meshes"},
      {{"--devices", "1", "--meshes", "8"}, 2, "with --devices 1 no link is measured"},
      {{"--devices", "1", "--link-bandwidth-gbs", "1"}, 2, "give both --link-latency-us and"},
      {{"--devices", "1", "--predict-devices", "2", "--link-latency-us", "1"}, 2, "no link is measured"},
      {{"--meshes", "4", "--cross-latency-us", "1"}, 2, "links between hosts have no effect"},
      {{"--devices-per-host", "2"}, 2, "--devices-per-host has no effect"},
      {{"--parallel", "tensor=2"}, 2, "the axis tensor divides no convolutions, and cnn has them"},
      {{"--model", "gpt", "--parallel", "tensor=2"},
       2,
       "gpt has 3 heads, of which 2 ranks would have unequal numbers; choose --heads that is a multiple of "
       "2"},
      {{"--model", "mlp", "--parallel", "tensor=2:sequence=1"}, 2, "mlp has no sequence to divide"},
      {{"--parallel", "context=2"}, 2, "the axis context divides sequences, and cnn has none"},
      {{"--model", "gpt", "--length", "6", "--parallel", "context=2:attention=ring"},
       2,
       "2 ranks cannot divide sequences of 6 tokens into 4 equal parts; choose --length that is a multiple "
       "of 4"},
      {{"--model", "gpt", "--parallel", "context=2:attention=all-to-all"}, 2, "a rank of gpt has 3 heads"},
      {{"--model", "gpt", "--parallel", "expert=2"}, 2, "choose gpt and --experts 8"},
      {{"--model", "gpt", "--experts", "1", "--parallel", "expert=2"},
       2,
       "of 1 experts, the last of 2 ranks would have none"},
      {{"--model", "mlp", "--experts", "4"}, 2, "--experts 4 has no effect on mlp"},
      {{"--model", "gpt", "--heads", "5"}, 2, "--heads 5 does not divide the 192 features"},
      {{"--model", "gpt", "--width", "64"}, 2, "--heads 3 does not divide the 64 features"},
      {{"--parallel", "pipeline=2,replicate=2"}, 2, "pipeline=2,replicate=2 needs 4 devices or processes"},
      {{"--predict-devices", "4", "--link-bandwidth-gbs", "0"}, 2, "--link-bandwidth-gbs"},
      {{"--predict-devices", "4", "--link-latency-us", "-1"}, 2, "--link-latency-us"},
      {{"--split", "100,100"}, 2, "--split assigns 200 blocks, but cnn has 6; give numbers that add up to 6"},
      {{"--json", folder / "r", "--html", folder / ("../" + name + "/r")},
       2,
       "--json and --html are the same path"},
      {{"--html", folder / "r", "--svg", folder / "r"}, 2, "--html and --svg are the same path"},
      {{"--json", folder / "none/r.json"}, 1, "none"},
      {{"--html", folder / "none/r.html"}, 1, "none"},
      {{"--svg", "/dev/null/svg"}, 1, "/dev/null/svg"},
  };
  for (const Wrong& wrong : all) {
    const Ended ended = compare(tiny(wrong.arguments));
    INFO(wrong.text << "\n" << ended.out << ended.err);
    CHECK(ended.status == wrong.status);
    CHECK_THAT(ended.err, ContainsSubstring(wrong.text));
    CHECK(ended.out.empty());
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("--help lists options and modes") {
  const Ended ended = compare({"--help"});
  CHECK(ended.status == 0);
  for (const apps::compare::Mode& mode : apps::compare::modes())
    CHECK_THAT(ended.out, ContainsSubstring(mode.name));
  for (const char* option :
       {"--model", "--devices", "--json", "--html", "--svg", "--rounds", "--predict-devices"})
    CHECK_THAT(ended.out, ContainsSubstring(option));
  CHECK(ended.out.find("--child") == std::string::npos);
}
