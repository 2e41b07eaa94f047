// apps/ddp_demo as a person runs it: the log lines, and where the loss ends.
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
  std::vector<int> steps;  ///< the numbers of all "Step:" lines
  double loss = -1;        ///< of the last one
  int epochs = 0, devices = 0;
};

/// The lines that begin with `prefix`, without it. Any other line of the program is a failure.
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
    else CHECK(line == "no GPU can be used: training on the CPU");
  }
  return log;
}

/// What cross_entropy gives at best when it takes probabilities for scores.
double best_loss(int classes) { return std::log(std::numbers::e + classes - 1) - 1; }

}  // namespace

TEST_CASE("the demo alone") {
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

TEST_CASE("the demo with another number of classes") {
  const Ended run = demo({"--num-classes", "4", "--epochs", "4", "--dataset-size", "256", "--gpu_id", "1,2"});
  CHECK(run.status == 0);
  CHECK(std::abs(read(run.out).loss - best_loss(4)) < 1e-5);
}

TEST_CASE("the demo on two ranks: each does half of the steps, and prints") {
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

TEST_CASE("the demo refuses options that make no sense") {
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
    CHECK_THAT(run.err, ContainsSubstring("error: [ddp_demo] " + by_hand[0] + ": nobody passes it here") &&
                            ContainsSubstring("LOCAL_RANK") && ContainsSubstring("tapestry-run"));
  }
}
