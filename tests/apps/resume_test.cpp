// A stopped and resumed run gives the same results, bit for bit, as a run that was never stopped.
#include <algorithm>
#include <csignal>
#include <filesystem>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/apps/runs.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::classifier;
using tests::Ended;
using tests::Launch;
using tests::Runs;

namespace {

std::size_t lines_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return 0;
  const std::string text = tests::read_file(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("a run that is stopped by Ctrl-C after every step of an epoch gives the same results") {
  // The run has dropout, batch norm, an optimizer and a schedule with state, and an incomplete last batch.
  const Runs runs({"--model", "cnn", "--epochs", "2", "--batch-size", "32", "--seed", "3"});
  REQUIRE(classifier(runs.start("whole")).status == 0);

  // The fourth attempt begins with the evaluation after the first epoch of 3 steps, and is stopped in it.
  for (const int step : {1, 2, 3, 3}) {
    Launch next = step == 1 ? runs.start("stopped") : runs.resume("stopped");
    next.pending_signal = SIGINT;
    const Ended run = classifier(next);
    CHECK(run.err == "");
    REQUIRE(run.status == 130);
    CHECK_THAT(run.out,
               ContainsSubstring("continue with: classifier --resume --run-dir " + runs.dir("stopped")));
    char checkpoint[40];
    std::snprintf(checkpoint, sizeof checkpoint, "step-%08d.safetensors", step);
    CHECK(tests::names_in(runs.dir("stopped") + "/checkpoints").back() == checkpoint);
  }
  REQUIRE(classifier(runs.resume("stopped")).status == 0);
  CHECK(runs.result("stopped") == runs.result("whole"));

  const Ended again = classifier(runs.resume("stopped"));  // resumes a finished run
  CHECK(again.status == 0);
  CHECK_THAT(again.out, ContainsSubstring("resumed after step 6 of 6") && ContainsSubstring("test accuracy"));
  CHECK(runs.result("stopped") == runs.result("whole"));
}

TEST_CASE("a run that is killed at any moment gives the same results") {
  const Runs runs({"--model", "mlp", "--epochs", "4", "--batch-size", "16", "--schedule", "cosine"});
  REQUIRE(classifier(runs.start("whole")).status == 0);
  const std::string whole = runs.result("whole");

  int kills = 0;
  const auto kill_then_end = [&](const std::string& name, const std::function<bool()>& when) {
    Launch first = runs.start(name);
    first.kill_when = when;
    const Ended run = classifier(first);
    if (run.signal == SIGKILL) ++kills;
    else REQUIRE(run.status == 0);
    const Ended rest = classifier(runs.started(name) ? runs.resume(name) : runs.start(name));
    INFO(rest.err);
    CHECK(rest.status == 0);
    CHECK(runs.result(name) == whole);
    for (const std::string& file : tests::names_in(runs.dir(name) + "/checkpoints")) {
      CAPTURE(file);
      CHECK(file.ends_with(".safetensors"));  // incomplete files were removed
    }
  };

  SECTION("after the metrics of an epoch were written") {
    for (const std::size_t epochs : {1, 2, 3}) {
      const std::string name = "metrics-" + std::to_string(epochs), file = runs.dir(name) + "/metrics.jsonl";
      kill_then_end(name, [&] { return lines_of(file) >= epochs; });
    }
    CHECK(kills > 0);
  }
  SECTION("while a checkpoint is written") {
    const std::string folder = runs.dir("half") + "/checkpoints";
    kill_then_end("half", [&] {
      if (!std::filesystem::exists(folder)) return false;
      for (const std::string& file : tests::names_in(folder))
        if (file.find(".tmp-") != std::string::npos) return true;
      return false;
    });
  }
  SECTION("at its start") {
    for (const int milliseconds : {0, 20, 40, 60, 80}) {
      const auto begin = std::chrono::steady_clock::now();
      kill_then_end("start-" + std::to_string(milliseconds), [&] {
        return std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(milliseconds);
      });
    }
    CHECK(kills > 0);
  }
}

TEST_CASE("a resumed run accepts only some changed options") {
  const Runs runs(
      {"--model", "mlp", "--batch-size", "32", "--epochs", "2", "--schedule", "constant", "--lr", "0.01"});
  REQUIRE(classifier(runs.start("a", {"--epochs", "1"})).status == 0);
  const std::string first = tests::last_checkpoint(runs.dir("a"));

  SECTION("options that change the result are rejected with both values") {
    const std::vector<std::vector<std::string>> refused = {
        {"--model", "cnn", "mlp"},
        {"--data", "synthetic", "fashion-mnist"},
        {"--batch-size", "64", "32"},
        {"--synthetic-size", "5", "1024"},
        {"--optimizer", "sgd", "adamw"},
        {"--lr", "0.02", "0.01"},
        {"--weight-decay", "0", "0.01"},
        {"--schedule", "step", "constant"},
        {"--seed", "2", "1"},
    };
    for (const std::vector<std::string>& option : refused) {
      CAPTURE(option);
      const Ended run = classifier(runs.resume("a", {option[0], option[1]}));
      CHECK(run.status == 2);
      CHECK(run.out == "");
      CHECK_THAT(run.err, ContainsSubstring(option[0]) && ContainsSubstring(option[1]) &&
                              ContainsSubstring(option[2]) && ContainsSubstring(runs.dir("a")));
      CHECK(classifier(runs.resume("a", {option[0], option[2]})).status == 0);  // the saved value
    }
    CHECK(tests::last_checkpoint(runs.dir("a")) == first);
  }
  SECTION("options that do not change the result are applied and saved") {
    std::filesystem::rename(runs.dir("data"), runs.dir("elsewhere"));
    const Ended lost = classifier(runs.resume("a", {"--epochs", "2"}));
    CHECK(lost.status == 1);
    CHECK_THAT(lost.err, ContainsSubstring(runs.dir("data")));

    const Ended run =
        classifier(runs.resume("a", {"--epochs", "2", "--data-dir", runs.dir("elsewhere"), "--threads", "2",
                                     "--workers", "0", "--device", "cpu:0", "--allow-nan"}));
    INFO(run.err);
    REQUIRE(run.status == 0);
    CHECK_THAT(run.out, ContainsSubstring("threads 2") && ContainsSubstring("resumed after step 3 of 6") &&
                            ContainsSubstring("epoch 2/2"));
    const std::string config = tests::read_file(runs.dir("a") + "/config.json");
    for (const char* entry : {"\"epochs\": 2", "/elsewhere\"", "\"threads\": 2", "\"workers\": 0",
                              "\"device\": \"cpu:0\"", "\"allow_nan\": true"})
      CHECK_THAT(config, ContainsSubstring(entry));
    CHECK(lines_of(runs.dir("a") + "/metrics.jsonl") == 2);
  }
  SECTION("with a constant schedule, a run with added epochs equals a run that had them from the start") {
    REQUIRE(classifier(runs.start("b")).status == 0);
    REQUIRE(classifier(runs.resume("a", {"--epochs", "2"})).status == 0);
    CHECK(runs.result("a") == runs.result("b"));
  }
  SECTION("with other schedules the number of epochs cannot change") {
    for (const char* schedule : {"one-cycle", "cosine", "step"}) {
      REQUIRE(classifier(runs.start(schedule, {"--schedule", schedule})).status == 0);
      const Ended run = classifier(runs.resume(schedule, {"--epochs", "3"}));
      CHECK(run.status == 2);
      CHECK_THAT(run.err, ContainsSubstring("--epochs 2") && ContainsSubstring("with 3") &&
                              ContainsSubstring(std::string(schedule) + " schedule"));
    }
  }
}
