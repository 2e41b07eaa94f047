// docs/reference/from-pytorch.md lists PyTorch's names beside Tapestry's. This test writes the page: the
// compiler decides which names exist.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/structure/compile_probe.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace {

struct Candidate {
  std::string shown;     // as the page shows it, with backticks
  std::size_t line = 0;  // its index among the compiled lines
};
struct Name {
  std::string pytorch;
  std::vector<Candidate> candidates;
  std::string reason;  // why the name is not there
};
struct Family {
  std::string heading;
  std::vector<Name> names;
};

const std::map<std::string, std::string> kClasses = {
    {"x", "Tensor"},
    {"module", "nn::Module"},
    {"group", "distributed::ProcessGroup"},
    {"ddp", "distributed::DistributedDataParallel<nn::Linear>"},
};

const std::string kNotThere = "not there: ";

// Splits at ", " outside of backticks.
std::vector<std::string> split_candidates(const std::string& text) {
  std::vector<std::string> parts(1);
  bool code = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '`') code = !code;
    if (!code && text.compare(at, 2, ", ") == 0) {
      parts.emplace_back();
      ++at;
    } else {
      parts.back() += text[at];
    }
  }
  return parts;
}

// Appends the line that is valid if the candidate exists. A using-declaration also finds overloaded
// functions.
Candidate compiled(const std::string& text, std::vector<std::string>& lines) {
  const std::size_t number = lines.size();
  const std::string id = std::to_string(number);
  if (text.front() == '`') {
    const std::string code = text.substr(1, text.size() - 2);
    lines.push_back(structure::as_function(number, code));
    return {text, number};
  }
  if (text.front() == '(') {
    lines.emplace_back();
    return {text, number};
  }
  const auto dot = text.find('.');
  if (dot == std::string::npos) {
    lines.push_back("namespace n" + id + " { using tapestry::" + text + "; }");
    return {"`" + text + "`", number};
  }
  const std::string method = text.substr(dot + 1);
  lines.push_back("using C" + id + " = " + kClasses.at(text.substr(0, dot)) + "; struct S" + id + " : C" +
                  id + " { using C" + id + "::" + method + "; };");
  return {"`" + text + "()`", number};
}

std::string replaced(std::string text, const std::string& name) {
  for (auto at = text.find('%'); at != std::string::npos; at = text.find('%', at + name.size()))
    text.replace(at, 1, name);
  return text;
}

std::vector<Family> read_names(std::istream& in, std::vector<std::string>& lines) {
  std::vector<Family> families;
  std::vector<std::string> defaults;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      const auto end = line.find("] ");
      families.push_back({line.substr(1, end - 1), {}});
      defaults = split_candidates(line.substr(end + 2));
      continue;
    }
    const auto arrow = line.find(" => ");
    if (arrow != std::string::npos) {
      Name& name = families.back().names.emplace_back(Name{line.substr(0, arrow), {}, {}});
      if (const std::string rest = line.substr(arrow + 4); rest.starts_with(kNotThere)) {
        name.reason = rest.substr(kNotThere.size());
        continue;
      }
      for (const std::string& c : split_candidates(line.substr(arrow + 4)))
        name.candidates.push_back(compiled(c, lines));
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      Name& name = families.back().names.emplace_back(Name{word, {}, {}});
      for (const std::string& c : defaults) name.candidates.push_back(compiled(replaced(c, word), lines));
    }
  }
  return families;
}

// The tables of the page, and the number of names that exist and of all names.
struct Page {
  std::string text;
  std::string unexplained;  // names that are not there, without a reason
  std::size_t found = 0, names = 0;
};
Page tables(const std::vector<Family>& families, const std::map<std::size_t, std::string>& errors) {
  Page page;
  for (const Family& family : families) {
    page.text += "\n## " + family.heading + "\n\n| PyTorch | Tapestry |\n|---|---|\n";
    for (const Name& name : family.names) {
      std::string ours;
      for (const Candidate& c : name.candidates)
        if (!errors.contains(c.line)) ours += (ours.empty() ? "" : ", ") + c.shown;
      ++page.names;
      page.found += !ours.empty();
      if (ours.empty() && name.reason.empty()) page.unexplained += name.pytorch + " ";
      page.text += "| `" + name.pytorch + "` | " +
                   (ours.empty() ? "not there" + (name.reason.empty() ? "" : ": " + name.reason) : ours) +
                   " |\n";
    }
  }
  return page;
}

// Names that exist and names that do not, as a test of the test.
constexpr const char* kPlanted =
    "# a comment\n[Some] nn::%, x.%\nLinear Linaer softmax\n"
    "item => x.item, x.items\nno => `x.sum(\"a\")`, `no(x)`\nyes => `x.sum(1)`, group.all_reduce, "
    "group.abort_all\nlater => not there: it is too early\nof itself => (always)\n";
constexpr const char* kPlantedPage =
    "\n## Some\n\n| PyTorch | Tapestry |\n|---|---|\n| `Linear` | `nn::Linear` |\n| `Linaer` | not there |\n"
    "| `softmax` | `x.softmax()` |\n| `item` | `x.item()` |\n| `no` | not there |\n"
    "| `yes` | `x.sum(1)`, `group.all_reduce()` |\n| `later` | not there: it is too early |\n| `of itself` | "
    "(always) |\n";

}  // namespace

TEST_CASE("every name of PyTorch in the list is beside ours, or is said to be not there") {
  std::ifstream names(tests::source_path("tests/structure/pytorch_names.txt"));
  REQUIRE(names);
  std::istringstream planted(kPlanted);
  std::vector<std::string> lines;  // compiled together, because parsing the headers takes most of the time
  const std::vector<Family> families = read_names(names, lines),
                            planted_families = read_names(planted, lines);
  const auto errors = structure::compile_errors(lines);
  const Page found = tables(families, errors), planted_page = tables(planted_families, errors);
  CHECK(planted_page.text == kPlantedPage);
  CHECK(planted_page.found == 5);
  CHECK(planted_page.names == 8);
  CHECK(planted_page.unexplained == "Linaer no ");
  CHECK(found.unexplained == "");

  const std::string page =
      "# PyTorch's names and ours\n\n"
      "This page lists the names that PyTorch programs use most, and the names of Tapestry beside them. "
      "[From PyTorch]"
      "(../tutorials/from-pytorch.md) shows how calls are written, and what differs.\n\n"
      "tests/structure/from_pytorch_test.cpp writes the page from tests/structure/pytorch_names.txt. It "
      "compiles each name "
      "of the right column, so all of them exist. A name that is \"not there\" has the reason beside it. To "
      "update "
      "the page, run `TAPESTRY_WRITE_DOCS=1 build/ci/bin/tests_structure \"every name of PyTorch*\"`.\n\n"
      "Names without `::` are in the namespace `tapestry`. `x` is a `Tensor`, `module` an `nn::Module`, "
      "`group` a "
      "`distributed::ProcessGroup`, and `ddp` a `distributed::DistributedDataParallel`.\n\n" +
      std::to_string(found.found) + " of " + std::to_string(found.names) + " names are there.\n" + found.text;
  const std::string path = tests::source_path("docs/reference/from-pytorch.md");
  if (std::getenv("TAPESTRY_WRITE_DOCS")) {
    std::ofstream file(path);
    file << page;
    REQUIRE(file.flush());
  }
  std::ifstream file(path);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  INFO("docs/reference/from-pytorch.md is out of date; run this test with TAPESTRY_WRITE_DOCS=1");
  CHECK((written == page));
}
