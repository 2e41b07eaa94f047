// Runs apps/pipeline with one process per stage and compares it with a single process.
#include <fstream>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;

namespace {

std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"--batch-size", "12",   "--width",         "8", "--layers", "1",
                                     "--steps",      "3",    "--micro-batches", "1", "4",        "--schedule",
                                     "gpipe",        "1f1b", "zero-bubble"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Parses schedule, micro-batches and loss from the table rows that begin with `prefix`.
std::vector<std::vector<std::string>> losses_of(const std::string& out, const std::string& prefix) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix + "| ") || line.find("| schedule |") != std::string::npos) continue;
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, '|');) cells.push_back(cell);
    rows.push_back({cells.at(1), cells.at(2), cells.back()});
  }
  return rows;
}

}  // namespace

TEST_CASE("two ranks compute the same losses as one process, and rank 0 prints them") {
  const tests::TempDir folder;
  const std::string path = folder / "timeline.svg";
  const Ended alone = tests::run(Launch{.arguments = small({}), .program = "pipeline"});
  const Ended job = tests::on_two_ranks("pipeline", small({"--svg", path}));
  INFO(alone.err << job.out << job.err);
  REQUIRE(alone.status == 0);
  REQUIRE(job.status == 0);
  const auto rows = losses_of(job.out, "[0] ");
  CHECK(rows.size() == 6);
  CHECK(rows == losses_of(alone.out, ""));
  CHECK(losses_of(job.out, "[1] ").empty());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  for (const char* part : {"zero-bubble: 2 stages, 4 micro-batches", "rank 0", "rank 1"})
    CHECK_THAT(text.str(), ContainsSubstring(part));
}

TEST_CASE("--stages must match the number of ranks") {
  const Ended same = tests::on_two_ranks("pipeline", small({"--stages", "2"}));
  CHECK(same.status == 0);
  const Ended other = tests::on_two_ranks("pipeline", small({"--stages", "3"}));
  INFO(other.err);
  CHECK(other.status == 1);
  CHECK_THAT(other.err + other.out, ContainsSubstring("--stages 3 does not match the job of 2 ranks"));
}
