// docs/reference/from-pytorch.md lists PyTorch's names beside Tapestry's. This test writes the page: the
// compiler decides which names exist.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

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
  std::vector<Candidate> candidates = {};
  std::string reason = {};              // why the name is not there
  std::vector<Candidate> instead = {};  // the code in the reason
};
struct Family {
  std::string heading;
  std::vector<Name> names = {};
  bool complete = false;      // all names of a part of PyTorch's index
  std::string unlisted = {};  // names of such a family that the index does not have
};

// What PyTorch lists (pytorch_index.txt): names by the part of PyTorch, in PyTorch's order.
struct Index {
  std::string version;
  std::map<std::string, std::vector<std::string>> parts;
};

const std::map<std::string, std::string> kClasses = {
    {"x", "Tensor"},
    {"module", "nn::Module"},
    {"group", "distributed::ProcessGroup"},
    {"ddp", "distributed::DistributedDataParallel<nn::Linear>"},
};

const std::string kNotThere = "not there: ", kAllOf = "all of ";

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

// What stands between backticks: names, and code, which has parentheses.
std::vector<Candidate> code_of(const std::string& text, std::vector<std::string>& lines) {
  std::vector<Candidate> all;
  std::istringstream in(text);
  std::string part;
  for (bool code = false; std::getline(in, part, '`'); code = !code)
    if (code) all.push_back(compiled(part.find('(') == part.npos ? part : "`" + part + "`", lines));
  return all;
}

std::string replaced(std::string text, const std::string& name) {
  for (auto at = text.find('%'); at != std::string::npos; at = text.find('%', at + name.size()))
    text.replace(at, 1, name);
  return text;
}

Index read_index(std::istream& in) {
  Index index;
  std::string part;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("version ")) index.version = line.substr(8);
    else if (line.starts_with('[')) part = line.substr(1, line.size() - 2);
    if (line.starts_with('#') || part.empty() || line.starts_with('[')) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) index.parts[part].push_back(word);
  }
  return index;
}

// Gives the family one name for each name that PyTorch's index lists, with what the family's own lines say of
// it. `unlisted` gets own names that the index lacks.
void complete(Family& family, const std::vector<std::string>& index, const std::vector<std::string>& defaults,
              std::vector<std::string>& lines) {
  const std::vector<Name> own = std::exchange(family.names, {});
  std::vector<bool> used(own.size());
  for (const std::string& listed : index) {
    const auto found = std::find_if(own.begin(), own.end(), [&](const Name& o) {
      return o.pytorch.ends_with('*') ? listed.starts_with(o.pytorch.substr(0, o.pytorch.size() - 1))
                                      : listed == o.pytorch;
    });
    Name& name = family.names.emplace_back(found == own.end() ? Name{listed} : *found);
    name.pytorch = listed;
    if (found != own.end()) used[static_cast<std::size_t>(found - own.begin())] = true;
    // A name that is said to be absent is looked for as well.
    if (name.candidates.empty())
      for (const std::string& c : defaults) name.candidates.push_back(compiled(replaced(c, listed), lines));
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    if (!used[i]) family.unlisted += own[i].pytorch + " ";
  family.complete = true;
}

std::vector<Family> read_names(std::istream& in, const Index& index, std::vector<std::string>& lines) {
  std::vector<Family> families;
  std::vector<std::string> defaults;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      const auto end = line.find("] ");
      families.push_back({line.substr(1, end - 1)});
      defaults = split_candidates(line.substr(end + 2));
      continue;
    }
    if (line.starts_with(kAllOf)) {
      complete(families.back(), index.parts.at(line.substr(kAllOf.size())), defaults, lines);
      continue;
    }
    const auto arrow = line.find(" => ");
    if (arrow != std::string::npos) {
      Name& name = families.back().names.emplace_back(Name{line.substr(0, arrow)});
      if (const std::string rest = line.substr(arrow + 4); rest.starts_with(kNotThere)) {
        name.reason = rest.substr(kNotThere.size());
        name.instead = code_of(name.reason, lines);
        continue;
      }
      for (const std::string& c : split_candidates(line.substr(arrow + 4)))
        name.candidates.push_back(compiled(c, lines));
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      Name& name = families.back().names.emplace_back(Name{word});
      for (const std::string& c : defaults) name.candidates.push_back(compiled(replaced(c, word), lines));
    }
  }
  return families;
}

// The tables of the page.
struct Page {
  std::string text;
  std::string summary;  // a row for each family that has all names of PyTorch's
  std::string wrong;    // names that are not there without a reason or with a wrong one, and others
  std::size_t chosen_found = 0, chosen = 0;  // of the families of our choice
};
Page tables(const std::vector<Family>& families, const std::map<std::size_t, std::string>& errors) {
  Page page;
  for (const Family& family : families) {
    std::size_t found = 0;
    std::string absent;
    page.text += "\n## " + family.heading + "\n\n| PyTorch | Tapestry |\n|---|---|\n";
    for (const Name& name : family.names) {
      std::string ours;
      for (const Candidate& c : name.candidates)
        if (!errors.contains(c.line)) ours += (ours.empty() ? "" : ", ") + c.shown;
      found += !ours.empty();
      if (ours.empty()) absent += (absent.empty() ? "`" : ", `") + name.pytorch + "`";
      if (ours.empty() == name.reason.empty()) page.wrong += name.pytorch + " ";
      for (const Candidate& c : name.instead)
        if (errors.contains(c.line)) page.wrong += c.shown + " ";
      page.text += "| `" + name.pytorch + "` | " +
                   (ours.empty() ? "not there" + (name.reason.empty() ? "" : ": " + name.reason) : ours) +
                   " |\n";
    }
    page.wrong += family.unlisted;
    if (family.complete)
      page.summary += "- " + family.heading + ": " + std::to_string(found) + " of " +
                      std::to_string(family.names.size()) + " are there, and not " + absent + ".\n";
    else page.chosen += family.names.size(), page.chosen_found += found;
  }
  return page;
}

