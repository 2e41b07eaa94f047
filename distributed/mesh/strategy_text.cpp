#include "tapestry/distributed/mesh/strategy_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

// In the order of the mesh, outermost first.
constexpr std::array<std::string_view, 6> kAxes{"pipeline", "replicate", "shard",
                                                "expert",   "context",   "tensor"};
// Options that have no value.
constexpr std::array<std::string_view, 1> kFlags{"devices"};

constexpr StrategyAlias kAliases[]{
    {"single", ""},
    {"none", ""},
    {"ddp", "replicate=-1"},
    {"zero1", "replicate=-1:zero=1"},
    {"zero2", "replicate=-1:zero=2"},
    {"fsdp", "shard=-1"},
    {"dp", "replicate=-1:devices"},
    {"dp-replicated", "replicate=-1:devices"},
    {"dp-master", "replicate=-1:devices:mode=master"},
    {"model", "pipeline=-1:devices:schedule=sequential"},
    {"pipeline", "pipeline=-1:devices"},
    {"pipeline-gpipe", "pipeline=-1:devices:schedule=gpipe"},
    {"pipeline-1f1b", "pipeline=-1:devices:schedule=1f1b"},
    {"pipeline-zero-bubble", "pipeline=-1:devices:schedule=zero-bubble"},
};

const StrategyAlias* alias_named(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kAliases), std::end(kAliases),
                                         [&](const StrategyAlias& a) { return a.name == name; });
  return found == std::end(kAliases) ? nullptr : found;
}

template <class List, class Name>
std::string listed(const List& list, const Name& name) {
  std::string all;
  for (const auto& entry : list) all += (all.empty() ? "" : ", ") + std::string(name(entry));
  return all;
}
std::string axis_names() {
  return listed(kAxes, [](std::string_view name) { return name; });
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == text.npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

// True for text without the characters that divide a strategy into parts.
bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c > ' ' && c < 127 && c != ',' && c != ':' && c != '=';
  });
}

std::size_t place_of(std::string_view axis) {
  return static_cast<std::size_t>(std::find(kAxes.begin(), kAxes.end(), axis) - kAxes.begin());
}

bool is_flag(std::string_view option) {
  return std::find(kFlags.begin(), kFlags.end(), option) != kFlags.end();
}

// Throws unless the axes could be those of a text, and puts them in order.
void check_and_sort(const char* op, std::vector<AxisSpec>& axes) {
  for (const AxisSpec& axis : axes) {
    check(place_of(axis.name) < kAxes.size(), "[", op, "] there is no axis \"", axis.name,
          "\"; the axes are ", axis_names());
    check(axis.size >= 1 || axis.size == -1, "[", op, "] the size of the axis ", axis.name, " is ", axis.size,
          "; write a number from 1, or -1 for what is left");
    for (const auto& [option, value] : axis.options) {
      check(is_word(option), "[", op, "] \"", option, "\" is not an option of the axis ", axis.name,
            "; write option=value");
      if (is_flag(option))
        check(value.empty(), "[", op, "] the option ", option, " of the axis ", axis.name,
              " takes no value, but has \"", value, "\"; write :", option);
      else
        check(is_word(value), "[", op, "] the option ", option, " of the axis ", axis.name,
              value.empty() ? " has no value" : concat({" has the value \"", value, "\""}), "; write ",
              option, "=VALUE, where VALUE has no spaces, ',', ':' or '='");
    }
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const AxisSpec& a, const AxisSpec& b) { return place_of(a.name) < place_of(b.name); });
  for (std::size_t i = 1; i < axes.size(); ++i)
    check(axes[i].name != axes[i - 1].name, "[", op, "] the axis ", axes[i].name,
          " occurs twice; name each axis once");
}

AxisSpec axis_of(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  const std::size_t equals = parts[0].find('=');
  AxisSpec axis{.name = std::string(trimmed(parts[0].substr(0, equals)))};
  const bool known = place_of(axis.name) < kAxes.size();  // "pipeline" is a short name and an axis
  const StrategyAlias* const alias = known ? nullptr : alias_named(axis.name);
  check(!alias, "[parse_strategy] ", axis.name, " in \"", text,
        "\" is a short name, which stands alone; it means ", alias && *alias->text ? alias->text : "no axes");
  check(known, "[parse_strategy] there is no axis \"", axis.name, "\"; the axes are ", axis_names(),
        ", and the short names ", listed(kAliases, [](const StrategyAlias& a) { return a.name; }));
  check(equals != parts[0].npos, "[parse_strategy] the axis ", axis.name, " has no size; write ", axis.name,
        "=SIZE, or ", axis.name, "=-1 for what is left");
  const std::string_view size = trimmed(parts[0].substr(equals + 1));
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), axis.size);
  check(error == std::errc() && end == size.data() + size.size(), "[parse_strategy] the size of the axis ",
        axis.name, " is \"", size, "\"; write a number from 1 to 2147483647, or -1 for what is left");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t at = parts[i].find('=');
    const std::string option(trimmed(parts[i].substr(0, at)));
    const std::string value(at == parts[i].npos ? std::string_view() : trimmed(parts[i].substr(at + 1)));
    check(at == parts[i].npos || !value.empty(), "[parse_strategy] the option \"", option, "\" of the axis ",
          axis.name, " has no value; write ", option, "=VALUE");
    check(axis.options.emplace(option, value).second, "[parse_strategy] the option ", option, " of the axis ",
          axis.name, " occurs twice; write it once");
  }
  return axis;
}

}  // namespace

std::string AxisSpec::option(const std::string& name, const std::string& otherwise) const {
  const auto at = options.find(name);
  return at == options.end() ? otherwise : at->second;
}

std::vector<AxisSpec> parse_strategy(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (const StrategyAlias* const alias = alias_named(rest)) {
    rest = alias->text;
    if (rest.empty()) return {};
  }
  check(!rest.empty(),
        "[parse_strategy] the text is empty; write axes, such as replicate=2, or a short name: ",
        listed(kAliases, [](const StrategyAlias& a) { return a.name; }));
  std::vector<AxisSpec> axes;
  for (const std::string_view part : split(rest, ',')) axes.push_back(axis_of(part));
  check_and_sort("parse_strategy", axes);
  return axes;
}

std::string to_string(const std::vector<AxisSpec>& axes) {
  std::vector<AxisSpec> sorted = axes;
  check_and_sort("to_string", sorted);
  std::string text;
  for (const AxisSpec& axis : sorted) {
    text += concat({text.empty() ? "" : ",", axis.name, "=", axis.size});
    for (const auto& [option, value] : axis.options)
      text += concat({":", option, value.empty() ? "" : "=", value});
  }
  return text.empty() ? "single" : text;
}

std::span<const StrategyAlias> strategy_aliases() { return kAliases; }

}  // namespace tapestry::distributed
