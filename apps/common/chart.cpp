#include "tapestry/apps/common/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tapestry/apps/common/svg_text.h"

namespace apps {
namespace {

constexpr double kWidth = 860, kLeft = 170, kRight = 100, kTop = 62, kLane = 24;

double plot_width() { return kWidth - kLeft - kRight; }

struct Kind {
  const char* name;
  const char* colour;
};
// Colors that color-blind readers can distinguish (Paul Tol's "bright" scheme).
constexpr Kind kKinds[] = {
    {"forward", "#4477aa"},     {"backward", "#cc6677"},   {"communication", "#ddaa33"},
    {"optimizer", "#228833"},   {"other", "#aa66aa"},      {"value", "#4477aa"},
    {"second", "#66ccee"},      {"parameters", "#4477aa"}, {"gradients", "#cc6677"},
    {"activations", "#ddaa33"}, {"buffers", "#66ccee"}};
constexpr const char* kIdle = "#b5b5ba";

const char* colour_of(const std::string& kind) {
  for (const Kind& k : kKinds)
    if (kind == k.name) return k.colour;
  return kIdle;
}

double usable(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

// Returns a number with about three significant digits, such as "12.3".
std::string number(double value) {
  std::string out;
  put(out, value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : value >= 1 ? "%.2f" : "%.3g", value);
  return out;
}

std::string begin(double height, const std::string& title) {
  std::string out;
  put(out,
      "<svg xmlns='http://www.w3.org/2000/svg' class='chart' viewBox='0 0 %.0f %.0f' width='%.0f' "
      "height='%.0f'>\n",
      kWidth, height, kWidth, height);
  out +=
      "<style>.chart{background:#fff;max-width:100%;height:auto}.chart text{font:12px sans-serif;fill:#222}"
      ".chart .edge{stroke:#fff;stroke-width:.7}.chart .inside{fill:#fff;font-size:11px}"
      ".chart .title{font-weight:bold}.chart .grid{stroke:#8886;stroke-width:1}"
      "@media(prefers-color-scheme:dark){.chart{background:#1b1b1d}.chart text{fill:#ddd}.chart "
      ".edge{stroke:#1b1b1d}}</style>\n";
  put(out, "<text x='10' y='20' class='title'>");
  return out + escaped(title) + "</text>\n";
}

void legend(std::string& out, const std::vector<std::pair<std::string, std::string>>& names) {
  double x = kLeft;
  for (const auto& [kind, name] : names) {
    put(out, "<rect x='%.1f' y='32' width='11' height='11' fill='%s'/>", x, colour_of(kind));
    put(out, "<text x='%.1f' y='42'>", x + 16);
    out += escaped(name) + "</text>\n";
    x += 34 + 6.6 * static_cast<double>(name.size());
  }
}

// Draws vertical grid lines, with numbers from 0 to `most` below them.
void axis(std::string& out, double most, double bottom, const std::string& unit) {
  const double step = tick_distance(most);
  for (double v = 0; v <= most * (1 + 1e-9); v += step) {
    const double x = kLeft + v / most * plot_width();
    put(out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>", x, kTop - 6, x, bottom);
    put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%g</text>\n", x, bottom + 15, v);
  }
  put(out, "<text x='%.1f' y='%.1f'>", kWidth - kRight + 26, bottom + 15);
  out += escaped(unit) + "</text>\n";
}

void row_name(std::string& out, double y, const std::string& name) {
  put(out, "<text x='%.1f' y='%.1f' text-anchor='end'>", kLeft - 8, y + kLane / 2 + 3);
  out += escaped(name) + "</text>\n";
}

void box(std::string& out, double x, double y, double width, const std::string& kind,
         const std::string& tip) {
  put(out, "<rect x='%.2f' y='%.1f' width='%.2f' height='%.1f' fill='%s'%s><title>", x, y + 2, width,
      kLane - 6, colour_of(kind), width > 3 ? " class='edge'" : "");  // an outline would cover a thinner box
  out += escaped(tip) + "</title></rect>\n";
}

// Returns the number at the end of a name: "12" for "forward 12".
std::string number_in(const std::string& name) {
  const std::size_t space = name.rfind(' ');
  const std::string last = space == std::string::npos ? "" : name.substr(space + 1);
  return last.find_first_not_of("0123456789") == std::string::npos ? last : "";
}

}  // namespace

std::string bars_svg(const std::vector<Bar>& bars, const std::string& title, const std::string& unit,
                     const std::vector<std::pair<std::string, std::string>>& names) {
  double most = 0;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const Piece& p : bar.pieces) sum += usable(p.value);
    most = std::max(most, sum);
  }
  if (most == 0) most = 1;
  const double bottom = kTop + kLane * static_cast<double>(bars.size());
  std::string out = begin(bottom + 28, title);
  legend(out, names);
  axis(out, most, bottom, unit);
  double y = kTop;
  for (const Bar& bar : bars) {
    row_name(out, y, bar.label);
    double sum = 0;
    for (const Piece& p : bar.pieces) {
      const double value = usable(p.value);
      box(out, kLeft + sum / most * plot_width(), y, value / most * plot_width(), p.kind,
          bar.label + ", " + p.kind + ": " + number(value) + " " + unit);
      sum += value;
    }
    put(out, "<text x='%.1f' y='%.1f'>", kLeft + sum / most * plot_width() + 6, y + kLane / 2 + 3);
    out += escaped(bar.text.empty() ? number(sum) : bar.text) + "</text>\n";
    y += kLane;
  }
  return out + "</svg>\n";
}

std::string areas_svg(const std::vector<Level>& levels,
                      const std::vector<std::pair<std::string, std::string>>& names, const std::string& title,
                      const std::string& unit) {
  constexpr double kHeight = 150;
  double most = 0, total = 0;
  for (const Level& l : levels) {
    double sum = 0;
    for (const double v : l.values) sum += usable(v);
    most = std::max(most, sum);
    total = std::max(total, usable(l.seconds));
  }
  if (most == 0) most = 1;
  if (total == 0) total = 1e-9;
  const double bottom = kTop + kHeight;
  std::string out = begin(bottom + 28, title);
  legend(out, names);
  axis(out, total * 1000, bottom, "ms");
  const auto y_of = [&](double value) { return bottom - value / most * kHeight; };
  const double step = tick_distance(most, 4);
  for (double v = 0; v <= most * (1 + 1e-9); v += step) {
    put(out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>", kLeft, y_of(v), kWidth - kRight,
        y_of(v));
    put(out, "<text x='%.1f' y='%.1f' text-anchor='end'>%g ", kLeft - 8, y_of(v) + 4, v);
    out += escaped(unit) + "</text>\n";
  }
  std::vector<double> below(levels.size(), 0);
  for (std::size_t k = 0; k < names.size(); ++k) {
    // A step goes right to the time of the next level, and then up or down. The way back is the top of the
    // quantity below.
    std::string forth, back;
    double largest = 0;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const double value = k < levels[i].values.size() ? usable(levels[i].values[k]) : 0;
      const double from = usable(levels[i].seconds);
      const double to = i + 1 < levels.size() ? std::max(usable(levels[i + 1].seconds), from) : total;
      const double x1 = kLeft + from / total * plot_width(), x2 = kLeft + to / total * plot_width();
      put(forth, "%c%.2f %.2f L%.2f %.2f ", i == 0 ? 'M' : 'L', x1, y_of(below[i] + value), x2,
          y_of(below[i] + value));
      std::string piece;
      put(piece, "L%.2f %.2f L%.2f %.2f ", x2, y_of(below[i]), x1, y_of(below[i]));
      back.insert(0, piece);
      below[i] += value;
      largest = std::max(largest, value);
    }
    if (largest == 0) continue;
    put(out, "<path fill='%s' d='", colour_of(names[k].first));
    out += forth + back + "Z'><title>" +
           escaped(names[k].second + ": at most " + number(largest) + " " + unit) + "</title></path>\n";
  }
  return out + "</svg>\n";
}

