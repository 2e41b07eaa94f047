// Code between single backticks in the documentation. tests/docs/docs.cmake compiles the blocks. Here a
// sentence may show a part of a call, or name a variable that only the reader has. So an error counts only if
// it says that a class or function of Tapestry exists in another form.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "tests/structure/compile_probe.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace {

namespace fs = std::filesystem;

struct Span {
  std::string place, code;
};

bool could_be_code(const std::string& text) {
  for (const char* pair : {"()", "{}", "[]"})
    if (std::count(text.begin(), text.end(), pair[0]) != std::count(text.begin(), text.end(), pair[1]))
      return false;
  static const std::regex call(R"(\w\(|::\w)");
  return text.find('\\') == std::string::npos && std::regex_search(text, call);
}

// The code in lines of prose. The first column of a table whose heading is PyTorch is not C++.
void read_spans(std::istream& page, const std::string& name, std::vector<Span>& spans) {
  static const std::regex span("`([^`]+)`");
  bool block = false, pytorch = false;
  int number = 0;
  for (std::string line; std::getline(page, line);) {
    ++number;
    if (line.starts_with("```")) block = !block;
    if (!line.starts_with("|")) pytorch = false;
    if (line.starts_with("| PyTorch")) pytorch = true;
    if (block) continue;
    // Columns are separated by " | "; code may contain "||".
    const std::string prose = pytorch ? line.substr(std::min(line.find(" | "), line.size())) : line;
    for (std::sregex_iterator it(prose.begin(), prose.end(), span), end; it != end; ++it)
      if (could_be_code((*it)[1])) spans.push_back({name + ":" + std::to_string(number), (*it)[1]});
  }
}

std::vector<std::string> wrong(const std::vector<Span>& spans) {
  std::vector<std::string> lines;
  for (const Span& s : spans) lines.push_back(structure::as_function(lines.size(), s.code));
  // g++ and clang. Names in kernels are private, so their headers are not included.
  static const std::regex form(
      "no matching (member )?function for call to .tapestry::|has no member named|is not a member of "
      ".tapestry::|"
      "no matching member function for call|no matching constructor for|too many arguments to function call|"
      "no (member|type) named .* in (namespace )?.tapestry::");
  std::vector<std::string> findings;
  for (const auto& [line, error] : structure::compile_errors(lines))
    if (std::regex_search(error, form) && error.find("tapestry::kernels") == std::string::npos)
      findings.push_back(spans[line].place + ": `" + spans[line].code + "`: " + error);
  return findings;
}

// Code that does not compile, as a test of the test.
constexpr const char* kPlanted =
    "`Device(\"cuda\", i)` and `Device(DeviceType::cuda, 1)`, `step()`, `dp(...)`\n"
    "| PyTorch | Tapestry |\n| `x.flip(0, 1)` | `x.summ(1)`, `x.sum(1)` |\n"
    "`x.flip(0, 1)`, `nn::Linaer(x)`, `x.sum(`, `F::relu(x)`, `reader.read(1)`\n"
    "```cpp\n`x.nothing()`\n```\n";
constexpr const char* kPlantedFindings =
    "planted:1: `Device(\"cuda\", i)`; planted:3: `x.summ(1)`; planted:4: `x.flip(0, 1)`; planted:4: "
    "`nn::Linaer(x)`; ";

}  // namespace

TEST_CASE("code between backticks in the documentation uses classes and functions as they are") {
  std::vector<Span> spans;
  const fs::path root = tests::source_path("");
  std::vector<fs::path> pages = {root / "README.md"};
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& path : pages) {
    // These pages show private names, and code that does not exist: the new operation, and planted bugs.
    // from_pytorch_test.cpp compiles the names of the third page.
    const std::string name = fs::relative(path, root).generic_string();
    if (name == "docs/tutorials/add-an-op.md" || name == "docs/benchmarks/mutants.md" ||
        name == "docs/reference/from-pytorch.md")
      continue;
    std::ifstream page(path);
    read_spans(page, name, spans);
  }
  CHECK(spans.size() > 150);
  std::istringstream planted(kPlanted);
  read_spans(planted, "planted", spans);

  std::string found_planted;
  for (const std::string& finding : wrong(spans)) {
    if (finding.starts_with("planted:")) found_planted += finding.substr(0, finding.find("`: ")) + "`; ";
    else FAIL_CHECK(finding);
  }
  CHECK(found_planted == kPlantedFindings);
}
