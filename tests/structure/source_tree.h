#pragma once
// The rules of the source tree: which folder may include which, which headers are public, how long a file may
// be. The rules work on any root folder, so a test can plant a fault in a small tree and check that the rule
// finds it.
#include <filesystem>
#include <string>
#include <vector>

namespace structure {

namespace fs = std::filesystem;

/// The violations of one rule. Each is one line: "file: what is wrong".
using Findings = std::vector<std::string>;

struct Include {
  std::string file;  // as written between the quotes or brackets
  bool quoted = false;
  int line = 0;
};

struct SourceFile {
  std::string path;  // relative to the root, with /
  int lines = 0;
  std::string text;
  std::vector<Include> includes;

  std::string folder() const;  // "core"; two levels for distributed, as "distributed/comm"; "" at the root
  bool is_header() const;      // .h
};

/// Reads all sources and scripts below `root`, except build trees and generated data. Sorted by path.
std::vector<SourceFile> read_tree(const fs::path& root);

/// True for the headers that a program includes and that cmake/install.cmake installs: all .h files of the
/// library, except those below an internal/ folder and those of kernels/.
bool is_public_header(const SourceFile& file);

/// Finds includes that go against the layers core <- kernels <- autograd <- nn <- distributed strategies <-
/// apps. The folders data and distributed/comm may include core only. The library and the apps must not
/// include tests/, and the library must not include tapestry.h.
Findings wrong_direction(const std::vector<SourceFile>& tree);
/// Finds includes that are not written from the root. The project's files must be included as "tapestry/..."
/// or, in tests, as "tests/...".
Findings wrong_form(const std::vector<SourceFile>& tree);
/// Finds public headers that include anything other than the standard library and the project. A consumer
/// needs no other library's headers, and does not pay for their compilation.
Findings foreign_headers(const std::vector<SourceFile>& tree);
/// Finds private headers (below internal/, or in kernels/) that are included from a public header or from an
/// app. The install tree lacks private headers, so such a public header would not compile there. Apps are
/// examples of how to use the library, so they use its public headers only.
Findings private_includes(const std::vector<SourceFile>& tree);
/// Finds phrases that were removed from the project and must not come back. tests/structure is exempt,
/// because it names them.
Findings removed_phrases(const std::vector<SourceFile>& tree);
/// Finds files of more than `limit` lines.
Findings too_long(const std::vector<SourceFile>& tree, int limit);
/// Finds sources whose basename is not that of a family, and pointwise families with missing files. A source
/// in kernels/cpu, kernels/cuda and autograd/ops is called <family> or <family>_<part>, where the family has
/// a header in kernels/ops or autograd/ops. A pointwise family, whose kernels/ops/<family>.h includes
/// kernels/ops/pointwise.h, needs its CPU and CUDA kernels, functions, golden values and tests.
Findings mismatched_families(const std::vector<SourceFile>& tree);
/// Finds top-level folders that have sources but no README.md, or one that does not begin with a heading.
Findings without_readme(const fs::path& root, const std::vector<SourceFile>& tree);
/// Finds links and `folder/file` names in Markdown pages whose target does not exist. Names that contain
/// "softsign" are exempt: the tutorial tells its reader to create those files.
Findings dead_references(const fs::path& root);
/// Finds public headers that tapestry.h does not include, directly or through other headers.
Findings outside_umbrella(const std::vector<SourceFile>& tree);
/// Finds types of the library that two files define with one name in one namespace. The linker keeps the
/// inline functions of one of them, for both, without a word. Anonymous namespaces are exempt.
Findings repeated_types(const std::vector<SourceFile>& tree);

}  // namespace structure
