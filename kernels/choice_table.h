#pragma once
// The choices of kernels/policy.h as text, and their file.
#include <map>
#include <string>
#include <string_view>
#include <tuple>

namespace tapestry::kernels {

/// A choice is found by the GPU's model ("NVIDIA H100 80GB HBM3"), the operation, and the key of its shapes.
using ChoiceKey = std::tuple<std::string, std::string, std::string>;
struct Choice {
  std::string candidates;  ///< what was compared: "tapestry,cuBLASLt 13.0.2"
  std::string name;        ///< the one that was chosen: "cuBLASLt"
  bool operator==(const Choice&) const = default;
};
using ChoiceTable = std::map<ChoiceKey, Choice>;

/// The table as text. `owner` is a line that says what the choices belong to, such as the driver's version.
std::string choices_text(const ChoiceTable& table, std::string_view owner);
/// Reads what choices_text() wrote. Throws ValueError if anything is wrong with the text: it may come from a
/// truncated or hostile file. If `owner` is given, texts of other owners throw as well.
ChoiceTable parse_choices(std::string_view text, const std::string_view* owner = nullptr);

/// The folder of the file: TAPESTRY_CACHE_DIR, XDG_CACHE_HOME/tapestry or ~/.cache/tapestry. An empty string
/// means that there is no file.
std::string cache_folder();
/// The file of the choices for `owner` in `folder`.
std::string choices_file(const std::string& folder, std::string_view owner);
/// Reads a file. An absent file is an empty table. So is one that cannot be read or is broken, after a
/// warning on standard error.
ChoiceTable read_choices(const std::string& path, std::string_view owner);
/// Adds the choices to those of the file, atomically. Errors are ignored: the choices are measured again.
void add_choices(const std::string& path, std::string_view owner, const ChoiceTable& added);

}  // namespace tapestry::kernels
