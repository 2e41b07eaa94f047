// Runs tapestry-compare with AdamW, whose state is most of the memory that modes divide, and with divided
// sequences and experts.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using nlohmann::json;

TEST_CASE("with AdamW all modes agree, and the optimizer holds twice the bytes of the parameters") {
  const tests::TempDir folder;
  const tests::Ended ended =
      run(tests::Launch{.arguments = {"--device",     "cpu",
                                      "--model",      "cnn",
                                      "--image-size", "4",
                                      "--dtype",      "f64",
                                      "--batch-size", "8",
                                      "--steps",      "2",
                                      "--warmup",     "2",
                                      "--rounds",     "1",
                                      "--optimizer",  "adamw",
                                      "--modes",      "ddp,dp-master,fsdp,pipeline-1f1b,zero1,zero2",
                                      "--json",       folder / "r.json"},
                        .program = "tapestry-compare"});
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, ContainsSubstring("float64, AdamW;"));
  CHECK_THAT(ended.out, ContainsSubstring("Measured memory of the device that holds most"));
  const json report = json::parse(tests::read_file(folder / "r.json"));
  CHECK(report.at("options").at("lr") == 0.001);
  CHECK(report.at("profile").at("optimizer_state").get<double>() == Approx(2).epsilon(0.01));
  for (const json& mode : report.at("modes")) {
    INFO(mode.at("name"));
    CHECK(mode.at("difference_from_single").get<double>() <= 1e-10);
    // What exists at one time under fsdp and ZeRO depends on when collectives end.
    const std::string name = mode.at("name");
    const double tolerance = name == "fsdp" || name.starts_with("zero") ? 0.15 : 0.05;
    for (std::size_t i = 0; i < mode.at("memory").size(); ++i) {
      const json& peak = mode.at("memory").at(i).at("peak");
      const auto parameters = peak.at("parameters").get<double>();
      CHECK(parameters > 0);
      // Of dp-master, only the first device updates. ZeRO and fsdp divide the state between two ranks; at the
      // peak of fsdp, some blocks are whole.
      const auto optimizer = peak.at("optimizer").get<double>();
      if (name == "fsdp") CHECK(optimizer < 2 * parameters);
      else if (name.starts_with("zero")) CHECK(optimizer == Approx(parameters).epsilon(0.01));
      else CHECK(optimizer == (name == "dp-master" && i == 1 ? 0 : 2 * parameters));
      CHECK(mode.at("predicted_peak_bytes").at(i).get<double>() ==
            Approx(mode.at("peak_bytes").at(i).get<double>()).epsilon(tolerance));
    }
  }
}

TEST_CASE("sequences and experts are divided between ranks, in JSON and page") {
  const tests::TempDir folder;
  // Each token uses both experts, so that ranks exchange exactly the predicted bytes.
  const tests::Ended ended = run(tests::Launch{.arguments = {"--device",     "cpu",
                                                             "--dtype",      "f64",
                                                             "--rounds",     "1",
                                                             "--warmup",     "1",
                                                             "--model",      "gpt",
                                                             "--experts",    "2",
                                                             "--heads",      "4",
                                                             "--width",      "48",
                                                             "--length",     "4",
                                                             "--batch-size", "4",
                                                             "--steps",      "1",
                                                             "--devices",    "4",
                                                             "--modes",      "single",
                                                             "--parallel",   "tensor=2,context=2",
                                                             "--parallel",   "replicate=2,expert=2",
                                                             "--json",       folder / "r.json",
                                                             "--html",       folder / "r.html"},
                                               .program = "tapestry-compare"});
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(tests::read_file(folder / "r.html"), ContainsSubstring("\"options\":\"\",\"samples\":true"));
  const json report = json::parse(tests::read_file(folder / "r.json"));
  CHECK(report.at("options").at("experts") == 2);
  const std::vector<std::vector<std::string>> axes = {{"context", "tensor"},
                                                      {"replicate", "expert", "replicate_expert"}};
  for (std::size_t m = 1; m < 3; ++m) {
    const json& mode = report.at("modes").at(m);
    INFO(mode.at("name"));
    CHECK(mode.at("status") == "ok");
    CHECK(mode.at("difference_from_single").get<double>() <= 1e-10);
    std::vector<std::string> names;
    for (const json& axis : mode.at("axis_costs")) {
      INFO(axis.dump());
      names.push_back(axis.at("axis"));
      // Buckets have flags, and their ends are aligned.
      CHECK(axis.at("predicted_bytes_sent").get<double>() ==
            Approx(axis.at("bytes_sent").get<double>()).epsilon(0.02));
      CHECK(axis.at("bytes_sent").get<std::int64_t>() > 0);
      // Of two sums at the end of backward, the longer one hides the other.
      CHECK((axis.at("predicted_exposed_ms").get<double>() > 0 || names.back() == "replicate_expert" ||
             names.back() == "replicate"));
      CHECK(axis.at("exposed_ms").get<double>() >= 0);
    }
    CHECK(names == axes[m - 1]);
    for (std::size_t d = 0; d < 4; ++d)
      CHECK(mode.at("predicted_peak_bytes").at(d).get<double>() ==
            Approx(mode.at("peak_bytes").at(d).get<double>()).epsilon(0.1));
  }
  for (const json& t : report.at("modes").at(1).at("traffic"))
    CHECK((t.at("kind") == "gradients" || t.at("kind") == "activations"));
  const json& lines = report.at("modes").at(1).at("changes");
  CHECK(std::any_of(lines.begin(), lines.end(), [](const json& line) {
    return line.get<std::string>().find(".sequence_dim = 1") != std::string::npos;
  }));
}
