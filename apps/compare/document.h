#pragma once
// The comparison as JSON. docs/reference/tapestry-compare.md describes the members.
#include <string>

#include "tapestry/apps/compare/verdict.h"

namespace apps::compare {

/// All numbers, for --json.
std::string json_text(const Report& report, const Judgement& judgement);
/// The same for a page, whose size is limited: without white space, with the spans of each device thinned to
/// about 400, and with the memory of the fullest device only, on the clock of the timed step. No character in
/// it ends or opens an element of HTML.
std::string page_json(const Report& report, const Judgement& judgement);
/// The axes of a mode and how they divide a step, for the page's planner; "null" if a row does not say how.
std::string plan_json(const tapestry::distributed::StrategyPlan& plan);

}  // namespace apps::compare
