#pragma once
// Charts as SVG text: bars and timelines. They are readable on light and dark backgrounds and have a legend.
#include <string>
#include <vector>

#include "tapestry/core/timeline.h"

namespace apps {

/// One segment of a bar.
struct Piece {
  /// Determines the color: "forward", "backward", "communication", "optimizer", "other", "idle", "value",
  /// "second", or a kind of memory (core/memory_record.h).
  std::string kind;
  double value = 0;
};
struct Bar {
  std::string label;
  std::vector<Piece> pieces;  ///< drawn one after another
  std::string text = {};      ///< printed after the bar; the sum if empty
};
/// Draws horizontal bars. Values that are negative or not finite count as zero. `names` lists the entries of
/// the legend as pairs (kind, label).
std::string bars_svg(const std::vector<Bar>& bars, const std::string& title, const std::string& unit,
                     const std::vector<std::pair<std::string, std::string>>& names = {});

/// The quantities of a stacked chart from one moment to the next.
struct Level {
  double seconds = 0;
  std::vector<double> values;  ///< one per name, from the bottom to the top
};
/// Draws quantities over time on top of each other, as steps. Values that are negative or not finite count as
/// zero. `names` are pairs (kind, label): the kind determines the color.
std::string areas_svg(const std::vector<Level>& levels,
                      const std::vector<std::pair<std::string, std::string>>& names, const std::string& title,
                      const std::string& unit);

/// Draws one lane per row of `spans`, over a time from 0 to `seconds`. Lanes of devices come in the order of
/// `rows`; other lanes, such as "cpu:0 communication", come below the device with which their name begins.
/// Time without a span is idle. If the name of a span ends in a number, such as a micro-batch number, the
/// number is printed inside the span.
std::string timeline_svg(const std::vector<tapestry::Span>& spans, const std::vector<std::string>& rows,
                         double seconds, const std::string& title);

}  // namespace apps
