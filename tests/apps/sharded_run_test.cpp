// Tests the classifier with --parallel zero1, zero2 and fsdp: the results are those of ddp, and runs resume
// after a rank was killed, after a signal, and with another number of ranks.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <numeric>

#include "tapestry/core/safetensors.h"
#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/apps/runs.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"

using tapestry::kSanitized;
using tests::Ended;
using tests::Launch;
using tests::Runs;

namespace {

using Arguments = std::vector<std::string>;

Ended on(int ranks, const Arguments& arguments) {
  return tests::run(tests::on_ranks(ranks, "classifier", arguments));
}

std::vector<std::uintmax_t> sizes_in(const std::string& folder) {
  std::vector<std::uintmax_t> sizes;
  for (const std::string& name : tests::names_in(folder))
    sizes.push_back(std::filesystem::file_size(folder + "/" + name));
  return sizes;
}

std::vector<double> losses_of(const std::string& run, const std::string& name = "train_loss") {
  const std::string text = tests::metrics(run), key = "\"" + name + "\":";
  std::vector<double> losses;
  for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1))
    losses.push_back(std::stod(text.substr(at + key.size())));
  return losses;
}

}  // namespace

TEST_CASE("zero1, zero2 and fsdp compute the losses and weights of ddp, and fsdp's become one file") {
  const Runs runs({"--model", "cnn", "--epochs", "2", "--batch-size", "32", "--seed", "3", "--workers", "0",
                   "--tensorboard"});
  std::string out;
  for (const std::string mode : {"ddp", "zero1", "zero2", "fsdp"}) {
    const Ended run = on(2, runs.start(mode, {"--parallel", mode}).arguments);
    out = run.out;
    INFO(mode << run.out << run.err);
    REQUIRE(run.status == 0);
    CHECK(tests::metrics(runs.dir(mode)) == tests::metrics(runs.dir("ddp")));
    CHECK(tests::last_weights(runs.dir(mode)) == tests::last_weights(runs.dir("ddp")));
    // Histograms of whole parameters have the size of ddp's.
    CHECK(sizes_in(runs.dir(mode) + "/tensorboard") == sizes_in(runs.dir("ddp") + "/tensorboard"));
    if (mode.starts_with("zero")) CHECK(runs.result(mode) == runs.result("ddp"));
  }
  const std::string folder = tests::last_checkpoint_path(runs.dir("fsdp"));
  CHECK(tests::names_in(folder) ==
        Arguments{"index.json", "shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"});
  const auto bytes = sizes_in(folder);
  CHECK(static_cast<double>(bytes[2]) > 0.9 * static_cast<double>(bytes[1]));

  CHECK_THAT(out, ContainsSubstring("tapestry-checkpoint merge " + folder + " model.safetensors"));
  const std::string merged = runs.dir("merged.safetensors");
  REQUIRE(tests::run({.arguments = {"merge", folder, merged}, .program = "tapestry-checkpoint"}).status == 0);
  const auto expected = tapestry::load_safetensors(tests::last_checkpoint_path(runs.dir("ddp")));
  const auto tensors = tapestry::load_safetensors(merged).tensors;
  for (const auto& [name, tensor] : expected.tensors)
    for (const auto& [other, value] : tensors)
      if (name == other && !name.starts_with("training/generator")) {
        CAPTURE(name);
        CHECK(value.equal(tensor));
      }
  CHECK(tensors.size() == expected.tensors.size());
}

TEST_CASE("the ranks of a sharded model may have different numbers of test images") {
  // Rank 0 has two batches of the 1001 test images, and rank 1 has one.
  const Runs runs({"--model", "mlp", "--epochs", "1", "--batch-size", "40", "--workers", "0"});
  tests::write_fashion_mnist(runs.dir("data"), 40, 1001);
  for (const std::string mode : {"ddp", "fsdp"})
    REQUIRE(on(2, runs.start(mode, {"--parallel", mode}).arguments).status == 0);
  CHECK(tests::metrics(runs.dir("fsdp")) == tests::metrics(runs.dir("ddp")));
}

