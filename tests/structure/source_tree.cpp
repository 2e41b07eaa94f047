#include "tests/structure/source_tree.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace structure {
namespace {

struct RemovedPhrase {
  std::string phrase, instead, folder = "";  // below `folder` only
};
const std::vector<RemovedPhrase> kRemovedPhrases = {
    {"Not in tapestry.h", "move a private header below internal/, and include a public one in tapestry.h"},
    {"kernel_device", "the slot passes each kernel a LaunchContext with the device"},
    {"const_cast<void*>", "kernels take typed const and mutable arrays (kernels/view.h)", "autograd/ops/"},
};

bool starts_with_any(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& p) { return text.starts_with(p); });
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh", ".cmake", ".py", ".sh"};
  return extensions.count(path.extension().string()) || path.filename() == "CMakeLists.txt" ||
         (path.extension().empty() && path.parent_path().filename() == "tools");
}

bool in_library(const std::string& path) {
  return starts_with_any(path, {"core/", "kernels/", "autograd/", "nn/", "data/", "distributed/"});
}

std::string folder_of(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == std::string::npos) return "";
  const std::string top = path.substr(0, slash);
  const auto next = path.find('/', slash + 1);
  return top == "distributed" && next != std::string::npos ? path.substr(0, next) : top;
}

// The folders that `folder` may include, besides itself.
std::vector<std::string> may_use(const std::string& folder) {
  if (folder == "core") return {};
  if (folder == "kernels" || folder == "data" || folder == "distributed/comm") return {"core"};
  if (folder == "autograd") return {"core", "kernels"};
  if (folder == "nn") return {"core", "kernels", "autograd"};
  if (folder == "distributed/launch" || folder == "distributed/mesh") return {"core", "distributed/comm"};
  if (folder == "distributed/common")
    return {"core", "kernels", "autograd", "nn", "distributed/comm", "distributed/mesh"};
  if (folder == "distributed/strategy")
    return {
        "core", "kernels", "autograd", "nn", "distributed/comm", "distributed/mesh", "distributed/common"};
  if (folder == "distributed/fsdp")  // ShardedDataParallel scatters and gathers as DataParallel does
    return {"core",
            "kernels",
            "autograd",
            "nn",
            "distributed/comm",
            "distributed/mesh",
            "distributed/common",
            "distributed/strategy",
            "distributed/data_parallel"};
  if (folder == "distributed/ddp" || folder == "distributed/data_parallel" || folder == "distributed/zero" ||
      folder == "distributed/checkpoint")
    return {"core",
            "kernels",
            "autograd",
            "nn",
            "distributed/comm",
            "distributed/mesh",
            "distributed/common",
            "distributed/strategy"};
  if (folder == "distributed/placement")
    return {"core", "kernels", "autograd", "nn", "distributed/comm", "distributed/mesh"};
  if (folder == "distributed/pipeline" || folder == "distributed/tensor" || folder == "distributed/context" ||
      folder == "distributed/expert")
    return {"core",
            "kernels",
            "autograd",
            "nn",
            "distributed/comm",
            "distributed/mesh",
            "distributed/placement",
            "distributed/common",
            "distributed/strategy"};
  if (folder == "distributed/planner")
    return {"core",
            "kernels",
            "autograd",
            "nn",
            "distributed/comm",
            "distributed/mesh",
            "distributed/common",
            "distributed/context",
            "distributed/data_parallel",
            "distributed/ddp",
            "distributed/expert",
            "distributed/fsdp",
            "distributed/pipeline",
            "distributed/strategy",
            "distributed/tensor"};
  return {"core", "kernels", "autograd", "nn", "data", "distributed"};  // apps and tapestry.h
}

SourceFile read_file(const fs::path& root, const fs::path& path) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  SourceFile file;
  file.path = fs::relative(path, root).generic_string();
  std::ifstream in(path);
  file.text.assign(std::istreambuf_iterator<char>(in), {});
  std::istringstream lines(file.text);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    ++file.lines;
    if (line.find("include") != std::string::npos && std::regex_match(line, match, include))
      file.includes.push_back({match[2], match[1] == "\"", file.lines});
  }
  return file;
}

std::string at(const SourceFile& file, const Include& include) {
  return file.path + ":" + std::to_string(include.line) + ": ";
}

// Returns the path of an included file below the project's root: "core/tensor.h" for
// "tapestry/core/tensor.h". Empty for files of other projects.
std::string project_path(const Include& include) {
  constexpr std::string_view prefix = "tapestry/";
  if (!include.file.starts_with(prefix)) return include.file.starts_with("tests/") ? include.file : "";
  return include.file.substr(prefix.size());
}

