// Runs the documentation's commands. A block fenced as ```sh run must print the text of the next block, which
// is fenced as ```text output. The blocks of a page run in one folder, in the order of the page.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/docs/in_temp_dir.h"
#include "tests/docs/prints.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

TEST_CASE("the commands of pages print what the pages say", "[.commands]") {
  std::vector<std::filesystem::path> pages;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tests::source_path("docs")))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  std::sort(pages.begin(), pages.end());
  int blocks = 0;
  for (const auto& page : pages) {
    const std::string text = tests::read_file(page.string()), fence = "\n```sh run\n",
                      output = "\n```text output\n";
    const tests::InTempDir here;
    for (std::size_t at = text.find(fence); at != std::string::npos;
         at = text.find(fence, at + 1), ++blocks) {
      const std::size_t begin = at + fence.size(), end = text.find("\n```", begin);
      const std::size_t quoted = text.find("\n```", end + 4);
      const std::string commands = text.substr(begin, end - begin);
      const std::string place =
          page.filename().string() + ":" +
          std::to_string(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n') +
                         1);
      if (quoted == std::string::npos || text.compare(quoted, output.size(), output) != 0)
        FAIL(place << ": the next block must begin with ```text output");
      const std::size_t first = quoted + output.size();
      tests::prints(place, text.substr(first, text.find("\n```", first) - first),
                    [&] { tests::run_program(commands); });
    }
  }
  CHECK(blocks > 0);
}
