#include "tapestry/apps/classifier/svg.h"

#include <algorithm>
#include <cmath>

#include "tapestry/apps/common/svg_axes.h"
#include "tapestry/apps/common/svg_text.h"

namespace apps {
namespace {

constexpr const char* kTrainColour = "#4477aa";
constexpr const char* kTestColour = "#cc6677";

// Draws one diagram. Its plot area is 300 x 220, with the upper left corner at (x, 50).
void panel(std::string& out, double x, const char* title, const std::vector<EpochMetrics>& epochs,
           double EpochMetrics::*train, double EpochMetrics::*test) {
  const double first = epochs.front().epoch, last = std::max<double>(epochs.back().epoch, first + 1);
  PlotCurve training{"train", kTrainColour, {}}, testing{"test", kTestColour, {}};
  for (const EpochMetrics& e : epochs) {
    training.points.emplace_back(e.epoch, e.*train);
    testing.points.emplace_back(e.epoch, e.*test);
  }
  put(out, "<text x='%.1f' y='38' class='title'>%s</text>\n", x, title);
  draw_curves(out, {x, 50, 300, 220}, {"epoch", first, last, std::max(1.0, std::ceil((last - first) / 8))},
              {training, testing},
              {.gaps = true, .points = true, .legend_x = x + 130, .legend_y = 38, .legend_distance = 70});
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
  std::string out = svg_header(780, 320);
  out += "<text x='60' y='18' class='title'>" + escaped(title) + "</text>\n";
  if (!epochs.empty()) {
    panel(out, 60, "loss", epochs, &EpochMetrics::train_loss, &EpochMetrics::test_loss);
    panel(out, 450, "accuracy", epochs, &EpochMetrics::train_accuracy, &EpochMetrics::test_accuracy);
  }
  return out + "</svg>\n";
}

std::string confusion_svg(const std::vector<std::int64_t>& counts, const std::vector<std::string>& classes,
                          const std::string& title) {
  const int n = static_cast<int>(classes.size()), cell = 44, left = 110, top = 60;
  std::string out = svg_header(left + n * cell + 20, top + n * cell + 90);
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
  std::string out = svg_header(20 + kColumns * kCell, 40 + rows * height);
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
