// Tests signals that stop a run: a checkpoint is saved, and the run that continues from it gives the same
// results, bit for bit, as a run that was never stopped. Also tests checkpoints within an epoch.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/apps/runs.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace std::chrono_literals;
using tests::classifier;
using tests::Ended;
using tests::Launch;
using tests::Runs;

namespace {

using Clock = std::chrono::steady_clock;

/// Sends signals to a child: the first one when `when` is true, the others after these delays since the
/// first.
class Sender {
 public:
  Sender(std::function<bool()> when, int first,
         std::vector<std::pair<std::chrono::milliseconds, int>> later = {})
      : when_(std::move(when)), first_(first), later_(std::move(later)) {}
  void operator()(pid_t child) {
    if (!start_) {
      if (!when_()) return;
      kill(child, first_);
      start_ = Clock::now();
    }
    while (next_ < later_.size() && Clock::now() - *start_ >= later_[next_].first)
      kill(child, later_[next_++].second);
  }

 private:
  std::function<bool()> when_;
  int first_;
  std::vector<std::pair<std::chrono::milliseconds, int>> later_;
  std::optional<Clock::time_point> start_;
  std::size_t next_ = 0;
};

/// A run whose first step takes some tenths of a second or more, for a batch of 16 or more.
Launch slow_step(const std::string& run_dir, const std::string& batch) {
  return {.arguments = {"--model", "resnet18", "--data", "synthetic", "--synthetic-size", batch,
                        "--batch-size", batch, "--threads", "1", "--epochs", "2", "--run-dir", run_dir}};
}

/// True if the main thread of a process blocks this signal.
bool blocks(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1;
  return false;
}

/// The options of a small run, and its result if nothing disturbs it.
const std::vector<std::string> kSmall = {"--model",      "cnn", "--epochs", "2",
                                         "--batch-size", "32",  "--seed",   "3"};
const std::string& undisturbed() {
  static const std::string result = [] {
    const Runs runs(kSmall);
    REQUIRE(classifier(runs.start("whole")).status == 0);
    return runs.result("whole");
  }();
  return result;
}

bool is_step(const std::string& name) { return name.ends_with(".safetensors"); }

bool has_checkpoint(const std::string& run_dir) {
  if (!std::filesystem::exists(run_dir + "/checkpoints")) return false;
  for (const std::string& name : tests::names_in(run_dir + "/checkpoints"))
    if (is_step(name)) return true;
  return false;
}

}  // namespace

TEST_CASE("SIGINT, SIGTERM and SIGHUP in the first epoch save a checkpoint and say where") {
  const Runs runs(kSmall);
  const std::vector<std::pair<int, std::string>> signals = {
      {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}};
  std::string first_checkpoint;
  for (const auto& [signal, name] : signals) {
    CAPTURE(name);
    Launch first = runs.start(name);
    first.pending_signal = signal;
    const Ended run = classifier(first);
    CHECK(run.status == 128 + signal);
    if (signal == SIGINT) first_checkpoint = tests::last_checkpoint(runs.dir(name));
    CHECK_THAT(run.out, ContainsSubstring("stopped by " + name + " and saved " + runs.dir(name) +
                                          "/checkpoints/step-00000001.safetensors; continue with: "
                                          "classifier --resume --run-dir " +
                                          runs.dir(name)));
    if (signal != SIGINT) continue;  // the others leave the same checkpoint
    REQUIRE(classifier(runs.resume(name)).status == 0);
    CHECK(runs.result(name) == undisturbed());
  }
  for (const char* const other : {"SIGTERM", "SIGHUP"})
    CHECK(tests::last_checkpoint(runs.dir(other)) == first_checkpoint);
}

TEST_CASE("a second signal ends the run at once") {
  const tests::TempDir folder;
  const std::string run_dir = folder / "run";
  Launch launch = slow_step(run_dir, "96");
  launch.on_poll =
      Sender([&] { return std::filesystem::exists(run_dir + "/config.json"); }, SIGTERM, {{400ms, SIGINT}});
  const Ended run = classifier(launch);
  CHECK(run.signal == SIGINT);
  CHECK_FALSE(has_checkpoint(run_dir));
}

TEST_CASE("while a run waits for another rank, a second signal ends it at once") {
  // The other rank never connects, or stops in the middle of the training. So the first signal can neither
  // end the run nor save a checkpoint before TAPESTRY_TIMEOUT_S, which is 300 s.
  const Runs runs(
      {"--model", "mlp", "--epochs", "100000", "--batch-size", "32", "--parallel", "ddp", "--workers", "0"});
  for (const std::string& where : {std::string("rendezvous"), std::string("collective")}) {
    CAPTURE(where);
    const bool connects = where == "collective";
    Launch launch = tests::two_ranks("classifier", runs.start(where).arguments);
    if (!connects)
      launch.arguments.insert(launch.arguments.begin() + 2,
                              {"sh", "-c", "[ $RANK = 0 ] || exec sleep 300; exec \"$0\" \"$@\""});
    std::optional<Clock::time_point> waits;
    pid_t rank_0 = -1;
    int sent = 0;
    bool survived_the_first = false;
    launch.on_poll = [&](pid_t launcher) {
      if (!waits) {
        rank_0 = tests::pid_of_rank(launcher, 0);
        if (rank_0 < 0 || !blocks(rank_0, SIGTERM) || (connects && !runs.started(where))) return;
        if (connects) kill(tests::pid_of_rank(launcher, 1), SIGSTOP);
        waits = Clock::now();
      }
      if (sent < 2 && Clock::now() - *waits >= (sent + 1) * 1s) {
        survived_the_first = sent == 1 && blocks(rank_0, SIGTERM);
        kill(rank_0, SIGTERM);
        ++sent;
      }
    };
    const Ended run = tests::run(launch);
    INFO(run.out << run.err);
    CHECK(survived_the_first);
    CHECK(run.status == 128 + SIGTERM);
    CHECK_THAT(run.err, ContainsSubstring("rank 0 (pid ") && ContainsSubstring("killed by SIGTERM"));
  }
}

