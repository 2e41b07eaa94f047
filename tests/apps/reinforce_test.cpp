// Runs apps/reinforce as a user does.
#include <sstream>

#include "tapestry/nn/checkpoint.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;
using tests::on_two_ranks;

namespace {

Ended reinforce(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "reinforce"});
}

/// The output without the last line, which shows the run time.
std::string results(const std::string& out) {
  const std::size_t end = out.rfind('\n', out.size() - 2);
  return out.substr(0, end + 1);
}

}  // namespace

TEST_CASE("reinforce reaches its goal") {
  const tests::TempDir folder;
  SECTION("with one rank") {
    const Ended run = reinforce({"--save", folder / "policy.safetensors"});
    CHECK(run.status == 0);
    CHECK(run.err == "");
    CHECK_THAT(run.out, ContainsSubstring("over 100 test episodes, 1 ranks, seed 1: goal of 475 reached"));
    const auto saved = tapestry::nn::load_tensors(folder / "policy.safetensors");
    REQUIRE(saved.size() == 8);
    for (const auto& [name, values] : saved) CHECK((name.starts_with("actor") || name.starts_with("critic")));
  }
  SECTION("with two ranks, of which rank 0 prints") {
    const Ended run = on_two_ranks("reinforce", {"--save", folder / "policy.safetensors"});
    INFO(run.err);
    CHECK(run.status == 0);
    CHECK_THAT(run.out, ContainsSubstring("over 100 test episodes, 2 ranks, seed 1: goal of 475 reached"));
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) CHECK(line.starts_with("[0] "));
    CHECK(tests::read_file(folder / "policy.safetensors").size() > 1000);
  }
}

TEST_CASE("the exit status is 3 if the goal is not reached") {
  const Ended run = reinforce({"--updates", "1"});
  CHECK(run.status == 3);
  CHECK_THAT(run.out, ContainsSubstring("goal of 475 not reached"));
}

TEST_CASE("an unwritable --save path is reported before training") {
  const tests::TempDir folder;
  const Ended run = reinforce({"--save", folder / "none/policy.safetensors"});
  CHECK(run.status == 1);
  CHECK(run.out == "");
  CHECK_THAT(run.err, ContainsSubstring("none/policy.safetensors"));
}

TEST_CASE("the seed determines the results, and each rank plays different episodes") {
  const std::vector<std::string> few = {"--updates", "10", "--episodes", "4"};
  const std::string once = results(reinforce(few).out);
  CHECK_THAT(once, ContainsSubstring("update 10  mean return"));
  CHECK(results(reinforce(few).out) == once);
  CHECK(results(reinforce({"--updates", "10", "--episodes", "4", "--seed", "2"}).out) != once);

  // Rank 0 uses the same seed as a single rank. If rank 1 used this seed too, the mean over both would be the
  // result of a single rank.
  const std::string both = results(on_two_ranks("reinforce", few).out);
  CHECK_THAT(both, ContainsSubstring("[0] update 10  mean return"));
  CHECK(both.find(once.substr(0, once.find(" over"))) == std::string::npos);
  CHECK(results(on_two_ranks("reinforce", few).out) == both);
}

TEST_CASE("reinforce reports invalid options with status 2") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--lr", "nan"},
                                                {"--lr", "0"},
                                                {"--discount", "1"},
                                                {"--episodes", "0"},
                                                {"--updates", "-1"},
                                                {"--seed", "-1"},
                                                {"--test-episodes", "x"},
                                                {"--bogus"}}) {
    const Ended run = reinforce(wrong);
    CHECK(run.status == 2);
    CHECK(run.out == "");
    CHECK_THAT(run.err, ContainsSubstring("error: [reinforce]") && ContainsSubstring(wrong[0]) &&
                            ContainsSubstring("reinforce --help"));
  }
  const Ended help = reinforce({"--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.out, ContainsSubstring("--episodes") && ContainsSubstring("Exit status"));
  const Ended lost = reinforce({"--updates", "1", "--save", "/nowhere/policy.safetensors"});
  CHECK(lost.status == 1);
  CHECK_THAT(lost.err, ContainsSubstring("/nowhere/policy.safetensors"));
}
