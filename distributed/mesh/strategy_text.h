#pragma once
// The text that names a way of training, for options of programs, tables and checkpoints:
//
//   axis=size[:option=value]...[,axis=...]
//
//   "replicate=4:zero=2"             4 ranks have the whole model, and divide gradients and optimizer state
//   "pipeline=2:schedule=1f1b,shard=-1"
//   "replicate=2:devices"            2 devices of one process
//   "fsdp"                           an alias of "shard=-1"
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::distributed {

struct AxisSpec {
  std::string name;  ///< pipeline, replicate, shard, expert, context or tensor
  int size = 1;      ///< -1: the ranks or devices that are left
  /// Options and their values. `devices`, which has no value, has the value "".
  std::map<std::string, std::string> options = {};
  /// The value of an option, or `otherwise` if the axis does not have it.
  std::string option(const std::string& name, const std::string& otherwise) const;
  friend bool operator==(const AxisSpec&, const AxisSpec&) = default;
};

/// Reads a text or an alias. The axes are returned in the order of the mesh, outermost first, whatever their
/// order in the text; "single" has none. Spaces around the parts are ignored. Throws ValueError, with the
/// part that is wrong, for any other text. The options' names and values are left to the strategies.
std::vector<AxisSpec> parse_strategy(std::string_view text);

/// The canonical text, from which parse_strategy() makes equal axes: axes in the order of the mesh, options
/// in alphabetical order, and "single" for no axes. Throws ValueError for axes that no text names.
std::string to_string(const std::vector<AxisSpec>& axes);

/// A short name for a text.
struct StrategyAlias {
  const char* name;
  const char* text;
};
std::span<const StrategyAlias> strategy_aliases();

}  // namespace tapestry::distributed