// True for the headers with which a program compiles and launches CUDA kernels of its own.
bool is_public_device_header(const std::string& path) {
  return path == "kernels/cuda/portable.cuh" || path == "kernels/cuda/launch.cuh";
}

bool is_private(const std::string& path) {
  return in_library(path) && (path.find("/internal/") != std::string::npos ||
                              (path.starts_with("kernels/") && !is_public_device_header(path)));
}

// The text with the lines of each comment joined, so that a phrase is found across a line break.
std::string with_joined_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string joined;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find_first_not_of(" \t");
    const bool comment =
        start != std::string::npos && (line[start] == '#' || line.compare(start, 2, "//") == 0);
    const std::size_t words = comment ? line.find_first_not_of("/# \t", start) : 0;
    joined += comment ? " " : "\n";
    if (words != std::string::npos) joined += line.substr(words);
  }
  return joined;
}

// The words and punctuation of C++ code, without comments, literals and preprocessor lines.
std::vector<std::string> tokens_of(const std::string& code) {
  std::vector<std::string> tokens;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  bool line_begins = true;
  for (std::size_t i = 0; i < code.size();) {
    const char c = code[i];
    const auto skip_past = [&](const std::string& end, std::size_t from) {
      const std::size_t found = code.find(end, from);
      i = found == std::string::npos ? code.size() : found + end.size();
    };
    if (c == '\n' || c == ' ' || c == '\t') {
      line_begins = line_begins || c == '\n';
      ++i;
      continue;
    }
    if (c == '#' && line_begins) {
      do skip_past("\n", i);
      while (i >= 2 && i < code.size() && code[i - 2] == '\\');
    } else if (code.compare(i, 2, "//") == 0) {
      skip_past("\n", i);
      line_begins = true;
      continue;
    } else if (code.compare(i, 2, "/*") == 0) {
      skip_past("*/", i);
    } else if (code.compare(i, 2, "R\"") == 0) {
      const std::size_t open = code.find('(', i);
      skip_past(")" + code.substr(i + 2, open - i - 2) + '"', open);
    } else if (c == '"' || (c == '\'' && (i == 0 || !is_word(code[i - 1])))) {
      for (++i; i < code.size() && code[i] != c; ++i) i += code[i] == '\\';
      ++i;
    } else if (is_word(c)) {
      const std::size_t begin = i;
      while (i < code.size() && (is_word(code[i]) || code[i] == '\'')) ++i;
      tokens.push_back(code.substr(begin, i - begin));
    } else {
      tokens.emplace_back(1, c);
      ++i;
    }
    line_begins = c == '#' && line_begins;
  }
  return tokens;
}

// The types that a file defines in named namespaces, "tapestry::distributed::Mesh".
std::set<std::string> defined_types(const std::string& code) {
  const std::vector<std::string> tokens = tokens_of(code);
  const auto at = [&](std::size_t i) { return i < tokens.size() ? tokens[i] : std::string(); };
  std::set<std::string> types;
  std::vector<std::string> scopes;  // names of namespaces; "" for anonymous ones and for other braces
  std::string opens;                // the namespace that the next brace opens
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    if (token == "{") {
      scopes.push_back(std::exchange(opens, ""));
    } else if (token == "}") {
      if (!scopes.empty()) scopes.pop_back();
    } else if (token == "namespace") {
      while (at(i + 1) == ":" ||
             (!at(i + 1).empty() && at(i + 1) != "{" && at(i + 1) != ";" && at(i + 1) != "="))
        opens += tokens[++i];
      if (at(i + 1) != "{") opens.clear();
    } else if (token == "struct" || token == "class" || token == "union" || token == "enum") {
      if (at(i + 1) == "class" || at(i + 1) == "struct") ++i;
      while (at(i + 1) == "[" || at(i + 1) == "alignas") {  // attributes
        const std::string close = at(i + 1) == "[" ? "]" : ")";
        while (i + 1 < tokens.size() && (at(i + 1) != close || at(i + 2) == close)) ++i;
        ++i;
      }
      const std::string name = at(++i);
      std::size_t next = i + 1;
      if (at(next) == "final") ++next;
      if (at(next) == ":" && at(next + 1) != ":")
        while (next < tokens.size() && at(next) != "{" && at(next) != ";") ++next;
      const bool named = std::none_of(scopes.begin(), scopes.end(), [](const auto& s) { return s.empty(); });
      if (at(next) != "{" || !named) continue;
      std::string whole;
      for (const std::string& scope : scopes) whole += scope + "::";
      types.insert(whole + name);
    }
  }
  return types;
}

}  // namespace

std::string SourceFile::folder() const { return folder_of(path); }
bool SourceFile::is_header() const { return path.ends_with(".h"); }

