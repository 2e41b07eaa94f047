#pragma once
// Reads the source tree's files and their #include lines, and holds them against the map in the README. Every
// function takes the root, so that the tests can plant a fault in a tree of their own.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace structure {

namespace fs = std::filesystem;

/// What a rule found wrong, a line each: "file: what".
using Findings = std::vector<std::string>;

struct Include {
  std::string file;  // as written between the quotes or brackets
  bool quoted = false;
  int line = 0;
};

struct SourceFile {
  std::string path;  // relative to the root, with /
  int lines = 0;
  bool left_out = false;  // says "Not in tapestry.h" before its first include
  std::vector<Include> includes;

  std::string folder() const;  // "core", "distributed/comm" and its like for distributed, "" at the root
  bool is_header() const;      // .h
};

/// All sources and scripts below `root`, without build trees and generated data, ordered by path.
std::vector<SourceFile> read_tree(const fs::path& root);

/// Installed with the library; the same rule as in cmake/install.cmake.
bool is_public_header(const SourceFile& file);

/// core <- kernels <- autograd <- nn <- distributed strategies <- apps; data and distributed/comm use core
/// alone; what ships includes nothing of tests/; the library does not include its own umbrella.
Findings wrong_direction(const std::vector<SourceFile>& tree);
/// A file of the project is included as "tapestry/...", in tests and tools also as "tests/...", never
/// relatively.
Findings wrong_form(const std::vector<SourceFile>& tree);
/// A public header sees the standard library and the project: a consumer pays for nothing else, and needs
/// nothing else.
Findings foreign_headers(const std::vector<SourceFile>& tree);
Findings too_long(const std::vector<SourceFile>& tree, int limit);
/// Folders with sources and without a README.md that begins with a heading.
Findings without_readme(const fs::path& root, const std::vector<SourceFile>& tree);
/// Links and `folder/file` names in Markdown pages that lead nowhere. What a page tells its reader to make
/// ("softsign", the operation that the tutorial adds) is no error.
Findings dead_references(const fs::path& root);
/// Public headers that tapestry.h does not reach and that do not say "Not in tapestry.h" at their beginning;
/// kernels/ as a whole is for those who write operations.
Findings outside_umbrella(const std::vector<SourceFile>& tree);
/// and such exceptions as are none.
Findings outside_umbrella(const std::vector<SourceFile>& tree, const std::vector<std::string>& left_out);

}  // namespace structure
