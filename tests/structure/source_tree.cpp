#include "tests/structure/source_tree.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>

namespace structure {
namespace {

const std::vector<std::string> kLibraryFolders = {"core", "kernels", "autograd", "nn", "data", "distributed"};

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

/// Which folders a folder may include, itself apart.
std::vector<std::string> may_use(const std::string& folder) {
  if (folder == "core") return {};
  if (folder == "kernels" || folder == "data" || folder == "distributed/comm") return {"core"};
  if (folder == "autograd") return {"core", "kernels"};
  if (folder == "nn") return {"core", "kernels", "autograd"};
  if (folder == "distributed/launch") return {"core", "distributed/comm"};
  if (folder.starts_with("distributed")) return {"core", "kernels", "autograd", "nn", "distributed"};
  return {"core", "kernels", "autograd", "nn", "data", "distributed"};  // an app, the umbrella
}

SourceFile read_file(const fs::path& root, const fs::path& path) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  SourceFile file;
  file.path = fs::relative(path, root).generic_string();
  std::ifstream in(path);
  std::smatch match;
  std::string comment;  // the file's first, its lines joined
  for (std::string line; std::getline(in, line);) {
    ++file.lines;
    if (file.includes.empty() && line.starts_with("//")) comment += line.substr(2);
    if (line.find("include") != std::string::npos && std::regex_match(line, match, include))
      file.includes.push_back({match[2], match[1] == "\"", file.lines});
  }
  file.left_out = comment.find("Not in tapestry.h") != std::string::npos;
  return file;
}

std::string at(const SourceFile& file, const Include& include) {
  return file.path + ":" + std::to_string(include.line) + ": ";
}

/// "core/tensor.h" of "tapestry/core/tensor.h"; "" for what is not the project's.
std::string project_path(const Include& include) {
  constexpr std::string_view prefix = "tapestry/";
  if (!include.file.starts_with(prefix)) return include.file.starts_with("tests/") ? include.file : "";
  return include.file.substr(prefix.size());
}

}  // namespace

std::string SourceFile::folder() const { return folder_of(path); }
bool SourceFile::is_header() const { return path.ends_with(".h"); }

std::vector<SourceFile> read_tree(const fs::path& root) {
  std::vector<SourceFile> tree;
  for (const char* top :
       {"core", "kernels", "autograd", "nn", "data", "distributed", "apps", "tests", "tools", "cmake"}) {
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
  return file.is_header() && in_library(file.path) && file.path.find("/internal/") == std::string::npos &&
         !starts_with_any(file.path, {"kernels/cpu/", "kernels/bench/"});
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
    if (file.path.starts_with("tests/consumer/project/")) continue;  // somebody else's project
    for (const Include& include : file.includes) {
      const bool ours = include.file.starts_with("tapestry/") || include.file.starts_with("tests/");
      if (ours != include.quoted)
        findings.push_back(at(file, include) + include.file +
                           (ours ? " is the project's: \"quotes\""
                                 : ": write \"tapestry/...\" from the root, <brackets> for others'"));
    }
  }
  return findings;
}

Findings foreign_headers(const std::vector<SourceFile>& tree) {
  static const std::regex standard("[a-z_]+");
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!is_public_header(file)) continue;
    for (const Include& include : file.includes) {
      if (project_path(include).empty() && !std::regex_match(include.file, standard))
        findings.push_back(at(file, include) + include.file + " in a public header");
    }
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
      R"(\[[^\]]+\]\(([\w./-]+)(#[\w-]*)?\)|)"
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
  std::vector<std::string> open = {"tapestry.h"};
  while (!open.empty()) {
    const std::string path = open.back();
    open.pop_back();
    const auto found = by_path.find(path);
    if (found == by_path.end() || !reached.insert(path).second) continue;
    for (const Include& include : found->second->includes) open.push_back(project_path(include));
  }
  Findings findings;
  for (const SourceFile& file : tree) {
    if (is_public_header(file) && file.folder() != "kernels" && !file.left_out && !reached.count(file.path))
      findings.push_back(
          file.path + ": include it in tapestry.h, or write \"// Not in tapestry.h: why\" at its beginning");
  }
  return findings;
}

}  // namespace structure