std::vector<SourceFile> read_tree(const fs::path& root) {
  std::vector<SourceFile> tree;
  for (const char* top : {"core", "kernels", "autograd", "nn", "data", "distributed", "apps", "tests",
                          "tools", "docs", "cmake"}) {
    if (!fs::is_directory(root / top)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.is_regular_file() && is_source(entry.path())) tree.push_back(read_file(root, entry.path()));
    }
  }
  for (const char* name : {"tapestry.h", "CMakeLists.txt"}) {
    if (fs::exists(root / name)) tree.push_back(read_file(root, root / name));
  }
  std::sort(tree.begin(), tree.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return tree;
}

bool is_public_header(const SourceFile& file) {
  if (file.path == "tapestry.h") return true;
  return file.is_header() && in_library(file.path) && !is_private(file.path);
}

Findings wrong_direction(const std::vector<SourceFile>& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    const bool ships = in_library(file.path) || file.path.starts_with("apps/") || file.path == "tapestry.h";
    if (!ships) continue;
    const std::string from = file.folder();
    for (const Include& include : file.includes) {
      const std::string target = project_path(include);
      const std::string to = folder_of(target);
      if (target.empty() || to == from) continue;
      const auto allowed = may_use(from);
      const bool umbrella = target == "tapestry.h" && !in_library(file.path);
      const bool down = std::any_of(allowed.begin(), allowed.end(),
                                    [&](const std::string& f) { return to == f || to.starts_with(f + "/"); });
      if (!umbrella && !down)
        findings.push_back(at(file, include) + (from.empty() ? file.path : from) + " must not include " +
                           include.file);
    }
  }
  return findings;
}

Findings wrong_form(const std::vector<SourceFile>& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (file.path.starts_with("tests/consumer/project/")) continue;  // stands for a user's project
    for (const Include& include : file.includes) {
      const bool ours = include.file.starts_with("tapestry/") || include.file.starts_with("tests/");
      if (ours != include.quoted)
        findings.push_back(at(file, include) + include.file +
                           (ours ? " belongs to the project: write it in \"quotes\""
                                 : ": write \"tapestry/...\" from the root, or <...> for a file of others"));
    }
  }
  return findings;
}

Findings foreign_headers(const std::vector<SourceFile>& tree) {
  static const std::regex standard("[a-z_]+");
  Findings findings;
  for (const SourceFile& file : tree) {
    // core/clock.h takes the part of libstdc++'s <chrono> that compiles fast, where there is one.
    if (!is_public_header(file) || file.path == "core/clock.h") continue;
    for (const Include& include : file.includes) {
      if (project_path(include).empty() && !std::regex_match(include.file, standard))
        findings.push_back(at(file, include) + include.file + " in a public header");
    }
  }
  return findings;
}

Findings private_includes(const std::vector<SourceFile>& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    const bool app = file.path.starts_with("apps/");
    if (!app && !is_public_header(file) && !is_public_device_header(file.path)) continue;
    for (const Include& include : file.includes) {
      if (is_private(project_path(include)))
        findings.push_back(at(file, include) + include.file + " is private");
    }
  }
  return findings;
}

Findings removed_phrases(const std::vector<SourceFile>& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (file.path.starts_with("tests/structure/")) continue;
    const std::string text = with_joined_comments(file.text);
    for (const RemovedPhrase& removed : kRemovedPhrases)
      if (file.path.starts_with(removed.folder) && text.find(removed.phrase) != std::string::npos)
        findings.push_back(file.path + ": \"" + removed.phrase + "\" was removed; " + removed.instead);
  }
  return findings;
}

Findings too_long(const std::vector<SourceFile>& tree, int limit) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (file.lines > limit) findings.push_back(file.path + ": " + std::to_string(file.lines) + " lines");
  }
  return findings;
}

