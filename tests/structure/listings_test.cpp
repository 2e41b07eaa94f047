// Blocks fenced as ```cpp listing in the Markdown pages are excerpts of the sources. This test compares them
// with the sources, apart from spaces, line breaks and comments.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/structure/source_tree.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace fs = std::filesystem;

namespace {

std::string code_of(const std::string& text) {
  std::string code;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size());
    else if (!std::isspace(static_cast<unsigned char>(text[i]))) code += text[i];
  }
  return code;
}

/// The listings of a page that are in none of the sources, by their first lines.
std::vector<std::string> stale_listings(const std::string& name, const std::string& page,
                                        const std::vector<std::string>& sources) {
  const std::string fence = "\n```cpp listing\n";
  std::vector<std::string> stale;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1)) {
    const std::size_t begin = at + fence.size(), end = page.find("\n```", begin);
    const std::string listing = page.substr(begin, end - begin), code = code_of(listing);
    const bool found =
        !code.empty() && std::any_of(sources.begin(), sources.end(),
                                     [&](const std::string& s) { return s.find(code) != std::string::npos; });
    if (!found) stale.push_back(name + ": " + listing.substr(0, listing.find('\n')));
  }
  return stale;
}

}  // namespace

TEST_CASE("listings in the documentation are excerpts of the sources") {
  const std::string kernel = "/// Adds.\nint add(int a, int b) { return a + b; }\n";
  const auto stale = [&](const std::string& listing) {
    return stale_listings("page", "Text\n```cpp listing\n" + listing + "\n```\n", {code_of(kernel)}).size();
  };
  CHECK(stale("int add(int a,\n        int b) {  // a comment\n  return a + b;\n}") == 0);
  CHECK(stale("int add(int a, int b) { return a - b; }") == 1);
  CHECK(stale("") == 1);

  const fs::path root = tests::source_path("");
  std::vector<std::string> sources, found;
  for (const auto& file : structure::read_tree(root)) sources.push_back(code_of(file.text));
  std::vector<fs::path> pages{root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& page : pages) {
    std::ifstream in(page);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    for (const std::string& s : stale_listings(page.filename().string(), text, sources)) found.push_back(s);
  }
  CHECK(found == std::vector<std::string>{});
}