// Names that exist and names that do not, as a test of the test.
constexpr const char* kPlantedIndex =
    "# a comment\nversion 7.5\n\n[part]\nLinear LazyA\nLazyB GELU Softmax\nNone\n";
constexpr const char* kPlanted =
    "# a comment\n[Some] nn::%, x.%\nLinear Linaer softmax\n"
    "item => x.item, x.items\nno => `x.sum(\"a\")`, `no(x)`\nyes => `x.sum(1)`, group.all_reduce, "
    "group.abort_all\nlater => not there: it is too early\nof itself => (always)\n"
    "[All] nn::%\nLazy* => not there: `nn::Linear` or `x.sum(1)`\nGELU => not there: but it is\n"
    "Softmax => x.softmax\nOther => nn::Linear\nNone => not there: `nn::None`, `x.sum()`, `x.nothing()`\n"
    "all of part\n";
constexpr const char* kPlantedPage =
    "\n## Some\n\n| PyTorch | Tapestry |\n|---|---|\n| `Linear` | `nn::Linear` |\n| `Linaer` | not there |\n"
    "| `softmax` | `x.softmax()` |\n| `item` | `x.item()` |\n| `no` | not there |\n"
    "| `yes` | `x.sum(1)`, `group.all_reduce()` |\n| `later` | not there: it is too early |\n| `of itself` | "
    "(always) |\n"
    "\n## All\n\n| PyTorch | Tapestry |\n|---|---|\n| `Linear` | `nn::Linear` |\n"
    "| `LazyA` | not there: `nn::Linear` or `x.sum(1)` |\n| `LazyB` | not there: `nn::Linear` or `x.sum(1)` "
    "|\n"
    "| `GELU` | `nn::GELU` |\n| `Softmax` | `x.softmax()` |\n"
    "| `None` | not there: `nn::None`, `x.sum()`, `x.nothing()` |\n";

}  // namespace

TEST_CASE("every name of PyTorch in the list is beside ours, or is said to be not there") {
  std::ifstream names(tests::source_path("tests/structure/pytorch_names.txt")),
      listed(tests::source_path("tests/structure/pytorch_index.txt"));
  REQUIRE(names);
  REQUIRE(listed);
  std::istringstream planted(kPlanted), planted_listed(kPlantedIndex);
  const Index index = read_index(listed), planted_index = read_index(planted_listed);
  std::vector<std::string> lines;  // compiled together, because parsing the headers takes most of the time
  const std::vector<Family> families = read_names(names, index, lines),
                            planted_families = read_names(planted, planted_index, lines);
  const auto errors = structure::compile_errors(lines);
  const Page found = tables(families, errors), planted_page = tables(planted_families, errors);
  CHECK(planted_index.version == "7.5");
  CHECK(planted_page.text == kPlantedPage);
  CHECK(planted_page.summary == "- All: 3 of 6 are there, and not `LazyA`, `LazyB`, `None`.\n");
  CHECK(planted_page.chosen_found == 5);
  CHECK(planted_page.chosen == 8);
  CHECK(planted_page.wrong == "Linaer no GELU `nn::None` `x.nothing()` Other ");
  CHECK(found.wrong == "");
  for (const auto& [part, all] : index.parts)  // every part is a family
    CHECK(std::count_if(families.begin(), families.end(), [&](const Family& f) {
            return f.complete && f.heading.ends_with(": " + part) && f.names.size() == all.size();
          }) == 1);

  const std::string page =
      "# PyTorch's names and ours\n\n"
      "This page lists names of PyTorch, and the names of Tapestry beside them. [From PyTorch]"
      "(../tutorials/from-pytorch.md) shows how calls are written, and what differs.\n\n"
      "The first two tables have every module class of torch.nn and every function of torch.nn.functional "
      "that PyTorch " +
      index.version + " lists:\n\n" + found.summary +
      "\nThe other tables have names that we chose, because programs use them most: " +
      std::to_string(found.chosen_found) + " of these " + std::to_string(found.chosen) +
      " are there.\n\n"
      "tests/structure/from_pytorch_test.cpp writes the page from tests/structure/pytorch_names.txt and "
      "pytorch_index.txt. It compiles each name of the right column, so all of them exist. A name that is "
      "\"not there\" has the reason beside it, or what to write instead. To update the page, run "
      "`TAPESTRY_WRITE_DOCS=1 build/ci/bin/tests_structure \"every name of PyTorch*\"`.\n\n"
      "Names without `::` are in the namespace `tapestry`. `x`, `y`, `w` and `i` are Tensors, `F` is the "
      "namespace `nn::functional`, `module` is an `nn::Module`, `group` a `distributed::ProcessGroup`, and "
      "`ddp` a `distributed::DistributedDataParallel`.\n" +
      found.text;
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
