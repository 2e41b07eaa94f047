// Runs apps/model_parallel as a user does.
#include <cstdio>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended model_parallel(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "model_parallel"});
}

const std::vector<std::string> kSmall{"--batch-size", "8", "--image-size", "40", "--steps", "12"};

std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = kSmall;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<double> losses(const std::string& out) {
  std::vector<double> found;
  std::istringstream lines(out);
  int step = -1;
  double loss = 0;
  for (std::string line; std::getline(lines, line);)
    if (std::sscanf(line.c_str(), "Step: %d, Loss: %lf", &step, &loss) == 2) {
      CHECK(step == static_cast<int>(found.size()));
      found.push_back(loss);
    }
  return found;
}

}  // namespace

TEST_CASE("two devices compute the same losses as one device") {
  const Ended split = model_parallel(small({"--devices", "cpu:0", "cpu:1"}));
  INFO(split.out << split.err);
  CHECK(split.status == 0);
  CHECK(split.err == "");
  CHECK_THAT(split.out,
             ContainsSubstring("Output tensor is on device: cpu:1\nLoss tensor is on device: cpu:1\n"));
  CHECK_THAT(split.out, ContainsSubstring("part1 on cpu:0") && ContainsSubstring("part2 on cpu:1"));
  const std::vector<double> found = losses(split.out);
  REQUIRE(found.size() == 12);
  CHECK(found.back() < found.front() - 0.5);

  const Ended one = model_parallel(small({"--devices", "cpu:0", "cpu:0"}));
  CHECK(one.status == 0);
  CHECK_THAT(one.out, ContainsSubstring("Loss tensor is on device: cpu:0"));
  CHECK(losses(one.out) == found);
  CHECK(losses(model_parallel(small({"--seed", "2"})).out) != found);
}

TEST_CASE("model_parallel reports invalid options with status 2") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--devices", "cpu:0"},
                                                {"--batch-size", "0"},
                                                {"--image-size", "8"},
                                                {"--steps", "-1"},
                                                {"--gpus", "2"}}) {
    const Ended run = model_parallel(wrong);
    INFO(run.out);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring("error: [model_parallel]") && ContainsSubstring(wrong[0]));
  }
  const Ended nowhere = model_parallel({"--devices", "cpu:0", "cuda:63"});
  CHECK(nowhere.status == 1);
  CHECK_THAT(nowhere.err, ContainsSubstring("device cuda:63 does not exist"));
  const Ended help = model_parallel({"--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.out, ContainsSubstring("--devices") && ContainsSubstring("--image-size"));
}
