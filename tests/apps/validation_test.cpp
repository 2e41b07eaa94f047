// A resumed run refuses a config.json or a checkpoint that was changed or damaged, and names the value.
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/safetensors.h"
#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"

using tapestry::DType;
using tapestry::kSanitized;
using tapestry::Tensor;
using tests::classifier;
using tests::Ended;
using tests::Launch;

namespace {

/// A run of 4 steps that was stopped after the first.
class StoppedRun {
 public:
  StoppedRun() {
    Launch launch{.arguments = {"--model", "mlp", "--data", "synthetic", "--synthetic-size", "64",
                                "--batch-size", "32", "--threads", "1", "--epochs", "2", "--lr", "0.01",
                                "--run-dir", dir()}};
    launch.pending_signal = SIGINT;
    REQUIRE(classifier(launch).status == 130);
    config_ = tests::read_file(config());
    checkpoint_ = tests::read_file(checkpoint());
  }
  std::string dir() const { return folder_ / "run"; }
  std::string config() const { return dir() + "/config.json"; }
  std::string checkpoint() const { return tests::last_checkpoint_path(dir()); }

  void restore() const {
    tests::write_file(config(), config_);
    tests::write_file(checkpoint(), checkpoint_);
  }
  /// Replaces a part of config.json.
  void change(const std::string& before, const std::string& after) const {
    std::string text = config_;
    const std::size_t at = text.find(before);
    REQUIRE(at != std::string::npos);
    tests::write_file(config(), text.replace(at, before.size(), after));
  }
  Ended resume(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--resume", "--run-dir", dir()});
    return classifier(more);
  }
  /// Resumes, and expects an error that contains `text`. The files must stay as they are.
  void refuses(const std::string& text) const {
    const std::string before = tests::read_file(config()) + tests::read_file(checkpoint());
    const Ended run = resume();
    CHECK(run.status == 1);
    CHECK(run.out.find("resumed") == std::string::npos);
    CHECK_THAT(run.err, ContainsSubstring(text));
    CHECK(run.err.starts_with("error: ["));
    CHECK(tests::read_file(config()) + tests::read_file(checkpoint()) == before);
  }

 private:
  tests::TempDir folder_;
  std::string config_, checkpoint_;
};

}  // namespace

TEST_CASE("a config.json with an invalid value is refused by name, or repaired by an explicit option") {
  const StoppedRun run;
  struct Case {
    std::string before, after, option, value;  // the option and value that repair it
  };
  const std::vector<Case> cases = {
      {"\"schedule\": \"one-cycle\"", "\"schedule\": \"one_cycle\"", "--schedule", "one-cycle"},
      {"\"schedule\": \"one-cycle\"", "\"schedule\": 3", "--schedule", "one-cycle"},
      {"\"optimizer\": \"adamw\"", "\"optimizer\": \"lion\"", "--optimizer", "adamw"},
      {"\"optimizer\": \"adamw\"", "\"optimizer\": \"\"", "--optimizer", "adamw"},
      {"\"data\": \"synthetic\"", "\"data\": \"mnist\"", "--data", "synthetic"},
      {"\"seed\": 1", "\"seed\": -1", "--seed", "1"},
      {"\"seed\": 1", "\"seed\": 1.5", "--seed", "1"},
      {"\"threads\": 1", "\"threads\": -7", "--threads", "1"},
      {"\"threads\": 1", "\"threads\": true", "--threads", "1"},
      {"\"epochs\": 2", "\"epochs\": -9000000000000000000", "--epochs", "2"},
      {"\"lr\": 0.01", "\"lr\": 0", "--lr", "0.01"},
      {"\"lr\": 0.01", "\"lr\": null", "--lr", "0.01"},
      {"\"workers\": 1", "\"workers\": 1000", "--workers", "1"},
      {"\"device\": \"cpu\"", "\"device\": \"gpu\"", "--device", "cpu"},
      {"\"checkpoint_every\": \"none\"", "\"checkpoint_every\": \"10\"", "--checkpoint-every", "none"},
      {"\"seed\": 1,", "", "--seed", "1"},
  };
  std::set<std::string> repaired_options;
  for (const Case& c : cases) {
    CAPTURE(c.after);
    const std::string name = c.before.substr(0, c.before.find(':'));
    run.restore();
    run.change(c.before, c.after);
    run.refuses("config.json is not the config of a run: " + name);
    // The repair does not depend on the invalid value, and a sanitizer makes each run slow.
    if (kSanitized && !repaired_options.insert(name).second) continue;
    // Stopped again after a step, so that every case resumes an unfinished run.
    Launch repaired{.arguments = {"--resume", "--run-dir", run.dir(), c.option, c.value}};
    repaired.pending_signal = SIGINT;
    const Ended ended = classifier(repaired);
    INFO(ended.err);
    CHECK(ended.status == 130);
    CHECK_THAT(tests::read_file(run.config()), ContainsSubstring(c.before));  // the option was recorded
    std::filesystem::remove(run.checkpoint());                                // of the second step
  }
  run.restore();
  run.change("\"seed\": 1", "\"seed\": 1, \"sed\": 2");
  run.refuses("the classifier has no option \"sed\"");
}

