#include "tapestry/apps/common/svg_axes.h"

#include <algorithm>
#include <cmath>

#include "tapestry/apps/common/svg_text.h"

namespace apps {

void draw_curves(std::string& out, const PlotArea& area, const PlotAxis& axis,
                 const std::vector<PlotCurve>& curves, const PlotStyle& style) {
  double low = INFINITY, high = -INFINITY;
  for (const PlotCurve& c : curves)
    for (const auto& [x, y] : c.points)
      if (std::isfinite(y)) low = std::min(low, y), high = std::max(high, y);
  if (!(low <= high)) low = 0, high = 1;
  if (high - low < 1e-9) low -= 0.05, high += 0.05;
  const double tick = tick_distance(high - low), bottom = area.y + area.height;
  low = std::floor(low / tick) * tick;
  high = std::ceil(high / tick) * tick;
  const auto px = [&](double x) { return area.x + (x - axis.first) / (axis.last - axis.first) * area.width; };
  const auto py = [&](double y) { return bottom - (y - low) / (high - low) * area.height; };
  for (double v = low; v <= high + tick / 2; v += tick) {
    put(out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>", area.x, py(v),
        area.x + area.width, py(v));
    put(out, "<text x='%.1f' y='%.1f' text-anchor='end'>%.4g</text>\n", area.x - 6, py(v) + 4,
        std::abs(v) < tick / 2 ? 0 : v);
  }
  for (double x = axis.first; x <= axis.last; x += axis.every)
    put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n", px(x), bottom + 16, x);
  put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", area.x + area.width / 2, bottom + 34,
      axis.name);
  double legend = style.legend_x;
  for (const PlotCurve& c : curves) {
    std::string path;
    bool pen_down = false;
    for (const auto& [x, y] : c.points) {
      if (!std::isfinite(y)) {
        pen_down = pen_down && !style.gaps;
        continue;
      }
      put(path, "%c%.1f %.1f", pen_down ? 'L' : 'M', px(x), py(y));
      if (style.points) put(out, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='%s'/>", px(x), py(y), c.colour);
      pen_down = true;
    }
    if (!path.empty())
      out += "<path d='" + path + "' fill='none' stroke-width='2' stroke='" + c.colour + "'/>\n";
    put(out, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s'/>", legend, style.legend_y - 4, c.colour);
    put(out, "<text x='%.1f' y='%.1f'>", legend + 8, style.legend_y);
    out += escaped(c.name) + "</text>\n";
    legend += style.legend_distance;
  }
}

std::string svg_header(int width, int height) {
  std::string out;
  put(out, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d'>\n", width,
      height, width, height);
  out +=
      "<style>text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}</style>\n"
      "<rect width='100%' height='100%' fill='white'/>\n";
  return out;
}

}  // namespace apps
