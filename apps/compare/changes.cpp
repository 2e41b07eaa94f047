#include "tapestry/apps/compare/changes.h"

#include <algorithm>
#include <sstream>

#include "tapestry/apps/compare/programs.h"
#include "tapestry/core/error.h"

namespace apps::compare {

using namespace tapestry;
using distributed::StepDivision;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Returns the text with `to` in the place of `from`. The text must have `from` once.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  check(at != std::string::npos && text.find(from, at + 1) == std::string::npos,
        "[compare] a program does not have \"", from, "\" once; see apps/compare/changes.cpp");
  return text.replace(at, from.size(), to);
}

// The end of the ModelParts in programs/strategy.cpp, and the lines that follow it in a program that divides
// sequences.
constexpr const char* kLastPart = "{{net.part1, devices[0]}, {net.part2, devices[1]}};\n            }";
constexpr const char* kSequence = ",\n            .sequence_dim = 1";

// The text of a program in which `from`, which it must have once, is replaced.
std::string program(const std::string& name, const std::string& from = {}, const std::string& to = {}) {
  for (const Program& p : kPrograms) {
    if (p.name != name) continue;
    return from.empty() ? p.text : replaced(p.text, from, to);
  }
  throw Error("[compare] there is no program " + name + "; see apps/compare/programs");
}

// True if the axis has no options but these.
bool has_only(const distributed::AxisSpec& axis, const std::vector<std::string>& options) {
  return std::all_of(axis.options.begin(), axis.options.end(), [&](const auto& option) {
    return option.first == "devices" ||
           std::find(options.begin(), options.end(), option.first) != options.end();
  });
}

}  // namespace

Changes changes_between(const std::string& before, const std::string& after) {
  const std::vector<std::string> a = lines_of(before), b = lines_of(after);
  // common[i][k] lines stay of those from a[i] and b[k] on.
  std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t k = b.size(); k-- > 0;)
      common[i][k] = a[i] == b[k] ? common[i + 1][k + 1] + 1 : std::max(common[i + 1][k], common[i][k + 1]);
  Changes changes;
  for (std::size_t i = 0, k = 0; i < a.size() || k < b.size();) {
    if (i < a.size() && k < b.size() && a[i] == b[k]) {
      ++i, ++k;
    } else if (k == b.size() || (i < a.size() && common[i + 1][k] >= common[i][k + 1])) {
      changes.lines.push_back("-" + a[i++]);
    } else {
      changes.lines.push_back("+" + b[k++]);
      ++changes.changed_lines;
    }
  }
  return changes;
}

std::string program_of(const distributed::StrategyPlan& plan, const std::string& text) {
  if (plan.axes.empty()) return program("one_device");
  const std::vector<StepDivision> divisions = distributed::divisions_of(plan);
  std::string any = program("strategy", "pipeline=2,replicate=2", text);
  // A program that divides sequences must say which dimension they are. This program reads images, so nothing
  // else tells.
  for (const distributed::AxisSpec& axis : plan.axes)
    if (axis.name == "context") any = replaced(any, kLastPart, std::string(kLastPart) + kSequence);
  if (plan.axes.size() > 1 || divisions.empty()) return any;
  const distributed::AxisSpec& axis = plan.axes[0];
  const StepDivision& division = divisions[0];
  if (division.layers) return any;
  if (!division.schedule.empty()) {
    if (!plan.over_devices || !has_only(axis, {"schedule"})) return any;
    for (const auto& [name, enumerator] :
         {std::pair("gpipe", "gpipe"), {"1f1b", "one_f_one_b"}, {"zero-bubble", "zero_bubble"}})
      if (division.schedule == name)
        return program("pipelined", "Schedule::one_f_one_b", std::string("Schedule::") + enumerator);
    return program("stages");
  }
  if (plan.over_devices) {
    if (!has_only(axis, {"mode"})) return any;
    if (division.sum == StepDivision::Sum::master)
      return program("data_parallel", "dp(net)",
                     "dp(net, {}, {.mode = distributed::DataParallelMode::master})");
    return division.sum == StepDivision::Sum::buckets ? program("data_parallel") : any;
  }
  if (division.sum == StepDivision::Sum::units) return has_only(axis, {}) ? program("fully_shard") : any;
  if (!has_only(axis, {"zero"})) return any;
  return division.zero > 0 ? program("zero", ".stage = 1", ".stage = " + std::to_string(division.zero))
                           : program("distributed_data_parallel");
}

Changes changes_of(const distributed::StrategyPlan& plan, const std::string& text) {
  return changes_between(program("one_device"), program_of(plan, text));
}

}  // namespace apps::compare