TEST_CASE("a config.json with a changed value is refused by name") {
  const StoppedRun run;
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"schedule\": \"one-cycle\"", "\"schedule\": \"cosine\""},
      {"\"optimizer\": \"adamw\"", "\"optimizer\": \"sgd\""},
      {"\"model\": \"mlp\"", "\"model\": \"cnn\""},
      {"\"data\": \"synthetic\"", "\"data\": \"cifar10\""},
      {"\"synthetic_size\": 64", "\"synthetic_size\": 63"},
      {"\"batch_size\": 32", "\"batch_size\": 16"},
      {"\"seed\": 1", "\"seed\": 2"},
      {"\"threads\": 1", "\"threads\": 2"},
      {"\"epochs\": 2", "\"epochs\": 3"},
      {"\"lr\": 0.01", "\"lr\": 1"},
      {"\"weight_decay\": 0.01", "\"weight_decay\": 0"},
      {"\"parallel\": \"none\"", "\"parallel\": \"dp\""},
      {"\"sync_batchnorm\": false", "\"sync_batchnorm\": true"},
      {"\"device\": \"cpu\"", "\"device\": \"cpu:0\""},
  };
  for (const auto& [before, after] : changes) {
    CAPTURE(after);
    run.restore();
    run.change(before, after);
    run.refuses("config.json has " + after.substr(0, after.find(':')) + ":");
  }
  run.restore();
  run.change("\"compress\": \"none\"", "\"compress\": \"f16\"");
  const Ended ended = run.resume();
  CHECK(ended.status == 2);
  CHECK_THAT(ended.err, ContainsSubstring("--parallel none cannot compress gradients as f16"));
}

TEST_CASE("an explicit option overrides a changed config.json if it affects rounding errors at most") {
  const StoppedRun run;
  SECTION("an option that affects rounding errors at most takes the new value, which is recorded") {
    run.restore();
    const Ended ended = run.resume({"--threads", "2"});
    CHECK(ended.status == 0);
    CHECK_THAT(ended.out, ContainsSubstring("threads 2"));
    const std::string recorded = tests::read_file(run.config());
    CHECK_THAT(recorded, ContainsSubstring("\"threads\": 2") && ContainsSubstring("\"overridden\": {"));
  }
  SECTION("a recorded option stays valid if the run is killed before the next checkpoint") {
    run.restore();
    REQUIRE(run.resume({"--threads", "2"}).status == 0);
    for (const char* step : {"2", "3", "4"})
      std::filesystem::remove(run.dir() + "/checkpoints/step-0000000" + step + ".safetensors");
    const std::string recorded = tests::read_file(run.config());
    CHECK(run.resume().status == 0);
    CHECK(tests::read_file(run.config()) == recorded);
    for (const char* step : {"2", "3", "4"})
      std::filesystem::remove(run.dir() + "/checkpoints/step-0000000" + step + ".safetensors");
    std::string edited = recorded;
    tests::write_file(run.config(), edited.replace(edited.find("\"threads\": 2") + 11, 1, "3"));
    run.refuses("config.json has \"threads\": 3, but the last checkpoint has 1");
  }
  SECTION("another option can only be restored") {
    run.restore();
    run.change("one-cycle", "cosine");
    const Ended changed = run.resume({"--schedule", "cosine"});
    CHECK(changed.status == 2);
    CHECK_THAT(changed.err, ContainsSubstring("has --schedule \"one-cycle\" and cannot be resumed with"));
    const Ended restored = run.resume({"--schedule", "one-cycle"});
    CHECK(restored.status == 0);
    CHECK_THAT(tests::read_file(run.config()), ContainsSubstring("\"schedule\": \"one-cycle\""));
  }
}

