// Each planted bug is caught by the check that is named for it, and the report names the lines that are
// marked in the source. Its mended twin is clean. The table of docs/reference/planted-bugs.md lists the same
// bugs.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/laboratory/command.h"

namespace {

namespace fs = std::filesystem;

/// The options beside --check that a bug needs.
std::string options_of(const std::string& bug) {
  if (bug == "aba_in_a_stack" || bug == "sum_in_order_of_arrival") return "--seed 1";
  if (bug == "never_freed") return "--check=all";
  return "";
}

/// The rows of the table in the documentation: bug and check.
std::vector<std::pair<std::string, std::string>> documented() {
  std::ifstream page(TAPESTRY_PTX_DOCS "/reference/planted-bugs.md");
  std::vector<std::pair<std::string, std::string>> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.substr(0, 3) != "| `") continue;
    std::vector<std::string> cells;
    std::istringstream stream(line.substr(2));
    for (std::string cell; std::getline(stream, cell, '|');) {
      cell.erase(0, cell.find_first_not_of(" `"));
      cell.erase(cell.find_last_not_of(" `") + 1);
      cells.push_back(cell);
    }
    if (cells.size() > 2) rows.emplace_back(cells[0], cells[2]);
  }
  return rows;
}

/// "memory.cu:12" for each line that is marked for a bug.
std::map<std::string, std::vector<std::string>> marked_lines() {
  std::map<std::string, std::vector<std::string>> found;
  for (const auto& entry : fs::directory_iterator(TAPESTRY_PTX_PLANTED)) {
    std::ifstream in(entry.path());
    int number = 0, marked = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const std::size_t at = line.find("// planted: "), start = line.find_first_not_of(' ');
      if (at != line.npos) marked = number;
      else if (start == line.npos || line.compare(start, 2, "//") != 0) marked = 0;
      if (marked == 0) continue;  // a comment goes on in the lines below
      std::istringstream names(at != line.npos ? line.substr(at + 12) : line.substr(start + 2));
      for (std::string name; names >> name;) {
        if (name.back() == ',') name.pop_back();
        found[name].push_back(entry.path().filename().string() + ":" + std::to_string(marked));
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("right programs that look like wrong ones are clean") {
  std::istringstream names(shell("env LD_LIBRARY_PATH= ./right --list").output);
  int count = 0;
  for (std::string name; std::getline(names, name); ++count) {
    const CommandResult found = tapestry_ptx("run --check ./right " + name);
    INFO(name << ": status " << found.status << "\n" << found.output);
    CHECK(found.status == 0);
    CHECK_THAT(found.output, ContainsSubstring("no errors"));
  }
  CHECK(count > 10);
}

TEST_CASE("planted bugs are caught and located, and their mended twins are clean") {
  const auto lines = marked_lines();
  const auto rows = documented();
  std::set<std::string> listed;
  for (const auto& row : rows) listed.insert(row.first);
  std::set<std::string> existing;
  std::istringstream names(shell("env LD_LIBRARY_PATH= ./planted --list").output);
  for (std::string name; std::getline(names, name);) existing.insert(name);
  CHECK(listed == existing);

  std::vector<CommandResult> planted(rows.size()), mended(rows.size());
  const auto run = [&](std::size_t first) {
    for (std::size_t i = first; i < rows.size(); i += 2) {
      const std::string start = "run --check " + options_of(rows[i].first) + " ./planted " + rows[i].first;
      planted[i] = tapestry_ptx(start);
      mended[i] = tapestry_ptx(start + " mended");
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, check] = rows[i];
    INFO(name << " planted: status " << planted[i].status << "\n" << planted[i].output);
    INFO("mended: status " << mended[i].status << "\n" << mended[i].output);
    CHECK(mended[i].status == 0);
    CHECK_THAT(mended[i].output, ContainsSubstring("no errors"));
    CHECK_THAT(planted[i].output, ContainsSubstring(check));
    CHECK(planted[i].status == (check == "wrong result" ? 3 : 70));
    const auto marks = lines.find(name);
    REQUIRE(marks != lines.end());
    for (const std::string& mark : marks->second) CHECK_THAT(planted[i].output, ContainsSubstring(mark));
  }
}
