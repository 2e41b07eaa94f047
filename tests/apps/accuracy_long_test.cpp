// Tests the accuracy of full training runs on the real Fashion-MNIST, which take minutes.
#include <cstdlib>
#include <iostream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;

namespace {

// Parses the test accuracy from the last line of a run: "test accuracy 0.9180 after ...".
double accuracy(const Ended& run) {
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  const std::string words = "test accuracy ";
  const std::size_t at = run.out.rfind(words);
  REQUIRE(at != std::string::npos);
  std::cout << run.out.substr(at, run.out.find(';', at) - at) << '\n';
  return std::strtod(run.out.c_str() + at + words.size(), nullptr);
}

Ended train(const tests::TempDir& folder, int ranks, const std::string& seed,
            std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--seed", seed, "--run-dir",
                                     folder / (seed + (more.empty() ? "" : more.back()))};
  arguments.insert(arguments.end(), more.begin(), more.end());
  tests::Launch launch{.arguments = arguments};
  if (ranks == 2) {
    arguments.insert(arguments.end(), {"--parallel", "ddp"});
    launch = tests::two_ranks("classifier", arguments);
  }
  launch.limit = std::chrono::minutes(15);
  return tests::run(launch);
}

}  // namespace

TEST_CASE("the CNN reaches 0.915 with each of three seeds") {
  const tests::TempDir folder;
  for (const char* seed : {"1", "2", "3"}) CHECK(accuracy(train(folder, 1, seed)) >= 0.915);
}

TEST_CASE("the CNN reaches 0.915 with each of three seeds in bf16") {
  const tests::TempDir folder;
  for (const char* seed : {"1", "2", "3"})
    CHECK(accuracy(train(folder, 1, seed, {"--precision", "bf16"})) >= 0.915);
}

TEST_CASE("two ranks reach the same accuracy, and bf16 gradients lose less than 0.3 points") {
  const tests::TempDir folder;
  const double full = accuracy(train(folder, 2, "1"));
  CHECK(full >= 0.915);
  CHECK(accuracy(train(folder, 2, "1", {"--compress", "bf16"})) >= full - 0.003);
}
