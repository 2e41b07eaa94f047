// An operation is one row: docs/tutorials/add-an-op.md counts the edits that an operation takes. This test
// counts them in the tree.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/structure/source_tree.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace {

using Edits = std::map<std::string, int>;  // by file

bool has_word(const std::string& line, const std::string& word) {
  const auto in_word = [&](std::size_t i) {
    return i < line.size() && (std::isalnum(static_cast<unsigned char>(line[i])) || line[i] == '_');
  };
  for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1))
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  return false;
}

/// How often the library and the tests name an operation by one of these words. Mentions that are at most 8
/// lines apart are one edit, and comments do not count.
Edits edits_of(const std::vector<structure::SourceFile>& tree, const std::vector<std::string>& words) {
  constexpr int kApart = 8;
  Edits edits;
  for (const auto& file : tree) {
    if (file.path.starts_with("apps/") || file.path.starts_with("tools/") ||
        file.path == "tests/structure/operation_edits_test.cpp")
      continue;
    int line = 0, last = -kApart - 1;
    for (std::size_t begin = 0; begin < file.text.size(); ++line) {
      const std::size_t end = std::min(file.text.find('\n', begin), file.text.size());
      std::string text = file.text.substr(begin, end - begin);
      text.resize(std::min(text.find("//"), text.size()));
      if (std::any_of(words.begin(), words.end(), [&](const std::string& w) { return has_word(text, w); })) {
        if (line - last > kApart) ++edits[file.path];
        last = line;
      }
      begin = end + 1;
    }
  }
  return edits;
}
int sum(const Edits& edits) {
  int n = 0;
  for (const auto& [file, count] : edits) n += count;
  return n;
}

}  // namespace

TEST_CASE("an operation takes at most 9 edits in 7 files, tests included") {
  const auto tree = structure::read_tree(tests::source_path(""));
  // Files that call the operation to compute something else.
  const std::set<std::string> callers = {"autograd/ops/functions.cpp", "autograd/ops/loss.cpp",
                                         "nn/distributions.cpp", "nn/losses.cpp",
                                         "tests/structure/methods_test.cpp"};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"softplus", "Softplus"}, {"hardswish", "Hardswish"}}) {
    Edits edits = edits_of(tree, words);
    if (words[0] == "softplus")
      for (const std::string& file : callers) CHECK(edits.erase(file) == 1);
    std::string found;
    for (const auto& [file, count] : edits) found += file + ": " + std::to_string(count) + "\n";
    INFO(words[0] << "\n" << found);
    CHECK(edits.contains("kernels/ops/functions.h"));
    CHECK(sum(edits) <= 9);
    CHECK(edits.size() <= 7);
  }
}

TEST_CASE("the count of edits takes words, not parts of words or comments") {
  structure::SourceFile file;
  file.path = "nn/a.cpp";
  file.text = "soft\n// mish\nmishap(x);\nreturn mish(x);\n" + std::string(20, '\n') + "add(\"mish\");\n";
  CHECK(edits_of({file}, {"mish"}) == Edits{{"nn/a.cpp", 2}});
}