TEST_CASE("a signal that is repeated within a quarter of a second counts once") {
  const tests::TempDir folder;
  const std::string run_dir = folder / "run";
  Launch launch = slow_step(run_dir, "16");
  launch.on_poll = Sender([&] { return std::filesystem::exists(run_dir + "/config.json"); }, SIGHUP,
                          {{20ms, SIGHUP}, {40ms, SIGTERM}});
  const Ended run = classifier(launch);
  CHECK(run.status == 128 + SIGHUP);
  CHECK(has_checkpoint(run_dir));
}

TEST_CASE("SIGHUP and SIGINT stay ignored if they were ignored at the start") {
  // nohup ignores SIGHUP, and shells start background jobs with SIGINT ignored.
  const Runs runs({"--model", "mlp", "--epochs", "20", "--batch-size", "16"});
  for (const auto& [signal, name] : {std::pair(SIGHUP, "SIGHUP"), std::pair(SIGINT, "SIGINT")}) {
    CAPTURE(name);
    Launch launch = runs.start(name);
    launch.ignored_signal = signal;
    bool sent = false;
    launch.on_poll = [&, signal = signal, name = name](pid_t child) {
      if (!runs.started(name)) return;
      kill(child, signal);
      sent = true;
    };
    const Ended run = classifier(launch);
    CHECK(sent);
    CHECK(run.status == 0);
    CHECK_THAT(run.out, ContainsSubstring("epoch 20/20"));
  }
}

TEST_CASE("a signal during the evaluation saves a checkpoint, from which the evaluation is repeated") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data", 32, 6'000);
  const auto arguments = [&](const std::string& name) {
    return std::vector<std::string>{"--model",      "cnn",         "--data-dir",         folder / "data",
                                    "--run-dir",    folder / name, "--threads",          "1",
                                    "--epochs",     "1",           "--workers",          "0",
                                    "--batch-size", "32",          "--checkpoint-every", "1step"};
  };
  REQUIRE(classifier(arguments("whole")).status == 0);
  Launch launch{.arguments = arguments("stopped")};
  // The checkpoint of the only step is written just before the evaluation, which takes much longer.
  launch.on_poll = Sender([&] { return has_checkpoint(folder / "stopped"); }, SIGTERM);
  const Ended run = classifier(launch);
  CHECK(run.status == 128 + SIGTERM);
  CHECK(tests::metrics(folder / "stopped") == "");
  const Ended rest = classifier({"--resume", "--run-dir", folder / "stopped"});
  CHECK(rest.status == 0);
  CHECK_THAT(rest.out, ContainsSubstring("resumed after step 1 of 1"));
  CHECK(tests::metrics(folder / "stopped") == tests::metrics(folder / "whole"));
  CHECK(tests::last_checkpoint(folder / "stopped") == tests::last_checkpoint(folder / "whole"));
}

TEST_CASE("--checkpoint-every saves within an epoch and does not change the results") {
  const Runs runs(kSmall);
  const auto steps_of = [&](const std::string& name) {
    std::string steps;
    for (const std::string& file : tests::names_in(runs.dir(name) + "/checkpoints"))
      if (is_step(file)) steps += file[std::string("step-0000000").size()];
    return steps;
  };
  REQUIRE(classifier(runs.start("steps", {"--checkpoint-every", "2steps"})).status == 0);
  CHECK(steps_of("steps") == "346");  // 2 was removed: the last three are kept
  REQUIRE(classifier(runs.start("minutes", {"--checkpoint-every", "0.0000001 minutes"})).status == 0);
  CHECK(steps_of("minutes").ends_with("456"));
  for (const char* name : {"steps", "minutes"}) CHECK(runs.result(name) == undisturbed());
}

TEST_CASE("with several ranks, a signal to the launcher or to one rank saves a checkpoint of all ranks") {
  const Runs runs({"--model", "cnn", "--epochs", "20", "--batch-size", "32", "--seed", "3", "--parallel",
                   "ddp", "--workers", "0", "--checkpoint-every", "0.0001minutes"});
  const auto job = [&](const std::string& name) {
    return tests::two_ranks("classifier", runs.start(name).arguments);
  };
  REQUIRE(tests::run(job("whole")).status == 0);
  const auto stopped_by = [&](const std::string& name, const std::function<void(pid_t)>& send) {
    CAPTURE(name);
    Launch launch = job(name);
    bool sent = false;
    launch.on_poll = [&](pid_t launcher) {
      if (sent || !runs.started(name)) return;
      send(launcher);
      sent = true;
    };
    const Ended run = tests::run(launch);
    INFO(run.out << run.err);
    CHECK(run.status == 128 + SIGTERM);
    CHECK_THAT(run.out,
               ContainsSubstring("stopped by SIGTERM and saved " + runs.dir(name) + "/checkpoints/"));
    REQUIRE(tests::on_two_ranks("classifier", runs.resume(name).arguments).status == 0);
    CHECK(runs.result(name) == runs.result("whole"));
  };
  stopped_by("launcher", [](pid_t launcher) { kill(launcher, SIGTERM); });
  stopped_by("rank", [](pid_t launcher) { kill(tests::pid_of_rank(launcher, 1), SIGTERM); });
}
