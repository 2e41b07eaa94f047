#include "tests/structure/compile_probe.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <stdexcept>

#include "tests/support/files.h"

namespace structure {

std::string as_function(std::size_t number, const std::string& code) {
  return "void f" + std::to_string(number) + "(PROBE_VARIABLES) { using namespace tapestry::indexing; " +
         code + "; }";
}

std::map<std::size_t, std::string> compile_errors(const std::vector<std::string>& lines) {
  const tests::TempDir folder;
  const std::string source = folder / "probe.cpp", log = folder / "errors";
  std::ofstream file(source);
  file << "#include \"tapestry/tapestry.h\"\nusing namespace tapestry;\nnamespace F = "
          "tapestry::nn::functional;\n"
       << "#define PROBE_VARIABLES Tensor x, Tensor y, Tensor w, Tensor v, Tensor i, Tensor mask, Tensor "
          "loss, int n, "
       << "nn::Linear& model, nn::Linear& net, optim::SGD& optimizer, data::TensorDataset& samples, "
       << "distributed::ProcessGroup& group, std::function<data::Example(std::vector<data::Example>&&)> "
          "merge\n"
       << "#line 1 \"probe\"\n";
  for (const std::string& line : lines) file << line << "\n";
  file.close();
#ifdef __clang__
  const std::string all_errors = " -ferror-limit=0";
#else
  const std::string all_errors = " -fmax-errors=0 -fno-diagnostics-show-caret -fdiagnostics-color=never";
#endif
  const std::string command = std::string("LC_ALL=C ") + TAPESTRY_CXX_COMPILER + " -std=c++20 -fsyntax-only -w" +
                              all_errors + " -I" + TAPESTRY_BUILD_DIR + "/include " + source + " > " + log +
                              " 2>&1";
  const int status = std::system(command.c_str());
  if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
    throw std::runtime_error("the compiler failed: " + command);

  std::map<std::size_t, std::string> errors;
  static const std::regex error(R"(^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$)");
  std::ifstream in(log);
  for (std::string text; std::getline(in, text);) {
    std::smatch match;
    if (!std::regex_match(text, match, error)) continue;
    if (match[1] != "probe") throw std::runtime_error("an error outside of the lines: " + text);
    errors.emplace(std::stoul(match[2]) - 1, match[3]);
  }
  if (errors.empty() && WEXITSTATUS(status) != 0) throw std::runtime_error("the compiler failed: " + command);
  return errors;
}

}  // namespace structure
