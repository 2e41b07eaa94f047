// Runs the programs that tapestry-compare compares line by line, and checks what it says of them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tapestry/apps/compare/changes.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/programs.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
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
  return losses_of({.arguments = {name}, .program = "docs_five_diffs"}, 1);
}
// Each rank prints the mean of its samples, or its part of the mean of all.
std::vector<double> losses_of(const std::string& name, int ranks, bool means) {
  std::vector<double> losses = losses_of(tests::on_ranks(ranks, "docs_five_diffs", {name}), ranks);
  for (double& loss : losses) loss /= means ? ranks : 1;
  return losses;
}

Changes changes_in(const std::string& text, int devices) {
  const Mode mode = mode_named(text);
  return changes_of(mode.plan, tapestry::distributed::to_string(mode.axes(devices)));
}

std::string page_text() { return tests::read_file(tests::source_path("docs/tutorials/five-diffs.md")); }

struct Command {
  std::vector<std::pair<std::string, std::string>> environment;
  tests::Launch launch;
};
// A line such as "NAME=VALUE program argument".
Command parse(const std::string& line) {
  Command command;
  command.launch.program.clear();
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (!command.launch.program.empty()) command.launch.arguments.push_back(word);
    else if (equals == std::string::npos) command.launch.program = word;
    else command.environment.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return command;
}

// True if the words are equal, or numbers that differ by rounding.
bool alike(const std::string& a, const std::string& b) {
  std::istringstream words_a(a), words_b(b);
  for (std::string x, y;;) {
    const bool more_a = static_cast<bool>(words_a >> x), more_b = static_cast<bool>(words_b >> y);
    if (!more_a || !more_b) return more_a == more_b;
    char *end_x = nullptr, *end_y = nullptr;
    const double number_x = std::strtod(x.c_str(), &end_x), number_y = std::strtod(y.c_str(), &end_y);
    const bool numbers = *end_x == 0 && *end_y == 0;
    if (numbers ? std::abs(number_x - number_y) > 1e-4 * std::abs(number_x) : x != y) return false;
  }
}

// The first line of `quoted` that was not printed, or the first printed line that is not quoted, unless a
// quoted line is "...". Ranks print in any order.
std::string unprinted(const std::string& quoted, const std::string& printed) {
  std::vector<std::string> lines;
  std::istringstream in(printed), wanted(quoted);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  bool more = false;
  for (std::string line; std::getline(wanted, line);) {
    if (line == "...") {
      more = true;
      continue;
    }
    const auto found =
        std::find_if(lines.begin(), lines.end(), [&](const std::string& l) { return alike(l, line); });
    if (found == lines.end()) return line;
    lines.erase(found);
  }
  return more || lines.empty() ? "" : lines.front() + ": not in the page";
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
  const std::string page = page_text(), fence = "\n```diff ";
  const auto text_of = [](const std::string& name) {
    const auto found =
        std::find_if(kPrograms.begin(), kPrograms.end(), [&](const Program& p) { return p.name == name; });
    REQUIRE(found != kPrograms.end());
    return found->text;
  };
  int blocks = 0;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1), ++blocks) {
    const std::size_t begin = at + fence.size(), line = page.find('\n', begin);
    const std::string text = page.substr(begin, line - begin);
    INFO(text);
    const std::size_t arrow = text.find(" -> ");  // two programs, or a mode and the program for one device
    const Changes changes = arrow == std::string::npos ? changes_in(text, 4)
                                                       : changes_between(text_of(text.substr(0, arrow)),
                                                                         text_of(text.substr(arrow + 4)));
    std::string shown;
    for (const std::string& changed : changes.lines) shown += changed + "\n";
    CHECK(page.substr(line + 1, page.find("\n```", line) - line) == shown);
  }
  CHECK(blocks == 9);
}

TEST_CASE("the tutorial's commands print what it says") {
  CHECK(alike("[0] loss 2.30001", "[0] loss 2.3"));
  CHECK_FALSE(alike("[0] loss 2.31", "[0] loss 2.3"));
  CHECK_FALSE(alike("loss 2.3", "[0] loss 2.3"));
  CHECK(unprinted("loss 2\n", "loss 2\nloss 1\n") == "loss 1: not in the page");
  CHECK(unprinted("loss 2\n...\n", "loss 2\nloss 1\n").empty());
  CHECK(unprinted("loss 2\nloss 2\n...\n", "loss 2\nloss 1\n") == "loss 2");

  const struct Place {  // restored where a check throws, too
    tests::TempDir folder;
    std::filesystem::path before = std::filesystem::current_path();
    std::string path = std::getenv("PATH");
    Place() {
      std::filesystem::current_path(folder.path());
      setenv("PATH", (TAPESTRY_PROGRAMS ":" + path).c_str(), 1);
    }
    ~Place() {
      setenv("PATH", path.c_str(), 1);
      std::filesystem::current_path(before);
    }
  } place;
  const std::string page = page_text(), output = "\n```\n\n```text output\n";
  int blocks = 0;
  for (std::size_t at = page.find(output); at != std::string::npos; at = page.find(output, at + 1)) {
    const std::size_t fence = page.rfind("\n```", at - 1), begin = page.find('\n', fence + 1) + 1;
    if (page.substr(fence, begin - fence) != "\n```sh\n") continue;
    std::istringstream commands(page.substr(begin, at - begin));
    std::string printed;
    for (std::string command; std::getline(commands, command); ++blocks) {
      const Command c = parse(command);
      for (const auto& [name, value] : c.environment) setenv(name.c_str(), value.c_str(), 1);
      const tests::Ended run = tests::run(c.launch);
      for (const auto& [name, value] : c.environment) unsetenv(name.c_str());
      INFO(command << "\n" << run.out << run.err);
      REQUIRE(run.status == 0);
      printed += run.out;
    }
    const std::size_t quoted = at + output.size();
    INFO(page.substr(begin, at - begin) << "\n" << printed);
    CHECK(unprinted(page.substr(quoted, page.find("```", quoted) - quoted), printed) == "");
  }
  CHECK(blocks == 10);
}