Findings mismatched_families(const std::vector<SourceFile>& tree) {
  std::set<std::string> paths;
  for (const SourceFile& file : tree) paths.insert(file.path);
  Findings findings;
  for (const SourceFile& file : tree) {
    constexpr std::string_view folder = "kernels/ops/", extension = ".h";
    if (!file.path.starts_with(folder) || !file.is_header()) continue;
    const bool pointwise = std::any_of(file.includes.begin(), file.includes.end(), [](const Include& i) {
      return i.file == "tapestry/kernels/ops/pointwise.h";
    });
    const std::string family =
        file.path.substr(folder.size(), file.path.size() - folder.size() - extension.size());
    if (!pointwise || !paths.count("autograd/ops/" + family + ".h")) continue;
    for (const std::string& path :
         {"kernels/cpu/" + family + ".cpp", "kernels/cuda/" + family + ".cuh",
          "kernels/cuda/" + family + ".cu", "autograd/ops/" + family + ".cpp",
          "tests/golden/" + family + ".py", "tests/autograd/" + family + "_test.cpp"})
      if (!paths.count(path)) findings.push_back(file.path + ": " + path + " is missing");
  }
  // A source is called <family>.cpp or <family>_<part>.cpp. CUDA sources have the ending .cu.
  static const std::regex source(R"((kernels/(cpu|cuda)|autograd/ops)/([a-z0-9_]+)\.(cpp|cu))");
  for (const SourceFile& file : tree) {
    std::smatch match;
    if (!std::regex_match(file.path, match, source)) continue;
    if (file.path == "kernels/cpu/isa.cpp" || file.path == "kernels/cuda/launch.cu" ||
        file.path == "kernels/cuda/transfer.cpp")
      continue;
    const std::string headers = match[1].str().starts_with("kernels") ? "kernels/ops/" : "autograd/ops/";
    const std::string name = match[3];
    bool found = paths.count(headers + name + ".h");
    for (std::size_t end = name.find('_'); end != std::string::npos && !found; end = name.find('_', end + 1))
      found = paths.count(headers + name.substr(0, end) + ".h");
    if (!found) findings.push_back(file.path + ": no family in " + headers + " has this name");
  }
  return findings;
}

Findings without_readme(const fs::path& root, const std::vector<SourceFile>& tree) {
  std::set<std::string> folders;
  for (const SourceFile& file : tree) {
    const auto slash = file.path.find('/');
    if (slash != std::string::npos) folders.insert(file.path.substr(0, slash));
  }
  Findings findings;
  for (const std::string& folder : folders) {
    std::ifstream readme(root / folder / "README.md");
    std::string first;
    if (!std::getline(readme, first) || !first.starts_with("# "))
      findings.push_back(folder + ": no README.md with a heading");
  }
  return findings;
}

Findings dead_references(const fs::path& root) {
  static const std::regex reference(
      R"((?:^|\W)\[[^\]]+\]\(([\w./-]+)(#[\w-]*)?\)|)"  // not list["name"](x)
      R"(`((core|kernels|autograd|nn|data|distributed|apps|tests|tools|cmake|docs)/[\w./-]+)`)");
  std::vector<fs::path> pages;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
    if (!entry.is_directory() || name.starts_with(".") || name == "build") continue;
    for (const fs::directory_entry& below : fs::recursive_directory_iterator(entry.path()))
      if (below.path().extension() == ".md") pages.push_back(below.path());
  }
  Findings findings;
  for (const fs::path& page : pages) {
    std::ifstream in(page);
    int number = 1;
    for (std::string line; std::getline(in, line); ++number) {
      for (std::sregex_iterator it(line.begin(), line.end(), reference), end; it != end; ++it) {
        const std::string target = (*it)[1].matched ? (*it)[1] : (*it)[3];
        if (target.find("softsign") != std::string::npos) continue;
        const fs::path folder = page.parent_path();
        if (!fs::exists(folder / target) && ((*it)[1].matched || !fs::exists(root / target)))
          findings.push_back(fs::relative(page, root).generic_string() + ":" + std::to_string(number) + ": " +
                             target);
      }
    }
  }
  std::sort(findings.begin(), findings.end());
  return findings;
}

Findings outside_umbrella(const std::vector<SourceFile>& tree) {
  std::map<std::string, const SourceFile*> by_path;
  for (const SourceFile& file : tree) by_path[file.path] = &file;
  std::set<std::string> reached;
  std::vector<std::string> open = {"tapestry.h", "kernels/cuda/portable.cuh"};
  while (!open.empty()) {
    const std::string path = open.back();
    open.pop_back();
    const auto found = by_path.find(path);
    if (found == by_path.end() || !reached.insert(path).second) continue;
    for (const Include& include : found->second->includes) open.push_back(project_path(include));
  }
  Findings findings;
  for (const SourceFile& file : tree) {
    if (is_public_header(file) && !reached.count(file.path))
      findings.push_back(file.path + ": include it in tapestry.h, or move it below internal/");
  }
  return findings;
}

Findings repeated_types(const std::vector<SourceFile>& tree) {
  std::map<std::string, std::string> first;  // by type
  Findings findings;
  for (const SourceFile& file : tree) {
    static const std::set<std::string> code = {".h", ".cpp", ".cu", ".cuh"};
    if (!in_library(file.path) || !code.contains(fs::path(file.path).extension().string())) continue;
    for (const std::string& type : defined_types(file.text))
      if (const auto [at, is_new] = first.emplace(type, file.path); !is_new)
        findings.push_back(file.path + ": " + type + " is a type of " + at->second +
                           " too; rename one of them");
  }
  return findings;
}

}  // namespace structure
