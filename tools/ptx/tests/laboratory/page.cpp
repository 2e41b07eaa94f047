#include "tapestry/tools/ptx/tests/laboratory/page.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/laboratory/command.h"

namespace {

/// The words of a text, without the margin of reports, whose lines break elsewhere if paths are longer.
std::string words(const std::string& text) {
  std::istringstream stream(text);
  std::string result;
  for (std::string word; stream >> word;)
    if (word != "=========") result += (result.empty() ? "" : " ") + word;
  return result;
}

}  // namespace

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

int check_quoted_commands(const std::string& page) {
  std::ifstream in(page);
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
  return commands;
}
