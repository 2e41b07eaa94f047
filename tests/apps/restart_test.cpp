// Tests that one command line with --resume auto starts a run, and continues it after a failure. A user or
// the launcher (--max-restarts) runs the command again.
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

Launch with_restarts(const std::vector<std::string>& arguments) {
  Launch launch = tests::two_ranks("classifier", arguments);
  launch.arguments.insert(launch.arguments.begin(), {"--max-restarts", "2"});
  return launch;
}

}  // namespace

TEST_CASE("a job whose ranks are killed goes on by itself and ends with the bits of an undisturbed job") {
  const Runs runs({"--model", "cnn", "--epochs", "10", "--batch-size", "32", "--seed", "3", "--parallel",
                   "ddp", "--workers", "0"});
  REQUIRE(tests::run(tests::two_ranks("classifier", runs.start("whole").arguments)).status == 0);

  Launch launch =
      with_restarts(runs.start("killed", {"--resume", "auto", "--checkpoint-every", "2steps"}).arguments);
  launch.limit = std::chrono::seconds(120);
  // Rank 1 is killed after the first checkpoint, which is within the first epoch, and later rank 0.
  const std::vector<std::string> marks = {"step-00000002", "step-00000006"};
  std::size_t kills = 0;
  launch.on_poll = [&](pid_t launcher) {
    const std::string checkpoints = runs.dir("killed") + "/checkpoints";
    if (kills == 2 || !std::filesystem::exists(checkpoints)) return;
    const std::vector<std::string> names = tests::names_in(checkpoints);
    if (names.empty() || names.back() < marks[kills]) return;
    const pid_t rank = tests::pid_of_rank(launcher, kills == 0 ? 1 : 0);
    if (rank > 0 && kill(rank, SIGKILL) == 0) ++kills;
  };
  const Ended run = tests::run(launch);
  INFO(run.out << run.err);
  CHECK(kills == 2);
  REQUIRE(run.status == 0);
  CHECK_THAT(run.err, ContainsSubstring("restart 1 of 2") && ContainsSubstring("restart 2 of 2"));
  CHECK_THAT(run.out, ContainsSubstring("resumed after step"));
  CHECK(runs.result("killed") == runs.result("whole"));
}

TEST_CASE("--resume auto starts a run in a fresh folder and continues an existing one") {
  const Runs runs({"--model", "mlp", "--epochs", "2", "--batch-size", "32", "--resume", "auto"});
  Launch first = runs.start("run");
  first.pending_signal = SIGTERM;
  const Ended started = classifier(first);
  CHECK(started.status == 128 + SIGTERM);
  CHECK(started.out.find("resumed") == std::string::npos);
  const Ended second = classifier(runs.start("run"));
  CHECK(second.status == 0);
  CHECK_THAT(second.out, ContainsSubstring("resumed after step 1 of 6"));
  const Ended third = classifier(runs.start("run"));  // of a finished run
  CHECK(third.status == 0);
  CHECK_THAT(third.out, ContainsSubstring("resumed after step 6 of 6"));
  REQUIRE(classifier(runs.start("whole")).status == 0);
  CHECK(runs.result("run") == runs.result("whole"));
}

TEST_CASE("--resume auto needs a folder, and refuses checkpoints without config.json") {
  const Ended nowhere = classifier({"--resume", "auto"});
  CHECK(nowhere.status == 2);
  CHECK_THAT(nowhere.err, ContainsSubstring("--resume needs --run-dir"));
  const Ended other = classifier({"--resume", "maybe", "--run-dir", "x"});
  CHECK(other.status == 2);
  CHECK_THAT(other.err, ContainsSubstring("--resume: maybe is not in {auto}"));

  const Runs runs({"--model", "mlp", "--epochs", "1", "--batch-size", "32", "--resume", "auto"});
  REQUIRE(classifier(runs.start("run")).status == 0);
  std::filesystem::remove(runs.dir("run") + "/config.json");
  const Ended lost = classifier(runs.start("run"));
  CHECK(lost.status == 1);
  CHECK_THAT(lost.err, ContainsSubstring(runs.dir("run") + " has checkpoints but no config.json"));
}

TEST_CASE("a job that the launcher restarts must be able to resume its run") {
  const tests::TempDir folder;
  const std::vector<std::string> demo = {"--model", "demo", "--parallel", "ddp"};
  const auto refused = [&](std::vector<std::string> arguments, const std::string& text) {
    arguments.insert(arguments.begin(), demo.begin(), demo.end());
    const Ended run = tests::run(with_restarts(arguments));
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring(text) && ContainsSubstring("--resume auto"));
  };
  refused({}, "a restart would begin again in a new folder; add --run-dir DIR");
  refused({"--run-dir", folder / "run"}, "a restart would refuse the run in " + folder / "run");
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("ranks with different options are refused") {
  const tests::TempDir folder;
  const std::string script = "exec " TAPESTRY_PROGRAMS "/classifier --model demo --parallel ddp --run-dir " +
                             folder / "run" + " --seed $RANK";
  const Ended run =
      tests::run({.arguments = {"--nproc-per-node", "2", "sh", "-c", script}, .program = "tapestry-run"});
  CHECK(run.status != 0);
  CHECK_THAT(run.err, ContainsSubstring(
                          "this rank has --seed 1 and rank 0 has 0; start all ranks with the same options"));
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}
