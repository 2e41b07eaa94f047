// Tests the classifier with several processes (tapestry-run and --parallel ddp) or several devices
// (--parallel dp).
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::on_two_ranks;

namespace {

// A run with batch norm, dropout, an optimizer and a schedule with state, and an incomplete last batch.
std::vector<std::string> options(const std::string& data, const std::string& run_dir) {
  return {"--data-dir",   data, "--run-dir", run_dir, "--model",    "cnn", "--epochs",  "2",
          "--batch-size", "32", "--seed",    "3",     "--parallel", "ddp", "--workers", "0"};
}

std::string result(const std::string& run_dir) {
  return tests::metrics(run_dir) + tests::last_checkpoint(run_dir);
}

}  // namespace

TEST_CASE("with two ranks, rank 0 prints and writes, and repeated and resumed runs give the same results") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const Ended whole = on_two_ranks("classifier", options(folder / "data", folder / "whole"));
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  std::istringstream lines(whole.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.starts_with("[0] "));
  CHECK_THAT(whole.out, ContainsSubstring("ranks 2, run folder"));
  CHECK_THAT(whole.out, ContainsSubstring("replicate sent ") && ContainsSubstring("; cpu:0 held at most "));
  for (const char* file : {"config.json", "metrics.jsonl", "curves.svg", "confusion.svg"})
    CHECK(std::filesystem::exists(folder / ("whole/" + std::string(file))));

  REQUIRE(on_two_ranks("classifier", options(folder / "data", folder / "again")).status == 0);
  CHECK(result(folder / "again") == result(folder / "whole"));

  // The launcher is killed after the first epoch, which also ends its ranks.
  tests::Launch killed = tests::two_ranks("classifier", options(folder / "data", folder / "killed"));
  killed.kill_when = [&] {
    return std::filesystem::exists(folder / "killed/metrics.jsonl") &&
           std::filesystem::file_size(folder / "killed/metrics.jsonl") > 0;
  };
  tests::run(killed);
  REQUIRE(on_two_ranks("classifier", {"--resume", "--run-dir", folder / "killed"}).status == 0);
  CHECK(result(folder / "killed") == result(folder / "whole"));
}

TEST_CASE("a job of one rank computes the same results as a run without a job") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  std::vector<std::string> one = options(folder / "data", folder / "ddp"),
                           none = options(folder / "data", folder / "none");
  for (auto* list : {&one, &none}) list->insert(list->end(), {"--threads", "1"});
  none.insert(none.end(), {"--parallel", "none"});
  REQUIRE(tests::classifier(one).status == 0);
  REQUIRE(tests::classifier(none).status == 0);
  CHECK(result(folder / "ddp") == result(folder / "none"));
}

TEST_CASE("--sync-batchnorm and --compress change the results") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  std::set<std::string> results;
  const std::vector<std::vector<std::string>> variants{
      {}, {"--sync-batchnorm"}, {"--compress", "f16"}, {"--compress", "bf16"}};
  for (const auto& variant : variants) {
    const std::string run_dir = folder / std::to_string(results.size());
    std::vector<std::string> all = options(folder / "data", run_dir);
    all.insert(all.end(), variant.begin(), variant.end());
    REQUIRE(on_two_ranks("classifier", all).status == 0);
    results.insert(tests::metrics(run_dir));
  }
  CHECK(results.size() == variants.size());
}