std::string timeline_svg(const std::vector<tapestry::Span>& spans, const std::vector<std::string>& rows,
                         double seconds, const std::string& title) {
  std::vector<std::string> more;
  for (const tapestry::Span& s : spans)
    if (std::find(rows.begin(), rows.end(), s.row) == rows.end()) more.push_back(s.row);
  std::sort(more.begin(), more.end());
  more.erase(std::unique(more.begin(), more.end()), more.end());
  // A row such as "cpu:0 communication" comes below "cpu:0".
  std::vector<std::string> lanes;
  for (const std::string& row : rows) {
    lanes.push_back(row);
    for (std::string& other : more)
      if (other.starts_with(row + " ")) lanes.push_back(std::exchange(other, {}));
  }
  for (const std::string& other : more)
    if (!other.empty()) lanes.push_back(other);

  const double total = std::max(usable(seconds), 1e-9);
  const double bottom = kTop + kLane * static_cast<double>(lanes.size());
  std::string out = begin(bottom + 28, title);
  legend(out, {{"forward", "forward"},
               {"backward", "backward"},
               {"communication", "communication"},
               {"optimizer", "update"},
               {"other", "other"},
               {"idle", "idle"}});
  axis(out, total * 1000, bottom, "ms");
  double y = kTop;
  for (const std::string& lane : lanes) {
    row_name(out, y, lane);
    const bool device = std::find(rows.begin(), rows.end(), lane) != rows.end();
    if (device) box(out, kLeft, y, plot_width(), "idle", lane + ", idle");
    // Nested spans are drawn on top of the spans around them, which began earlier.
    std::vector<tapestry::Span> own;
    for (const tapestry::Span& s : spans)
      if (s.row == lane) own.push_back(s);
    std::stable_sort(own.begin(), own.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const tapestry::Span& s : own) {
      const double from = std::clamp(s.begin, 0.0, total), to = std::clamp(s.end, from, total);
      const double x = kLeft + from / total * plot_width(), width = (to - from) / total * plot_width();
      box(out, x, y, width, tapestry::activity_name(s.activity),
          s.name + ": " + number((s.end - s.begin) * 1000) + " ms");
      const std::string inside = number_in(s.name);
      if (device && !inside.empty() && width > 8 * static_cast<double>(inside.size()) + 4)
        put(out, "<text x='%.1f' y='%.1f' text-anchor='middle' class='inside'>%s</text>\n", x + width / 2,
            y + kLane / 2 + 3, inside.c_str());
    }
    y += kLane;
  }
  return out + "</svg>\n";
}

}  // namespace apps
