#include "tapestry/kernels/choice_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"

namespace tapestry::kernels {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "tapestry kernel choices 1";
constexpr std::size_t kLongestText = std::size_t{16} << 20, kColumns = 5;

/// Splits at every `separator`.
std::string_view take(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

ChoiceTable read_file(const std::string& path, std::string_view owner) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  const auto bytes = fs::file_size(path, error);
  check<IoError>(!error && bytes <= kLongestText, "it has more than 16 MiB");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  std::ifstream in(path, std::ios::binary);
  check<IoError>(in.read(text.data(), static_cast<std::streamsize>(text.size())).good(), "it cannot be read");
  return parse_choices(text, &owner);
}

}  // namespace

std::string choices_text(const ChoiceTable& table, std::string_view owner) {
  std::string text = concat({kFirstLine, "\n", owner, "\n"});
  for (const auto& [key, choice] : table) {
    const auto& [device, op, shapes] = key;
    text += concat({device, "\t", op, "\t", shapes, "\t", choice.candidates, "\t", choice.name, "\n"});
  }
  // The number of lines shows that nothing was cut off.
  return text + concat({"end ", table.size(), "\n"});
}

ChoiceTable parse_choices(std::string_view text, const std::string_view* owner) {
  const auto broken = [](const char* why) {
    fail("[kernel_choices] this text is not a table of kernel choices: ", why,
         "; it must be what kernel_choices() returned");
  };
  if (text.size() > kLongestText) broken("it has more than 16 MiB");
  for (const char c : text)
    if ((c < ' ' && c != '\n' && c != '\t') || c == 127) broken("it contains control characters");
  if (!text.ends_with('\n')) broken("its last line is cut off");
  if (take(text, '\n') != kFirstLine) broken("its first line differs");
  if (const std::string_view its = take(text, '\n'); owner && its != *owner)
    broken("it belongs to another driver or GPU");
  ChoiceTable table;
  std::size_t lines = 0;
  for (;; ++lines) {
    if (text.empty()) broken("its last lines are missing");
    std::string_view line = take(text, '\n');
    if (line.find('\t') == std::string_view::npos) {
      if (line != concat({"end ", lines}) || !text.empty()) broken("its last line is wrong");
      break;
    }
    if (static_cast<std::size_t>(std::count(line.begin(), line.end(), '\t')) != kColumns - 1)
      broken("a line does not have 5 columns");
    std::array<std::string, kColumns> column;
    for (std::string& c : column) {
      c = take(line, '\t');
      if (c.empty()) broken("a column is empty");
    }
    table[{column[0], column[1], column[2]}] = {column[3], column[4]};
  }
  if (table.size() != lines) broken("it contains a choice twice");
  return table;
}

std::string cache_folder() {
  if (const char* const own = std::getenv("TAPESTRY_CACHE_DIR")) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/'))
    return cache + "/tapestry";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/tapestry";
  return {};
}

std::string choices_file(const std::string& folder, std::string_view owner) {
  std::uint64_t hash =
      0xcbf29ce484222325;  // FNV-1a. The file also contains the owner, so collisions are harmless.
  for (const char c : owner) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/kernels-%016llx.txt", static_cast<unsigned long long>(hash));
  return folder + name.data();
}

ChoiceTable read_choices(const std::string& path, std::string_view owner) {
  try {
    return read_file(path, owner);
  } catch (const Error& e) {
    std::fprintf(stderr, "[kernels] warning: %s is ignored, and its choices are measured again: %s\n",
                 path.c_str(), e.what());
    return {};
  }
}

void add_choices(const std::string& path, std::string_view owner, const ChoiceTable& added) try {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return;
  ChoiceTable table;
  try {
    table = read_file(path, owner);  // again, because other processes write it too
  } catch (const Error&) {           // read_choices() has warned
  }
  for (const auto& [key, choice] : added) table[key] = choice;
  write_file_atomically(path, choices_text(table, owner));
} catch (const IoError&) {
}

}  // namespace tapestry::kernels