TEST_CASE("--sync-batchnorm and --compress work with zero2, and fsdp refuses to compress") {
  const Runs runs({"--model", "cnn", "--epochs", "1", "--batch-size", "32", "--workers", "0"});
  const auto start = [&](const std::string& name, const Arguments& options) {
    return on(2, runs.start(name, options).arguments);
  };
  for (const std::string compress : {"none", "bf16"})
    for (const std::string mode : {"ddp", compress == "none" ? "fsdp" : "zero2"}) {
      const Ended run =
          start(mode + compress, {"--sync-batchnorm", "--compress", compress, "--parallel", mode});
      INFO(mode << compress << run.err);
      REQUIRE(run.status == 0);
      CHECK(tests::metrics(runs.dir(mode + compress)) == tests::metrics(runs.dir("ddp" + compress)));
      CHECK(tests::last_weights(runs.dir(mode + compress)) ==
            tests::last_weights(runs.dir("ddp" + compress)));
    }
  CHECK(tests::last_weights(runs.dir("ddpbf16")) != tests::last_weights(runs.dir("ddpnone")));
  const Ended refused = start("refused", {"--compress", "bf16", "--parallel", "fsdp"});
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, ContainsSubstring("--parallel fsdp cannot compress gradients as bf16") &&
                              ContainsSubstring("pass --compress none"));
  CHECK_FALSE(runs.started("refused"));
}

TEST_CASE("a run with --compress resumes in another mode, which may compress otherwise") {
  const Runs runs({"--model", "mlp", "--epochs", "1", "--batch-size", "32", "--workers", "0"});
  REQUIRE(on(2, runs.start("run", {"--parallel", "ddp", "--compress", "bf16"}).arguments).status == 0);
  const auto resumed = [&](int ranks, const Arguments& more) {
    return on(ranks, runs.resume("run", more).arguments);
  };
  for (const auto& [ranks, mode] : {std::pair(2, "fsdp"), {4, "replicate=2,shard=2"}}) {
    CAPTURE(mode);
    const Ended refused = resumed(ranks, {"--parallel", mode});
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err,
               ContainsSubstring(std::string("--parallel ") + mode + " cannot compress gradients as bf16") &&
                   ContainsSubstring("pass --compress none"));
  }
  REQUIRE(resumed(2, {"--parallel", "replicate=2:zero=2"}).status == 0);
  const std::string config = runs.dir("run") + "/config.json";
  CHECK_THAT(tests::read_file(config), ContainsSubstring("\"compress\": \"bf16\""));
  const Ended whole = resumed(4, {"--parallel", "replicate=2,shard=2", "--compress", "none"});
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  CHECK_THAT(tests::read_file(config), ContainsSubstring("\"compress\": \"none\""));
  CHECK(resumed(2, {"--parallel", "fsdp"}).status == 0);
}

TEST_CASE("--ema evaluates and saves the average, and --clip-norm clips, in every mode") {
  const Runs runs(
      {"--model", "cnn", "--epochs", "1", "--batch-size", "32", "--workers", "0", "--schedule", "constant"});
  const Arguments both = {"--ema", "0.8", "--clip-norm", "0.5"};
  const auto start = [&](const std::string& name, const std::string& mode, Arguments more) {
    more.insert(more.end(), {"--parallel", mode});
    const Ended run = mode == "none" || mode == "dp" ? tests::run(runs.start(name, more))
                                                     : on(2, runs.start(name, more).arguments);
    INFO(name << run.out << run.err);
    REQUIRE(run.status == 0);
  };
  const auto average = [&](const std::string& name) {
    const std::string folder = runs.dir(name) + "/average/";
    CHECK(tests::names_in(folder) == tests::names_in(runs.dir(name) + "/checkpoints"));
    return tests::weights_of(folder + tests::names_in(folder).back());
  };
  start("plain", "ddp", {});
  start("average", "ddp", {"--ema", "0.8"});
  start("clipped", "ddp", {"--clip-norm", "0.5"});
  CHECK(losses_of(runs.dir("average")) == losses_of(runs.dir("plain")));
  CHECK(tests::last_weights(runs.dir("average")) == tests::last_weights(runs.dir("plain")));
  CHECK(tests::metrics(runs.dir("average")) != tests::metrics(runs.dir("plain")));
  CHECK(losses_of(runs.dir("clipped")) != losses_of(runs.dir("plain")));
  CHECK(average("average") != tests::last_weights(runs.dir("average")));
  CHECK_FALSE(std::filesystem::exists(runs.dir("plain") + "/average"));
  // A sanitizer makes each run slow.
  for (const std::string& mode :
       kSanitized ? Arguments{"dp", "fsdp"} : Arguments{"none", "dp", "zero1", "zero2", "fsdp"}) {
    start(mode, mode, both);
    average(mode);
  }
  for (const std::string& mode : kSanitized ? Arguments{"fsdp"} : Arguments{"zero1", "zero2", "fsdp"}) {
    INFO(mode);
    const double loss = losses_of(runs.dir(mode)).at(0);
    CHECK(std::abs(loss - losses_of(runs.dir("clipped")).at(0)) < 1e-3 * loss);
    if (mode == "zero1") continue;  // it averages as zero2 does
    start(mode + "-average", mode, {"--ema", "0.8"});
    CHECK(tests::metrics(runs.dir(mode + "-average")) == tests::metrics(runs.dir("average")));
    CHECK(average(mode + "-average") == average("average"));
  }
  // A run that resumes from its first epoch has the average of an undisturbed run.
  for (const std::string& mode : kSanitized ? Arguments{"fsdp"} : Arguments{"zero1", "fsdp"}) {
    Arguments twice = both;
    twice.insert(twice.end(), {"--epochs", "2"});
    start(mode + "-whole", mode, twice);
    start(mode, mode, {"--epochs", "2", "--resume"});
    CHECK(tests::metrics(runs.dir(mode)) == tests::metrics(runs.dir(mode + "-whole")));
    CHECK(average(mode) == average(mode + "-whole"));
  }
}