TEST_CASE("a damaged checkpoint is refused by the name of the damaged part") {
  const StoppedRun run;
  const std::string path = run.checkpoint();
  const auto refuses = [&](const std::function<void(tapestry::Safetensors&)>& damage,
                           const std::string& text) {
    CAPTURE(text);
    run.restore();
    tapestry::Safetensors file = tapestry::load_safetensors(path);
    damage(file);
    tapestry::save_safetensors(path, {file.tensors.begin(), file.tensors.end()}, file.metadata);
    run.refuses(text);
  };
  const auto tensor = [&](const std::string& name, const Tensor& value, const std::string& text) {
    refuses(
        [&](tapestry::Safetensors& file) {
          REQUIRE(file.tensors.erase(name) == 1);
          if (value.defined()) file.tensors.emplace(name, value);
        },
        text);
  };
  const auto metadata = [&](const std::string& name, const std::optional<std::string>& value,
                            const std::string& text) {
    refuses(
        [&](tapestry::Safetensors& file) {
          REQUIRE(file.metadata.erase(name) == 1);
          if (value) file.metadata.emplace(name, *value);
        },
        text);
  };
  // The random generators.
  const std::string generator = "training/generator/cpu:0";
  tensor(generator, {}, "contains no state of the random generator (" + generator);
  tensor(generator, tapestry::zeros({3}, DType::i64), generator + " is int64 [3], not two int64");
  tensor(generator, tapestry::zeros({2}, DType::f32), generator + " is float32 [2], not two int64");
  refuses(
      [&](auto& file) { file.tensors.emplace("training/generator/cpo:0", tapestry::zeros({2}, DType::i64)); },
      "cpo:0 is not the generator of a device");
  const std::string rank_0 = "extra.generators of rank 0";
  metadata(rank_0, {}, "generator states of 0 ranks and says that 1 ranks saved theirs");
  for (const char* garbled : {"", "cpu:0", "cpu:0 1", "cpu:0 1 x", "cpu:0 -1 5", "cqu:0 1 2"})
    metadata(rank_0, garbled, "the generator states in the checkpoint are");
  // The position.
  metadata("tapestry.epoch", "-9000000000000000000",
           "is of epoch -9000000000000000000 and step 1, which cannot be");
  metadata("tapestry.step", "-1", "is of epoch 0 and step -1, which cannot be negative");
  metadata("tapestry.epoch", "1",
           "is of epoch 1 and step 1, but its data loader is at step 1 of 2 in epoch 0");
  metadata("tapestry.step", "2",
           "is of epoch 0 and step 2, but its data loader is at step 1 of 2 in epoch 0");
  const auto loader = [](const std::string& seed, const std::string& epoch, const std::string& sample) {
    return "seed=" + seed + " epoch=" + epoch + " sample=" + sample + " samples=64";
  };
  metadata("extra.loader", loader("1", "-9000000000000000000", "32"), "is of epoch -9000000000000000000");
  metadata("extra.loader", loader("1", "9000000000000000000", "0"), "step 0 of epoch 9000000000000000000");
  metadata("extra.loader", loader("1", "2", "32"),
           "at step 1 of epoch 2 (counted from 0), but the run has 2");
  metadata("extra.loader", loader("1", "0", "96"), "at sample 96 of epoch 0");
  metadata("extra.loader", loader("7", "0", "32"), "data loader has seed 7 and the run has --seed 1");
  metadata("extra.loader", "seed=1 epoch=2 batch=0 samples=64 batches=9000000000000000000",
           "a loader with 9000000000000000000 batches per epoch, and this one has 2");
  metadata("extra.loader", "seed=1 epoch=0 sample=32 samples=65", "a loader with 65 samples");
  metadata("extra.loader", "seed=1 epoch=x", "the checkpoint's position in the data is invalid");
  tensor("training/scheduler/steps", tapestry::scalar_tensor(std::int64_t{2}),
         "the checkpoint is of step 1, but its schedule is at step 2");
  // The optimizer and the schedule.
  const std::string lr = "training/optimizer/groups.0.lr";
  tensor(lr, tapestry::scalar_tensor(std::int64_t{1}), "not a floating-point number: groups.0.lr is int64");
  tensor(lr, tapestry::scalar_tensor(std::numeric_limits<double>::quiet_NaN(), DType::f64), "lr");
  tensor("training/optimizer/state.0.step", tapestry::scalar_tensor(std::int64_t{1}),
         "not a floating-point number: state.0.step is int64");
  tensor("training/scheduler/steps", tapestry::scalar_tensor(1.0), "number of steps is float32, not int64");
  tensor("training/scheduler/base_lrs.0", tapestry::scalar_tensor(std::int64_t{1}),
         "base_lrs.0 is 1 of dtype int64");
  tensor("training/scheduler/base_lrs.0", tapestry::scalar_tensor(-1.0), "base_lrs.0 is -1 of dtype");
  // The classifier's own values.
  metadata("extra.options", {}, "the checkpoint has no options");
  metadata("extra.options", "{}", "the options in the checkpoint is not the config of a run: \"model\"");
  for (const char* tally : {"", "0x1p+0 1", "0x1p+0 5 4", "0x1p+0 -1 4", "0x1p+0 1 4 x"})
    metadata("extra.tally", tally, "the checkpoint's tally");
  for (const char* seconds : {"", "-1", "nan", "1e999"})
    metadata("extra.seconds", seconds, "the checkpoint's seconds");
  run.restore();
  CHECK(run.resume().status == 0);
}

TEST_CASE("metrics.jsonl with impossible epochs is refused") {
  const StoppedRun run;
  REQUIRE(run.resume().status == 0);
  const std::string path = run.dir() + "/metrics.jsonl", whole = tests::read_file(path);
  for (const char* epoch : {"-9000000000000000000", "0", "1.5", "99999999999999999999"}) {
    CAPTURE(epoch);
    std::string text = whole;
    tests::write_file(path, text.replace(text.find("\"epoch\":1") + 8, 1, epoch));
    const Ended ended = run.resume();
    CHECK(ended.status == 1);
    CHECK_THAT(ended.err,
               ContainsSubstring("metrics.jsonl: line 1 is not metrics: its epoch does not follow"));
  }
  tests::write_file(path, whole);
  CHECK(run.resume().status == 0);
}
