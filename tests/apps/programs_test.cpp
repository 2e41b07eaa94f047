// Runs the programs that tapestry-compare compares line by line, and checks what it says of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tapestry/apps/compare/changes.h"
#include "tapestry/apps/compare/mode.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace apps::compare;

namespace {

constexpr int kSteps = 8;

// The losses that a program prints, by step. Those of several ranks are added.
std::vector<double> losses_of(const tests::Launch& launch, int ranks) {
  const tests::Ended run = tests::run(launch);
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  std::vector<int> step(static_cast<std::size_t>(ranks));
  std::vector<double> losses(kSteps);
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    int rank = 0;
    double loss = 0;
    if (ranks > 1) REQUIRE(std::sscanf(line.c_str(), "[%d] loss %lf", &rank, &loss) == 2);
    else REQUIRE(std::sscanf(line.c_str(), "loss %lf", &loss) == 1);
    losses.at(static_cast<std::size_t>(step.at(static_cast<std::size_t>(rank))++)) += loss;
  }
  CHECK(step == std::vector<int>(static_cast<std::size_t>(ranks), kSteps));
  return losses;
}

std::vector<double> losses_of(const std::string& name) {
  return losses_of({.arguments = {name}, .program = "compare_programs"}, 1);
}
// Each rank prints the mean of its samples, or its part of the mean of all.
std::vector<double> losses_of(const std::string& name, int ranks, bool means) {
  std::vector<double> losses = losses_of(tests::on_ranks(ranks, "compare_programs", {name}), ranks);
  for (double& loss : losses) loss /= means ? ranks : 1;
  return losses;
}

Changes changes_in(const std::string& text, int devices) {
  const Mode mode = mode_named(text);
  return changes_of(mode.plan, tapestry::distributed::to_string(mode.axes(devices)));
}

}  // namespace

TEST_CASE("the programs of all modes train alike") {
  setenv("TAPESTRY_LOGICAL_DEVICES", "2", 1);
  const std::vector<double> one = losses_of("one_device");
  CHECK(one.front() != one.back());
  const auto equal = [&](const std::string& name, const std::vector<double>& losses) {
    INFO(name);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(losses[i] == Approx(one[i]).epsilon(1e-5));
  };
  for (const char* name : {"data_parallel", "stages", "pipelined"}) equal(name, losses_of(name));
  for (const char* name : {"distributed_data_parallel", "zero", "fully_shard"})
    equal(name, losses_of(name, 2, true));
  equal("strategy", losses_of("strategy", 4, false));
  unsetenv("TAPESTRY_LOGICAL_DEVICES");
}

TEST_CASE("changed lines are those that the program for one device does not have") {
  const Changes changes = changes_between("a\nb\nc\nd\n", "a\nx\nc\ny\nz\nd\n");
  CHECK(changes.lines == std::vector<std::string>{"-b", "+x", "+y", "+z"});
  CHECK(changes.changed_lines == 3);
  CHECK(changes_between("", "").lines.empty());
  CHECK(changes_between("a\nb\n", "").lines == std::vector<std::string>{"-a", "-b"});
  CHECK(changes_between("b\na\nb\n", "b\n").changed_lines == 0);

  for (const Mode& mode : modes()) {
    INFO(mode.name);
    const Changes c = changes_in(mode.name, 2);
    CHECK((c.changed_lines == 0) == mode.plan.axes.empty());
    CHECK(c.changed_lines < 10);  // each of these modes has a program of its own
  }
  // Options of a mode stand in its lines.
  const auto has = [](const Changes& c, const std::string& text) {
    return std::any_of(c.lines.begin(), c.lines.end(), [&](const std::string& line) {
      return line[0] == '+' && line.find(text) != std::string::npos;
    });
  };
  CHECK(has(changes_in("replicate=2:zero=2", 2), ".stage = 2}"));
  CHECK(has(changes_in("replicate=2:devices:mode=master", 2), "DataParallelMode::master"));
  CHECK(has(changes_in("pipeline=2:devices:schedule=zero-bubble", 2), "Schedule::zero_bubble"));
  // Combinations, and options without a program, are texts.
  for (const std::string text :
       {"pipeline=2,replicate=-1:zero=1", "replicate=4:compress=bf16", "shard=4:gather=step"}) {
    const std::string full = tapestry::distributed::to_string(mode_named(text).axes(4));
    CHECK(has(changes_in(text, 4), "strategy(\"" + full + "\""));
  }
}

TEST_CASE("the tutorial shows the differences of the programs") {
  std::ifstream in(tests::source_path("docs/tutorials/five-diffs.md"));
  const std::string page(std::istreambuf_iterator<char>(in), {}), fence = "\n```diff ";
  int blocks = 0;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1), ++blocks) {
    const std::size_t begin = at + fence.size(), line = page.find('\n', begin);
    const std::string text = page.substr(begin, line - begin);
    INFO(text);
    std::string shown;
    for (const std::string& changed : changes_in(text, 4).lines) shown += changed + "\n";
    CHECK(page.substr(line + 1, page.find("\n```", line) - line) == shown);
  }
  CHECK(blocks == 7);
}