TEST_CASE("DataParallel on two devices computes the same loss as one device, and can be resumed") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = options(folder / "data", folder / name);
    all.insert(all.end(), {"--threads", "2", "--parallel", "dp"});
    all.insert(all.end(), more.begin(), more.end());
    setenv("TAPESTRY_LOGICAL_DEVICES", "2", 1);
    const Ended ended = tests::classifier(all);
    unsetenv("TAPESTRY_LOGICAL_DEVICES");
    INFO(ended.err);
    CHECK(ended.status == 0);
    CHECK(ended.err == "");
    return tests::metrics(folder / name);
  };
  const auto train_loss = [](const std::string& metrics) {
    return std::stod(metrics.substr(metrics.rfind("\"train_loss\":") + 13));
  };
  // DataParallel must compute the loss of one device here, because the model has no batch norm and no
  // dropout, whose results depend on how the batch is divided.
  const double one = train_loss(run("one", {"--model", "mlp", "--parallel", "none"}));
  CHECK(train_loss(run("two", {"--model", "mlp"})) == Approx(one).epsilon(1e-4));
  CHECK(train_loss(run("other", {"--model", "mlp", "--seed", "4"})) != Approx(one).epsilon(1e-4));
  // A text that says how many devices makes as many of the CPU.
  tests::Launch counted{.arguments = options(folder / "data", folder / "counted")};
  counted.arguments.insert(counted.arguments.end(),
                           {"--threads", "2", "--model", "mlp", "--parallel", "replicate=2:devices"});
  CHECK(tests::run(counted).err == "");
  CHECK(tests::metrics(folder / "counted") == tests::metrics(folder / "two"));

  run("whole", {});
  tests::Launch killed{.arguments = options(folder / "data", folder / "killed")};
  killed.arguments.insert(killed.arguments.end(), {"--threads", "2", "--parallel", "dp"});
  killed.kill_when = [&] {
    return std::filesystem::exists(folder / "killed/metrics.jsonl") &&
           std::filesystem::file_size(folder / "killed/metrics.jsonl") > 0;
  };
  setenv("TAPESTRY_LOGICAL_DEVICES", "2", 1);
  tests::run(killed);
  unsetenv("TAPESTRY_LOGICAL_DEVICES");
  run("killed", {"--resume"});
  CHECK(result(folder / "killed") == result(folder / "whole"));

  tests::Launch stopped{.arguments = options(folder / "data", folder / "stopped"), .pending_signal = SIGTERM};
  stopped.arguments.insert(stopped.arguments.end(), {"--threads", "2", "--parallel", "dp"});
  setenv("TAPESTRY_LOGICAL_DEVICES", "2", 1);
  CHECK(tests::run(stopped).status == 128 + SIGTERM);  // after the first step of the first epoch
  unsetenv("TAPESTRY_LOGICAL_DEVICES");
  run("stopped", {"--resume", "auto"});
  CHECK(result(folder / "stopped") == result(folder / "whole"));
}

TEST_CASE("options that do not fit several processes are errors") {
  const tests::TempDir folder;
  const Ended apart = on_two_ranks("classifier", {"--data", "synthetic", "--run-dir", folder / "run"});
  CHECK(apart.status == 2);
  CHECK_THAT(apart.out + apart.err,
             ContainsSubstring("this is one of 2 processes") && ContainsSubstring("--parallel ddp"));
  const Ended odd = on_two_ranks("classifier", {"--data", "synthetic", "--run-dir", folder / "run",
                                                "--parallel", "ddp", "--batch-size", "31"});
  CHECK(odd.status == 1);
  CHECK_THAT(odd.out + odd.err,
             ContainsSubstring("--batch-size 31") && ContainsSubstring("not a multiple of the 2 ranks"));
  const std::vector<std::vector<std::string>> wrong = {
      {"pipeline", "pipeline"},  // the text depends on the part of the library that is linked
      {"--parallel replicate=100:devices asks for 100 devices, but there can be at most 64",
       "replicate=100:devices"},
      {"says how gradients are compressed; leave out --compress bf16", "replicate=-1:compress=f16",
       "--compress", "bf16"},
      {"leave out --compress none", "replicate=-1:compress=f16", "--compress", "none"}};
  for (const std::vector<std::string>& line : wrong) {
    std::vector<std::string> arguments = {"--data", "synthetic", "--run-dir", folder / "run", "--parallel"};
    arguments.insert(arguments.end(), line.begin() + 1, line.end());
    const Ended run = tests::classifier(arguments);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring(line[0]));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}
