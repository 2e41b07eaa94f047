// A run that cannot continue reports the reason, exits with status 1, and leaves existing files intact.
#include <filesystem>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::classifier;
using tests::Ended;
using tests::Launch;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> mlp(const std::string& run, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"--model",      "mlp", "--data",    "synthetic", "--synthetic-size", "64",
                                  "--batch-size", "16",  "--threads", "1",         "--epochs",         "1",
                                  "--run-dir",    run};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Ended fails(const Launch& launch) {
  const Ended run = classifier(launch);
  CHECK(run.status == 1);
  CHECK(run.err.starts_with("error: ["));
  CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
  return run;
}
Ended fails(const std::vector<std::string>& arguments) { return fails(Launch{.arguments = arguments}); }

}  // namespace

TEST_CASE("a run whose loss is NaN stops with an error unless --allow-nan is given") {
  const tests::TempDir folder;
  SECTION("stops the run and names the step") {
    const Ended run = fails(mlp(folder / "run", {"--lr", "1e30"}));
    CHECK_THAT(run.err, ContainsSubstring("the loss is") && ContainsSubstring("nan") &&
                            ContainsSubstring("at epoch 1, step 2;") && ContainsSubstring("--allow-nan"));
    CHECK(tests::names_in(folder / "run/checkpoints").empty());
    CHECK(tests::metrics(folder / "run") == "");
  }
  SECTION("of the test images stops the run, too") {
    const Ended run = fails(mlp(folder / "run", {"--lr", "1e30", "--batch-size", "64"}));
    CHECK_THAT(run.err, ContainsSubstring("over the test images after epoch 1"));
  }
  SECTION("is accepted with --allow-nan, and is null in the metrics") {
    const Ended run = classifier(mlp(folder / "run", {"--lr", "1e30", "--allow-nan"}));
    CHECK(run.status == 0);
    CHECK_THAT(tests::metrics(folder / "run"),
               ContainsSubstring("\"train_loss\":null") && ContainsSubstring("\"test_loss\":null"));
    CHECK(tests::xml_fault(tests::read_file(folder / "run/curves.svg")) == "");
  }
  SECTION("can be accepted when the run is resumed") {
    fails(mlp(folder / "run", {"--lr", "1e30"}));
    CHECK(classifier({"--resume", "--run-dir", folder / "run", "--allow-nan"}).status == 0);
  }
}

TEST_CASE("a run folder that cannot be created is reported") {
  const tests::TempDir folder;
  tests::write_file(folder / "file", "mine");
  for (const std::string& path :
       {folder / "file", folder / "file/run", std::string("/proc/run"), std::string("/dev/null")}) {
    const Ended run = fails(mlp(path));
    CHECK_THAT(run.err,
               ContainsSubstring("cannot create the folder " + path) && ContainsSubstring("--run-dir"));
  }
  CHECK(tests::read_file(folder / "file") == "mine");

  // Even root cannot create a folder where a file of the same name exists, so the run must fail and name that
  // path.
  fs::create_directories(folder / "taken");
  tests::write_file(folder / "taken/checkpoints", "mine");
  CHECK_THAT(fails(mlp(folder / "taken")).err, ContainsSubstring(folder / "taken/checkpoints"));
  fs::remove(folder / "taken/checkpoints");
  fs::create_directories(folder / "taken/metrics.jsonl");
  CHECK_THAT(fails(mlp(folder / "taken")).err, ContainsSubstring(folder / "taken/metrics.jsonl"));

  if (geteuid() != 0) {
    fs::create_directories(folder / "closed");
    fs::permissions(folder / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THAT(fails(mlp(folder / "closed")).err, ContainsSubstring("Permission denied"));
    CHECK_THAT(fails(mlp(folder / "closed/run")).err, ContainsSubstring("Permission denied"));
    fs::permissions(folder / "closed", fs::perms::owner_all);
  }
}

TEST_CASE("an existing run is not overwritten") {
  const tests::TempDir folder;
  REQUIRE(classifier(mlp(folder / "run")).status == 0);
  const std::string before = tests::metrics(folder / "run") + tests::last_checkpoint(folder / "run");
  const Ended run = fails(mlp(folder / "run", {"--seed", "2"}));
  CHECK_THAT(run.err, ContainsSubstring(folder / "run already holds a run") && ContainsSubstring("--resume"));
  CHECK(tests::metrics(folder / "run") + tests::last_checkpoint(folder / "run") == before);
}

TEST_CASE("a full disk does not damage existing files") {
  const tests::TempDir folder;
  const std::string run = folder / "run", checkpoints = run + "/checkpoints";
  const std::vector<std::string> constant = {"--schedule", "constant"};
  REQUIRE(classifier(mlp(run, constant)).status == 0);
  const std::vector<std::string> names = tests::names_in(checkpoints);
  const std::string before = tests::read_file(checkpoints + "/" + names.back());

  // The limit of 1 MiB allows the pictures, but not a checkpoint of 2.8 MB.
  const Launch full{.arguments = {"--resume", "--run-dir", run, "--epochs", "2"}, .largest_file = 1 << 20};
  const Ended failed = fails(full);
  CHECK_THAT(failed.err, ContainsSubstring(checkpoints + "/step-00000008.safetensors: cannot be written"));
  CHECK(tests::names_in(checkpoints) == names);
  CHECK(tests::read_file(checkpoints + "/" + names.back()) == before);

  SECTION("the run can be resumed when there is space again") {
    REQUIRE(classifier({"--resume", "--run-dir", run}).status == 0);
    REQUIRE(classifier(mlp(folder / "whole", {"--schedule", "constant", "--epochs", "2"})).status == 0);
    CHECK(tests::metrics(run) == tests::metrics(folder / "whole"));
    CHECK(tests::last_checkpoint(run) == tests::last_checkpoint(folder / "whole"));
  }
  SECTION("metrics and pictures stay intact") {
    const std::string metrics = tests::read_file(run + "/metrics.jsonl"),
                      curves = tests::read_file(run + "/curves.svg");
    fails({.arguments = full.arguments, .largest_file = 100});
    CHECK(tests::read_file(run + "/metrics.jsonl") == metrics);
    CHECK(tests::read_file(run + "/curves.svg") == curves);
  }
  SECTION("a run that fails at its start can be started again") {
    fails({.arguments = mlp(folder / "other"), .largest_file = 100});
    // If it existed, the same command would find an existing run.
    CHECK_FALSE(fs::exists(folder / "other/config.json"));
    CHECK(classifier(mlp(folder / "other")).status == 0);
  }
}

TEST_CASE("missing data is reported with its source, and no run is started") {
  const tests::TempDir folder;
  const std::string run = folder / "run";
  const Ended fashion = fails({"--data-dir", folder / "none", "--run-dir", run});
  CHECK_THAT(fashion.err, ContainsSubstring(folder / "none") && ContainsSubstring("dataset-fashion-mnist") &&
                              ContainsSubstring("github.com/zalandoresearch/fashion-mnist"));
  const Ended cifar = fails({"--data", "cifar10", "--data-dir", folder / "none", "--run-dir", run});
  CHECK_THAT(cifar.err, ContainsSubstring("cifar-10-binary.tar.gz"));
  CHECK_FALSE(fs::exists(run));
}

TEST_CASE("broken data is reported with the file's name, and no run is started") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const std::string images = folder / "data/train-images-idx3-ubyte",
                    labels = folder / "data/train-labels-idx1-ubyte";
  const std::string whole_images = tests::read_file(images), whole_labels = tests::read_file(labels);
  const auto refused = [&](const std::string& file, const std::string& text) {
    tests::write_file(file, text);
    const Ended run = fails({"--data-dir", folder / "data", "--run-dir", folder / "run"});
    CHECK_THAT(run.err, ContainsSubstring(file));
    CHECK_FALSE(fs::exists(folder / "run"));
    tests::write_file(images, whole_images);
    tests::write_file(labels, whole_labels);
  };
  refused(images, whole_images.substr(0, whole_images.size() - 1));
  refused(images, whole_images.substr(0, 9));
  refused(images, "");
  refused(images, whole_images + "x");
  refused(labels, whole_labels.substr(0, whole_labels.size() / 2));
  refused(labels, whole_labels.substr(0, 8) + std::string(whole_labels.size() - 8, '\x0b'));  // class 11
}

