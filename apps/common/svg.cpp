#include "tapestry/apps/common/svg.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tapestry/apps/common/svg_text.h"

namespace apps {
namespace {

constexpr const char* kTrainColour = "#4477aa";
constexpr const char* kTestColour = "#cc6677";

struct Curve {
  const char* name;
  const char* colour;
  std::function<double(const EpochMetrics&)> value;
};

// Draws one diagram. Its plot area is 300 x 220, with the upper left corner at (x, 50).
void panel(std::string& out, double x, const char* title, const std::vector<EpochMetrics>& epochs,
           const std::vector<Curve>& curves) {
  constexpr double kWidth = 300, kHeight = 220, kTop = 50;
  double low = INFINITY, high = -INFINITY;
  for (const Curve& c : curves)
    for (const EpochMetrics& e : epochs)
      if (const double v = c.value(e); std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
  if (!(low <= high)) low = 0, high = 1;
  if (high - low < 1e-9) low -= 0.05, high += 0.05;
  const double step = tick_distance(high - low);
  low = std::floor(low / step) * step;
  high = std::ceil(high / step) * step;
  const double first = epochs.front().epoch, last = std::max<double>(epochs.back().epoch, first + 1);
  const auto px = [&](double epoch) { return x + (epoch - first) / (last - first) * kWidth; };
  const auto py = [&](double v) { return kTop + kHeight - (v - low) / (high - low) * kHeight; };

  put(out, "<text x='%.1f' y='38' class='title'>%s</text>\n", x, title);
  for (double v = low; v <= high + step / 2; v += step) {
    put(out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>", x, py(v), x + kWidth, py(v));
    put(out, "<text x='%.1f' y='%.1f' text-anchor='end'>%.4g</text>\n", x - 6, py(v) + 4,
        std::abs(v) < step / 2 ? 0 : v);
  }
  const double every = std::max(1.0, std::ceil((last - first) / 8));
  for (double e = first; e <= last; e += every)
    put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n", px(e), kTop + kHeight + 16, e);
  put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>epoch</text>\n", x + kWidth / 2,
      kTop + kHeight + 34);
  double legend = x + 130;
  for (const Curve& c : curves) {
    std::string path;
    bool pen_down = false;
    for (const EpochMetrics& e : epochs) {
      const double v = c.value(e);
      if (!std::isfinite(v)) {
        pen_down = false;
        continue;
      }
      put(path, "%c%.1f %.1f", pen_down ? 'L' : 'M', px(e.epoch), py(v));
      put(out, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='%s'/>", px(e.epoch), py(v), c.colour);
      pen_down = true;
    }
    out += "<path d='" + path + "' fill='none' stroke-width='2' stroke='" + c.colour + "'/>\n";
    put(out, "<circle cx='%.1f' cy='34' r='4' fill='%s'/><text x='%.1f' y='38'>%s</text>\n", legend, c.colour,
        legend + 8, c.name);
    legend += 70;
  }
}

std::string header(int width, int height) {
  std::string out;
  put(out, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d'>\n", width,
      height, width, height);
  out +=
      "<style>text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}</style>\n"
      "<rect width='100%' height='100%' fill='white'/>\n";
  return out;
}

// The bytes in base64 (RFC 4648).
std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < n ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += j <= n ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

}  // namespace

std::string curves_svg(const std::vector<EpochMetrics>& epochs, const std::string& title) {
  std::string out = header(780, 320);
  out += "<text x='60' y='18' class='title'>" + escaped(title) + "</text>\n";
  if (!epochs.empty()) {
    panel(out, 60, "loss", epochs,
          {{"train", kTrainColour, [](const EpochMetrics& e) { return e.train_loss; }},
           {"test", kTestColour, [](const EpochMetrics& e) { return e.test_loss; }}});
    panel(out, 450, "accuracy", epochs,
          {{"train", kTrainColour, [](const EpochMetrics& e) { return e.train_accuracy; }},
           {"test", kTestColour, [](const EpochMetrics& e) { return e.test_accuracy; }}});
  }
  return out + "</svg>\n";
}

std::string confusion_svg(const std::vector<std::int64_t>& counts, const std::vector<std::string>& classes,
                          const std::string& title) {
  const int n = static_cast<int>(classes.size()), cell = 44, left = 110, top = 60;
  std::string out = header(left + n * cell + 20, top + n * cell + 90);
  out += "<text x='10' y='18' class='title'>" + escaped(title) + "</text>\n";
  put(out, "<text x='%d' y='42' class='title'>predicted class (columns), true class (rows)</text>\n", left);
  for (int i = 0; i < n; ++i) {
    std::int64_t total = 0;
    for (int j = 0; j < n; ++j) total += counts[static_cast<std::size_t>(i * n + j)];
    put(out, "<text x='%d' y='%d' text-anchor='end'>%s</text>\n", left - 8, top + i * cell + cell / 2 + 4,
        escaped(classes[static_cast<std::size_t>(i)]).c_str());
    put(out, "<text transform='translate(%d %d) rotate(45)'>%s</text>\n", left + i * cell + cell / 2 - 4,
        top + n * cell + 14, escaped(classes[static_cast<std::size_t>(i)]).c_str());
    for (int j = 0; j < n; ++j) {
      const std::int64_t count = counts[static_cast<std::size_t>(i * n + j)];
      const double share = total ? static_cast<double>(count) / static_cast<double>(total) : 0;
      put(out, "<rect x='%d' y='%d' width='%d' height='%d' fill='%s' fill-opacity='%.3f' stroke='#eee'/>",
          left + j * cell, top + i * cell, cell, cell, i == j ? kTrainColour : kTestColour,
          std::min(1.0, i == j ? share : 4 * share));
      put(out, "<text x='%d' y='%d' text-anchor='middle'>%lld</text>\n", left + j * cell + cell / 2,
          top + i * cell + cell / 2 + 4, static_cast<long long>(count));
    }
  }
  return out + "</svg>\n";
}

std::string pictures_svg(const std::vector<CaptionedPicture>& pictures, const std::string& title) {
  constexpr int kColumns = 6, kSide = 112, kCell = 128, kLine = 16;
  std::size_t lines = 0;
  for (const CaptionedPicture& p : pictures) lines = std::max(lines, p.lines.size());
  const int count = static_cast<int>(pictures.size());
  const int height = kCell + static_cast<int>(lines) * kLine, rows = (count + kColumns - 1) / kColumns;
  std::string out = header(20 + kColumns * kCell, 40 + rows * height);
  out += "<text x='10' y='18' class='title'>" + escaped(title) + "</text>\n";
  for (int i = 0; i < count; ++i) {
    const CaptionedPicture& p = pictures[static_cast<std::size_t>(i)];
    const int x = 10 + i % kColumns * kCell, y = 34 + i / kColumns * height;
    put(out, "<image x='%d' y='%d' width='%d' height='%d' style='image-rendering:pixelated' ", x, y, kSide,
        kSide);
    out += "href='data:image/png;base64," + base64(p.png) + "'/>\n";
    for (std::size_t line = 0; line < p.lines.size(); ++line) {
      put(out, "<text x='%d' y='%d'>", x, y + kSide + kLine * (static_cast<int>(line) + 1));
      out += escaped(p.lines[line]) + "</text>\n";
    }
  }
  return out + "</svg>\n";
}

}  // namespace apps