TEST_CASE(
    "a sharded job whose ranks are killed goes on by itself and ends with the bits of an undisturbed job") {
  // On resuming, zero2 must divide the optimizer's state again. The test of signals has both modes.
  const std::string mode = kSanitized ? "fsdp" : "zero2";
  const Runs runs(
      {"--model", "cnn", "--epochs", "8", "--batch-size", "32", "--parallel", mode, "--workers", "0"});
  REQUIRE(on(2, runs.start("whole").arguments).status == 0);
  Launch launch = tests::on_ranks(
      2, "classifier", runs.start("killed", {"--resume", "auto", "--checkpoint-every", "2steps"}).arguments);
  launch.arguments.insert(launch.arguments.begin(), {"--max-restarts", "2"});
  launch.limit = std::chrono::seconds(120);
  const Arguments marks = {"step-00000002", "step-00000010"};  // rank 1 is killed first, and later rank 0
  std::size_t kills = 0;
  launch.on_poll = [&](pid_t launcher) {
    const std::string checkpoints = runs.dir("killed") + "/checkpoints";
    if (kills == 2 || !std::filesystem::exists(checkpoints)) return;
    const Arguments names = tests::names_in(checkpoints);
    if (names.empty() || names.back() < marks[kills]) return;
    const pid_t rank = tests::pid_of_rank(launcher, kills == 0 ? 1 : 0);
    if (rank > 0 && kill(rank, SIGKILL) == 0) ++kills;
  };
  const Ended run = tests::run(launch);
  INFO(run.out << run.err);
  CHECK(kills == 2);
  REQUIRE(run.status == 0);
  CHECK_THAT(run.out, ContainsSubstring("resumed after step"));
  CHECK(runs.result("killed") == runs.result("whole"));
}

