// The commands of the tutorials about the PTX machine print what the pages say.
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "tests/laboratory/command.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace {

/// The words of a text, without the margin of reports, whose lines break elsewhere if paths are longer.
std::string words(const std::string& text) {
  std::istringstream stream(text);
  std::string result;
  for (std::string word; stream >> word;)
    if (word != "=========") result += (result.empty() ? "" : " ") + word;
  return result;
}
/// Whether the text is the pattern, in which "..." stands for anything.
bool matches(const std::string& text, const std::string& pattern) {
  std::size_t at = 0, from = 0;
  bool anchored = true;
  for (;;) {
    const std::size_t dots = pattern.find("...", from), end = std::min(dots, pattern.size());
    const std::string piece = pattern.substr(from, end - from);
    const bool last = dots == std::string::npos;
    const std::size_t found = last && !anchored ? text.rfind(piece) : text.find(piece, at);
    if (found == std::string::npos || found < at || (anchored && found != at)) return false;
    at = found + piece.size();
    if (last) return at == text.size();
    from = dots + 3;
    anchored = false;
  }
}

}  // namespace

TEST_CASE("the commands of the tutorials print what the pages quote") {
  CHECK(matches("one two three", "one ... three"));
  CHECK(matches("one two three", "..."));
  CHECK_FALSE(matches("one two three", "one ... two"));
  CHECK_FALSE(matches("one two three", "two ... three"));
  for (const std::string page : {"cuda-without-a-gpu", "how-a-kernel-is-proved"}) {
    std::ifstream in(tests::source_path("docs/tutorials/" + page + ".md"));
    const std::string text(std::istreambuf_iterator<char>(in), {}), fence = "```sh\ntapestry-ptx ";
    int commands = 0;
    for (std::size_t at = text.find(fence); at != std::string::npos; at = text.find(fence, at + 1)) {
      const std::size_t begin = at + fence.size(), end = text.find('\n', begin);
      const std::string command = text.substr(begin, end - begin), quoted = "\n```\n```text\n";
      REQUIRE(text.compare(end, quoted.size(), quoted) == 0);
      const std::size_t output = end + quoted.size(), stop = text.find("```", output);
      const std::string expected = words(text.substr(output, stop - output));
      // What the program prints comes first, because the order of two streams is not certain.
      const CommandResult found = tapestry_ptx(command + " 2>errors; cat errors");
      INFO(page << ": " << command << "\n" << found.output);
      CHECK(matches(words(found.output), expected));
      ++commands;
    }
    CHECK(commands > 0);
  }
}
