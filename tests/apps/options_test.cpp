// Tests the classifier's command line: --help, valid and invalid options.
#include <filesystem>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::classifier;
using tests::Ended;

TEST_CASE("--help lists every option and exits with status 0") {
  for (const char* flag : {"--help", "-h"}) {
    const Ended run = classifier({flag});
    CHECK(run.status == 0);
    CHECK(run.err == "");
    for (const char* option : {"--model",
                               "--data ",
                               "--data-dir",
                               "--synthetic-size",
                               "--device",
                               "--batch-size",
                               "--epochs",
                               "--optimizer",
                               "--lr",
                               "--weight-decay",
                               "--schedule",
                               "--seed",
                               "--threads",
                               "--workers",
                               "--run-dir",
                               "--resume [auto]",
                               "--checkpoint-every",
                               "--allow-nan",
                               "--overfit-batch",
                               "--tensorboard",
                               "{cnn,mlp,resnet18,demo}",
                               "Exit status"})
      CHECK_THAT(run.out, ContainsSubstring(option));
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 110);
  }
}

TEST_CASE("the classifier reports invalid options and starts nothing") {
  const tests::TempDir folder;
  const std::string run_dir = folder / "run";
  const std::vector<std::vector<std::string>> wrong = {
      {"--bogus", "--bogus"},
      {"extra", "extra"},
      {"--model", "--model", "vgg"},
      {"demo", "--model", "vgg"},  // the message lists valid values
      {"--data", "--data", "mnist"},
      {"--schedule", "--schedule", "linear"},
      {"--optimizer", "--optimizer", "lion"},
      {"--device", "--device", "gpu"},
      {"--epochs", "--epochs", "two"},
      {"--epochs", "--epochs", "2.5"},
      {"--epochs", "--epochs", "0"},
      {"--epochs", "--epochs", "-3"},
      {"--epochs", "--epochs", "99999999999999999999"},
      {"--epochs", "--epochs"},
      {"--batch-size", "--batch-size", "0"},
      {"--synthetic-size", "--synthetic-size", "1e3"},
      {"--lr", "--lr", "fast"},
      {"--lr", "--lr", "0"},
      {"--lr", "--lr", "-0.1"},
      {"--lr", "--lr", "nan"},
      {"--lr", "--lr", "inf"},
      {"--lr", "--lr", ""},
      {"--weight-decay", "--weight-decay", "-1"},
      {"--weight-decay", "--weight-decay", "nan"},
      {"--seed", "--seed", "-1"},
      {"--seed", "--seed", "18446744073709551616"},
      {"--threads", "--threads", "-1"},
      {"--threads", "--threads", "many"},
      {"--workers", "--workers", "65"},
      {"200 is not an interval such as 200steps, 10minutes or none", "--checkpoint-every", "200"},
      {"--checkpoint-every", "--checkpoint-every", "200", "steps"},
      {"--checkpoint-every", "--checkpoint-every", "0steps"},
      {"--checkpoint-every", "--checkpoint-every", "1.5steps"},
      {"--checkpoint-every", "--checkpoint-every", "-1minutes"},
      {"--checkpoint-every", "--checkpoint-every", "1.2.3minutes"},
      {"--checkpoint-every", "--checkpoint-every", "10hours"},
      {"--checkpoint-every", "--checkpoint-every", "steps"},
      {"--checkpoint-every", "--checkpoint-every", ""},
  };
  for (const std::vector<std::string>& line : wrong) {
    std::vector<std::string> arguments = {"--model=demo", "--run-dir", run_dir};
    arguments.insert(arguments.end(), line.begin() + (line.size() > 1 ? 1 : 0), line.end());
    CAPTURE(line);
    const Ended run = classifier(arguments);
    CHECK(run.status == 2);
    CHECK(run.out == "");
    CHECK_THAT(run.err, ContainsSubstring(line[0]));
    CHECK_THAT(run.err, ContainsSubstring("--help"));
    CHECK_FALSE(std::filesystem::exists(run_dir));
  }
}

TEST_CASE("--resume without an existing run is an error") {
  const tests::TempDir folder;
  const Ended nowhere = classifier({"--resume"});
  CHECK(nowhere.status == 2);
  CHECK_THAT(nowhere.err, ContainsSubstring("--run-dir"));

  const Ended missing = classifier({"--resume", "--run-dir", folder / "none"});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, ContainsSubstring(folder / "none/config.json"));
  CHECK_FALSE(std::filesystem::exists(folder / "none"));

  for (const char* text : {"", "{", "[]", "{\"model\": 3}", "{\"model\": \"cnn\"}"}) {
    tests::write_file(folder / "config.json", text);
    const Ended broken = classifier({"--resume", "--run-dir", folder.path().string()});
    CHECK(broken.status == 1);
    CHECK_THAT(broken.err, ContainsSubstring("config.json is not the config of a run"));
  }
}