TEST_CASE("a device that does not exist is reported, and no run is started") {
  const tests::TempDir folder;
  const Ended run = fails(mlp(folder / "run", {"--device", "cpu:7"}));
  CHECK_THAT(run.err, ContainsSubstring("cpu:7"));
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("a damaged checkpoint is rejected with its name") {
  const tests::TempDir folder;
  REQUIRE(classifier(mlp(folder / "run")).status == 0);
  const std::string file = folder / "run/checkpoints/step-00000004.safetensors";
  tests::write_file(file, tests::read_file(file).substr(0, 100'000));
  const Ended run = fails({"--resume", "--run-dir", folder / "run"});
  CHECK_THAT(run.err, ContainsSubstring(file));
}

TEST_CASE("a checkpoint of another program is rejected") {
  const tests::TempDir folder;
  REQUIRE(classifier(mlp(folder / "run")).status == 0);
  const std::string file = folder / "run/checkpoints/step-00000004.safetensors";
  const std::string whole = tests::read_file(file);
  const auto resumed_with = [&](const std::string& key, const std::string& other) {
    std::string changed = whole;
    const std::size_t at = changed.find(key);
    REQUIRE(at != changed.npos);
    tests::write_file(file, changed.replace(at, other.size(), other));
    return fails({"--resume", "--run-dir", folder / "run"}).err;
  };
  CHECK_THAT(resumed_with("extra.loader", "extra.reader"), ContainsSubstring("has no loader"));
  CHECK_THAT(resumed_with("extra.tally", "extra.sally"), ContainsSubstring("has no tally"));
  CHECK_THAT(resumed_with("extra.seconds", "extra.minutes"), ContainsSubstring("has no seconds"));
  CHECK_THAT(resumed_with("extra.seconds\":\"", "extra.seconds\":\"x"), ContainsSubstring("is not a number"));
}

TEST_CASE("a data set without images is an error that gives the numbers, and no run is started") {
  for (const auto& [train, test] : {std::pair{0, 30}, std::pair{80, 0}}) {
    const tests::TempDir folder;
    tests::write_fashion_mnist(folder / "data", train, test);
    const Ended run = fails({"--data-dir", folder / "data", "--run-dir", folder / "run"});
    CHECK_THAT(run.err, ContainsSubstring("[classifier] the training set has " + std::to_string(train) +
                                          " images and the test set has " + std::to_string(test)));
    CHECK_FALSE(fs::exists(folder / "run"));
  }
}
