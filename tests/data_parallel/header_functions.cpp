#include "tests/data_parallel/header_functions.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "tests/support/source.h"

namespace tapestry::test::divided {
namespace {

// Takes away comments and preprocessor lines.
std::string code_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string code;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line[first] != '#') code += line.substr(0, line.find("//")) + "\n";
  }
  return code;
}

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text)
    if (in_name(c)) words.back() += c;
    else if (!words.back().empty()) words.emplace_back();
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

void add_functions(const std::string& code, std::set<std::string>& to) {
  static const std::set<std::string> kTypes = {"Parameter",  "Module", "StateDict",     "Optimizer",
                                               "TensorSlot", "Buffer", "LanguageModel", "Group",
                                               "Stage",      "M",      "Training",      "ShardedTraining"};
  static const std::set<std::string> kWhole = {"Module", "Optimizer", "GradScaler", "AveragedModel", "init"};
  static const std::set<std::string> kNoNames = {"requires", "static_assert", "operator",
                                                 "decltype", "alignas",       "void"};
  struct Scope {
    std::string name;  // empty for the body of a function
    bool is_public, is_namespace;
  };
  std::vector<Scope> scopes;
  std::size_t begin = 0;  // of the declaration
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '{') {
      std::string head = code.substr(begin, i - begin);
      if (const std::size_t t = head.find("template <"); t != std::string::npos) {
        std::size_t end = t + 9;
        for (int depth = 0; end < head.size(); ++end)
          if ((depth += (head[end] == '<') - (head[end] == '>')) == 0) break;
        head.erase(t, end - t + 1);
      }
      const std::vector<std::string> words = words_of(head);
      const auto is = [&](const char* word) { return std::find(words.begin(), words.end(), word); };
      Scope scope{"", true, false};
      if (head.find('(') == std::string::npos && is("enum") == words.end())
        for (const char* kind : {"namespace", "class", "struct"})
          if (auto at = is(kind); at != words.end() && at + 1 != words.end()) {
            scope.is_namespace = kind == std::string("namespace");
            scope.name = scope.is_namespace ? words.back() : *(at + 1);
            scope.is_public = kind != std::string("class");
            break;
          }
      scopes.push_back(scope);
      begin = i + 1;
    } else if (c == '}') {
      if (!scopes.empty()) scopes.pop_back();
      begin = i + 1;
    } else if (c == ';') {
      begin = i + 1;
    } else if (c == ':' && !scopes.empty()) {
      const std::vector<std::string> words = words_of(std::string_view(code).substr(begin, i - begin));
      if (words.size() == 1 && (words[0] == "public" || words[0] == "private" || words[0] == "protected")) {
        scopes.back().is_public = words[0] == "public";
        begin = i + 1;
      }
    } else if (c == '(') {
      std::size_t end = i + 1;
      for (int depth = 1; end < code.size() && depth > 0; ++end)
        depth += (code[end] == '(') - (code[end] == ')');
      std::size_t first = i;
      while (first > 0 && in_name(code[first - 1])) --first;
      const std::string name = code.substr(first, i - first);
      const bool declares = std::all_of(scopes.begin(), scopes.end(), [](const Scope& s) {
        return !s.name.empty() && s.is_public && s.name != "detail";
      });
      if (declares && !name.empty() && code[first - 1] != '~' && !kNoNames.contains(name)) {
        const Scope& in = scopes.back();
        const bool qualified = !in.is_namespace || in.name == "init";
        const std::vector<std::string> taken = words_of(std::string_view(code).substr(i, end - i));
        if ((qualified && kWhole.contains(in.name)) ||
            std::any_of(taken.begin(), taken.end(), [&](const std::string& w) { return kTypes.contains(w); }))
          to.insert((qualified ? in.name + "::" : "") + name);
      }
      i = end - 1;
    }
  }
}

std::set<std::string> functions_of_headers() {
  std::set<std::string> functions;
  for (const char* folder : {"nn", "distributed"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tests::source_path(folder)))
      if (entry.path().extension() == ".h" && entry.path().string().find("/internal/") == std::string::npos)
        add_functions(code_of(entry.path()), functions);
  return functions;
}

}  // namespace tapestry::test::divided
