#pragma once
// Pictures of measurements, as SVG text: bars, and what ran when. They are readable on light and dark, and
// each has a legend of its colours.
#include <string>
#include <vector>

#include "tapestry/core/timeline.h"

namespace apps {

/// What a colour stands for: "forward", "backward", "communication", "optimizer", "other", "idle", or, in
/// bars alone, "value", "second".
struct Piece {
  std::string kind;
  double value = 0;
};
struct Bar {
  std::string label;
  std::vector<Piece> pieces;  ///< one after another
  std::string text = {};      ///< behind it; empty: the sum
};
/// Horizontal bars from a common zero. Values that are negative or not finite count as zero. `names`: what
/// the legend calls the kinds, in its order; those that it leaves out are not in it.
std::string bars_svg(const std::vector<Bar>& bars, const std::string& title, const std::string& unit,
                     const std::vector<std::pair<std::string, std::string>>& names = {});

/// A lane a row, in the order of `rows` and then of their names; time runs from 0 to `seconds`. What no span
/// covers is idle. A number at the end of a span's name, a micro-batch's, is written into it.
std::string timeline_svg(const std::vector<tapestry::Span>& spans, const std::vector<std::string>& rows,
                         double seconds, const std::string& title);

}  // namespace apps
