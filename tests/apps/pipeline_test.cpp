// Runs apps/pipeline as a user does.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended pipeline(std::vector<std::string> arguments) {
  const std::vector<std::string> small{"--batch-size", "12", "--width", "8", "--layers", "1", "--steps", "3"};
  arguments.insert(arguments.end(), small.begin(), small.end());
  return tests::run(Launch{.arguments = std::move(arguments), .program = "pipeline"});
}

// Parses the cells of the table at the end of the output.
std::vector<std::vector<std::string>> rows_of(const std::string& out) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ") || line.starts_with("| schedule")) continue;
    rows.emplace_back();
    std::istringstream cells(line.substr(1));
    for (std::string cell; std::getline(cells, cell, '|');)
      rows.back().push_back(cell.substr(1, cell.size() - 2));
  }
  return rows;
}

}  // namespace

TEST_CASE("all schedules compute the same loss, and the table shows them") {
  const Ended ended =
      pipeline({"--stages", "2", "--micro-batches", "1", "4", "--schedule", "gpipe", "1f1b", "zero-bubble"});
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  CHECK(ended.err == "");
  CHECK_THAT(ended.out, ContainsSubstring("stage 0  F0 F1 F2 F3 .. .. B0 B1 B2 B3\n") &&
                            ContainsSubstring("stage 1  .. F0 B0 F1 B1 F2 B2 F3 B3 ..\n"));
  const auto rows = rows_of(ended.out);
  REQUIRE(rows.size() == 6);
  const std::vector<std::string> names{"gpipe", "gpipe", "1f1b", "1f1b", "zero-bubble", "zero-bubble"},
      counts{"1", "4", "1", "4", "1", "4"}, predicted{"50.0%", "20.0%", "50.0%", "20.0%", "40.0%", "7.7%"},
      alive{"1", "4", "1", "2", "1", "2"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(rows[i].size() == 9);
    CHECK(rows[i][0] == names[i]);
    CHECK(rows[i][1] == counts[i]);
    CHECK(rows[i][2] == predicted[i]);
    CHECK(rows[i][6] == alive[i]);
    CHECK(std::stod(rows[i][8]) == Approx(std::stod(rows[0][8])).epsilon(1e-5));  // the loss
  }
}

TEST_CASE("--svg draws the last step") {
  const tests::TempDir folder;
  const std::string path = folder / "timeline.svg";
  const Ended ended =
      pipeline({"--stages", "3", "--devices", "cpu:0", "cpu:1", "--checkpoint", "--svg", path});
  INFO(ended.out << ended.err);
  REQUIRE(ended.status == 0);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK_THAT(text.str(), ContainsSubstring("1f1b: 3 stages, 8 micro-batches") && ContainsSubstring("cpu:1"));
}

TEST_CASE("pipeline reports invalid options with status 2") {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--stages", "0"}, {"--micro-batches", "0"}, {"--schedule", "fifo"}}) {
    const Ended ended = pipeline(wrong);
    INFO(wrong[0] << ended.err);
    CHECK(ended.status == 2);
    CHECK_THAT(ended.err, ContainsSubstring("error: [pipeline] " + wrong[0]));
  }
  const Ended unwritable = pipeline({"--svg", "/no/such/folder/timeline.svg"});
  CHECK(unwritable.status == 1);
  CHECK(unwritable.out == "");
  CHECK_THAT(unwritable.err, ContainsSubstring("/no/such/folder"));
  const Ended missing = pipeline({"--devices", "cuda:99"});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, ContainsSubstring("cuda:99"));
}
