// Runs apps/ddp_demo as a user does, and checks the log lines and the final loss.
#include <cmath>
#include <numbers>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended demo(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "ddp_demo"});
}

struct Log {
  std::vector<int> steps;  ///< the step numbers of all "Step:" lines
  double loss = -1;        ///< the loss of the last step
  int epochs = 0, devices = 0;
};

/// Parses the lines that begin with `prefix`. An unknown line fails the test.
Log read(const std::string& out, const std::string& prefix = "") {
  Log log;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix)) continue;
    line = line.substr(prefix.size());
    int number = -1;
    if (std::sscanf(line.c_str(), "Step: %d, Loss: %lf", &number, &log.loss) == 2)
      log.steps.push_back(number);
    else if (line == "Epoch " + std::to_string(log.epochs) + " Finished !") ++log.epochs;
    else if (line == "data: cpu:0, model: cpu:0") ++log.devices;
    else CHECK(line == "no GPU is available: training on the CPU");
  }
  return log;
}

/// The smallest cross_entropy of probabilities that are passed as logits.
double best_loss(int classes) { return std::log(std::numbers::e + classes - 1) - 1; }

}  // namespace

TEST_CASE("one rank logs every step and reaches the loss of the double softmax") {
  const Ended run = demo({"--batchSize", "32", "--epochs", "3", "--dataset-size", "250"});
  CHECK(run.status == 0);
  CHECK(tests::is_softmax_warning(run.err));
  const Log log = read(run.out);
  CHECK(log.steps ==
        std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(log.epochs == 3);
  CHECK(log.devices == 3);
  CHECK(std::abs(log.loss - best_loss(10)) < 1e-5);
  CHECK(std::abs(best_loss(10) - 1.46115) < 1e-5);
}

TEST_CASE("another number of classes gives another final loss") {
  const Ended run = demo({"--num-classes", "4", "--epochs", "4", "--dataset-size", "256", "--gpu_id", "1,2"});
  CHECK(run.status == 0);
  CHECK(std::abs(read(run.out).loss - best_loss(4)) < 1e-5);
}

TEST_CASE("with two ranks, each rank does half of the steps and prints them") {
  const Ended run =
      tests::on_two_ranks("ddp_demo", {"--batchSize", "32", "--epochs", "2", "--dataset-size", "512"});
  INFO(run.err);
  CHECK(run.status == 0);
  for (const char* rank : {"[0] ", "[1] "}) {
    const Log log = read(run.out, rank);
    CHECK(log.steps == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(log.epochs == 2);
    CHECK(log.devices == 2);
    CHECK(std::abs(log.loss - best_loss(10)) < 1e-5);
  }
}

TEST_CASE("ddp_demo reports invalid options with status 2") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--batchSize", "0"},
                                                {"--epochs", "-1"},
                                                {"--dataset-size", "many"},
                                                {"--num-classes", "0"}}) {
    const Ended run = demo(wrong);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring("error: [ddp_demo]") && ContainsSubstring(wrong[0]));
  }
  for (const std::vector<std::string>& by_hand :
       {std::vector<std::string>{"--local_rank", "0"}, {"--local_rank=1"}, {"--local-rank", "0"}}) {
    const Ended run = demo(by_hand);
    CHECK(run.status == 2);
    CHECK_THAT(run.err,
               ContainsSubstring("error: [ddp_demo] " + by_hand[0] + " is not an option of this program") &&
                   ContainsSubstring("LOCAL_RANK") && ContainsSubstring("tapestry-run"));
  }
}
