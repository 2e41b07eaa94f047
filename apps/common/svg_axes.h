#pragma once
// The axes and lines of diagrams.
#include <string>
#include <utility>
#include <vector>

namespace apps {

/// The plot area of a diagram: its upper left corner and its size in pixels.
struct PlotArea {
  double x, y, width, height;
};

/// A line of a diagram. Values that are not finite leave gaps, or are left out.
struct PlotCurve {
  std::string name;
  const char* colour;
  std::vector<std::pair<double, double>> points;
};

/// What the horizontal axis shows, and how far it reaches.
struct PlotAxis {
  const char* name;
  double first, last;
  double every;  ///< the distance between numbers
};

struct PlotStyle {
  bool gaps = false;    ///< a value that is not finite interrupts the line, instead of being left out
  bool points = false;  ///< mark each value
  double legend_x = 0, legend_y = 0, legend_distance = 100;
};

/// Appends a grid with numbers at round distances, which contains all finite values, the lines and a legend.
void draw_curves(std::string& out, const PlotArea& area, const PlotAxis& axis,
                 const std::vector<PlotCurve>& curves, const PlotStyle& style);

/// The beginning of a picture of this size, with the styles of texts and grids.
std::string svg_header(int width, int height);

}  // namespace apps
