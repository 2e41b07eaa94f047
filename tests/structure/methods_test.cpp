// Tensor has a method for each function of autograd/ops that PyTorch has as a method of torch.Tensor.
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/source.h"

namespace {

using Names = std::set<std::string>;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The last name before each parenthesis of the lines for which `takes` is true: the functions that they
// declare.
template <class F>
Names declared(const std::string& text, const F& takes) {
  Names names;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const auto open = line.find('(');
    if (open == std::string::npos || !takes(line)) continue;
    auto begin = open;
    while (begin > 0 && in_name(line[begin - 1])) --begin;
    // `(max)(` is declared in parentheses, because of macros of that name.
    if (begin == open) names.insert(line.substr(open + 1, line.find(')') - open - 1));
    else names.insert(line.substr(begin, open - begin));
  }
  return names;
}
Names functions_in(const std::string& header) {
  return declared(header, [](const std::string& line) {
    for (const char* start : {"Tensor", "inline Tensor", "std::", "inline std::", "Unique", "bool"})
      if (line.starts_with(start)) return true;
    return false;
  });
}
Names methods_in(const std::string& header) {
  const std::string begin = "class Tensor {";
  REQUIRE(header.find(begin) != std::string::npos);
  return declared(header.substr(header.find(begin)),
                  [](const std::string& line) { return line.starts_with("  ") && line[2] != ' '; });
}

// What PyTorch has as a method, and we have not.
const std::map<std::string, std::string> kNotMethods = {
    {"lstsq", "PyTorch has removed it"},
    {"solve", "PyTorch has removed it"},
    {"svd", "PyTorch's deprecated method returns V and not its transpose"},
};

Names missing(const Names& functions, const Names& methods, const Names& pytorch) {
  Names names;
  for (const std::string& f : functions)
    if (pytorch.contains(f) && !methods.contains(f) && !kNotMethods.contains(f)) names.insert(f);
  Names all = functions;
  all.insert(methods.begin(), methods.end());
  for (const std::string& f : all)
    if (pytorch.contains(f + "_") && !methods.contains(f + "_")) names.insert(f + "_");
  return names;
}

}  // namespace

TEST_CASE("every function that PyTorch has as a method is a method of Tensor, also in place") {
  Names pytorch, functions;
  std::istringstream lines(text_of(tests::source_path("tests/structure/pytorch_methods.txt")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) pytorch.insert(word);
  }
  REQUIRE(pytorch.size() > 400);
  for (const auto& entry : std::filesystem::directory_iterator(tests::source_path("autograd/ops")))
    if (entry.path().extension() == ".h") functions.merge(functions_in(text_of(entry.path().string())));
  REQUIRE(functions.contains("hsplit"));
  REQUIRE(functions.contains("max"));
  const Names methods = methods_in(text_of(tests::source_path("core/tensor.h")));
  for (const std::string& name : missing(functions, methods, pytorch))
    FAIL_CHECK("torch.Tensor." << name
                               << " has no counterpart; declare it in core/tensor.h, or add the reason here");
  for (const auto& [name, reason] : kNotMethods) CHECK(!methods.contains(name));
  // A test of the test.
  CHECK(missing({"hsplit", "relu", "softplus"}, {"relu", "clamp"}, {"hsplit", "relu", "relu_", "clamp_"}) ==
        Names{"clamp_", "hsplit", "relu_"});
}
