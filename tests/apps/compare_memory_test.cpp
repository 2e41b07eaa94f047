// Runs tapestry-compare with AdamW, whose state is most of the memory that modes divide.
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