TEST_CASE("a signal saves a checkpoint of a sharded job, which resumes on any mesh") {
  for (const std::string& mode : kSanitized ? Arguments{"fsdp"} : Arguments{"fsdp", "zero2"}) {
    const Runs runs({"--model", "mlp", "--epochs", "8", "--batch-size", "40", "--parallel", mode, "--workers",
                     "0", "--schedule", "cosine", "--checkpoint-every", "1step"});
    REQUIRE(on(2, runs.start("whole").arguments).status == 0);
    Launch stopped = tests::on_ranks(2, "classifier", runs.start("stopped").arguments);
    bool sent = false;
    stopped.on_poll = [&](pid_t launcher) {
      const std::string checkpoints = runs.dir("stopped") + "/checkpoints";
      if (sent || !std::filesystem::exists(checkpoints) || tests::names_in(checkpoints).empty()) return;
      sent = kill(launcher, SIGTERM) == 0;
    };
    const Ended first = tests::run(stopped);
    INFO(mode << first.out << first.err);
    REQUIRE(first.status == 128 + SIGTERM);
    CHECK_THAT(first.out,
               ContainsSubstring("stopped by SIGTERM and saved " + runs.dir("stopped") + "/checkpoints/"));
    for (const int ranks : {1, 4, 2}) {
      if (ranks == 4 && mode == "zero2") continue;
      const std::string name = std::to_string(ranks);
      std::filesystem::copy(runs.dir("stopped"), runs.dir(name), std::filesystem::copy_options::recursive);
      Arguments resume{"--resume", "auto", "--run-dir", runs.dir(name)};
      if (ranks == 4) resume.insert(resume.end(), {"--parallel", "replicate=2,shard=2"});
      const Ended rest = on(ranks, resume);
      INFO(ranks << rest.out << rest.err);
      REQUIRE(rest.status == 0);
      CHECK_THAT(rest.out, ContainsSubstring("resumed after step"));
      if (ranks == 2) CHECK(runs.result(name) == runs.result("whole"));
      for (const std::string warning :
           {"has no random generators for data=0/", "was saved with ranks=2 (now "})
        CHECK((rest.err.find(warning) != std::string::npos) == (ranks != 2));
      // The same images in each step, divided in another way. All batches are complete.
      const auto expected = losses_of(runs.dir("whole")), losses = losses_of(runs.dir(name));
      REQUIRE(losses.size() == 8);
      for (std::size_t i = 0; i < 8; ++i) CHECK(losses[i] == Approx(expected[i]).epsilon(1e-3));
      CHECK(tests::last_weights(runs.dir(name)).size() == tests::last_weights(runs.dir("whole")).size());
    }
  }
}

TEST_CASE("a sharded run of ranks resumes in one process, and the other way round") {
  const Runs runs({"--model", "mlp", "--epochs", "2", "--batch-size", "40", "--workers", "0", "--schedule",
                   "cosine", "--ema", "0.8", "--tensorboard"});
  const auto check_resumed = [&](const std::string& mode, bool ranks_first) {
    const std::string name = mode + (ranks_first ? " ranks" : " process");
    const auto run = [&](const Launch& launch, bool ranks) {
      const Ended ended = ranks ? on(2, launch.arguments) : tests::run(launch);
      INFO(name << ended.out << ended.err);
      REQUIRE(ended.status == 0);
      return ended.out;
    };
    const auto losses = [&] {
      std::vector<double> all = losses_of(runs.dir(name));
      all.push_back(losses_of(runs.dir(name), "test_loss").at(1));  // of the average
      return all;
    };
    const std::string whole = run(runs.start(name, {"--parallel", mode}), ranks_first);
    CHECK_THAT(whole, ContainsSubstring("merge " + tests::last_checkpoint_path(runs.dir(name))));
    const std::string before = tests::metrics(runs.dir(name));
    const std::vector<double> expected = losses();
    std::filesystem::remove_all(tests::last_checkpoint_path(runs.dir(name)));
    CHECK_THAT(run(runs.resume(name), !ranks_first), ContainsSubstring("resumed after step 2 of 4"));
    CHECK(tests::metrics(runs.dir(name)).starts_with(before.substr(0, before.find('\n'))));
    // The second epoch adds in another order.
    for (std::size_t i = 0; i < 3; ++i) CHECK(losses().at(i) == Approx(expected.at(i)).epsilon(1e-4));
  };
  check_resumed("fsdp", true);  // in one process it equals shard=2, which follows

  const Ended devices = tests::run(runs.start("devices", {"--parallel", "shard=2:devices"}));
  INFO(devices.out << devices.err);
  if (devices.err.find("has no axis shard over devices") != std::string::npos) return;  // TAPESTRY_LINK_BASE
  REQUIRE(devices.status == 0);
  check_resumed("shard=2", true);
  check_resumed("shard=2", false);
  // Histograms of whole parameters. Rounding may move a value to the next bucket.
  const auto bytes = [&](const std::string& name) {
    const auto sizes = sizes_in(runs.dir(name) + "/tensorboard");
    return static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), std::uintmax_t{0}));
  };
  CHECK(bytes("shard=2 process") == Approx(bytes("shard=2 ranks")).epsilon(0.01));
}
