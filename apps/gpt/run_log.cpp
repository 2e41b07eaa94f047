#include "tapestry/apps/gpt/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tapestry/apps/common/svg_text.h"
#include "tapestry/core/error.h"

namespace apps::gpt {

using Json = nlohmann::ordered_json;
using tapestry::check;
using tapestry::IoError;

std::string to_line(const Metrics& m) {
  // JSON has no NaN and no infinity.
  const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json(); };
  const Json json = {{"step", m.step},
                     {"tokens", m.tokens},
                     {"train_loss", number(m.train_loss)},
                     {"val_loss", m.held_out ? number(*m.held_out) : Json()},
                     {"lr", number(m.lr)},
                     {"grad_norm", number(m.grad_norm)},
                     {"seconds", number(m.seconds)}};
  return json.dump() + "\n";
}

std::vector<Metrics> read_metrics(const std::string& path, std::int64_t last_step) {
  std::vector<Metrics> all;
  if (!std::filesystem::exists(path)) return all;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    Metrics m;
    try {
      const auto json = nlohmann::json::parse(line);
      const auto number = [&](const char* name) {
        return json.at(name).is_null() ? NAN : json.at(name).get<double>();
      };
      m = {.step = json.at("step").get<std::int64_t>(),
           .tokens = json.at("tokens").get<std::int64_t>(),
           .train_loss = number("train_loss"),
           .held_out = json.at("val_loss").is_null() ? std::nullopt : std::optional(number("val_loss")),
           .lr = number("lr"),
           .grad_norm = number("grad_norm"),
           .seconds = number("seconds")};
    } catch (const nlohmann::json::exception& e) {
      tapestry::fail<IoError>("[gpt train] ", path, ": line ", all.size() + 1, " is not metrics: ", e.what(),
                              "; restore the file, or delete it to continue without the earlier lines");
    }
    if (m.step > last_step) break;
    all.push_back(m);
  }
  return all;
}

std::string losses_svg(const std::vector<Metrics>& metrics, const std::string& title) {
  constexpr double kLeft = 60, kTop = 50, kWidth = 640, kHeight = 300;
  std::string out =
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 740 410' width='740' height='410'>\n"
      "<style>text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}</style>\n"
      "<rect width='100%' height='100%' fill='white'/>\n";
  out += "<text x='60' y='22' class='title'>" + escaped(title) + "</text>\n";
  struct Curve {
    const char* name;
    const char* colour;
    std::function<double(const Metrics&)> value;
  };
  const Curve curves[] = {{"training", "#4477aa", [](const Metrics& m) { return m.train_loss; }},
                          {"held-out", "#cc6677", [](const Metrics& m) { return m.held_out.value_or(NAN); }}};
  double low = INFINITY, high = -INFINITY, last = 1;
  for (const Metrics& m : metrics) {
    last = std::max(last, static_cast<double>(m.step));
    for (const Curve& c : curves)
      if (const double v = c.value(m); std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
  }
  if (!(low <= high)) low = 0, high = 1;
  if (high - low < 1e-9) low -= 0.05, high += 0.05;
  const double tick = tick_distance(high - low);
  low = std::floor(low / tick) * tick;
  high = std::ceil(high / tick) * tick;
  const auto px = [&](double step) { return kLeft + step / last * kWidth; };
  const auto py = [&](double v) { return kTop + kHeight - (v - low) / (high - low) * kHeight; };
  for (double v = low; v <= high + tick / 2; v += tick) {
    put(out, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>", kLeft, py(v), kLeft + kWidth,
        py(v));
    put(out, "<text x='%.1f' y='%.1f' text-anchor='end'>%.4g</text>\n", kLeft - 6, py(v) + 4,
        std::abs(v) < tick / 2 ? 0 : v);
  }
  const double every = std::max(1.0, tick_distance(last, 8));
  for (double s = 0; s <= last; s += every)
    put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n", px(s), kTop + kHeight + 16, s);
  put(out, "<text x='%.1f' y='%.1f' text-anchor='middle'>step</text>\n", kLeft + kWidth / 2,
      kTop + kHeight + 36);
  double legend = 480;
  for (const Curve& c : curves) {
    std::string path;
    for (const Metrics& m : metrics) {
      const double v = c.value(m);
      if (!std::isfinite(v)) continue;
      put(path, "%c%.1f %.1f", path.empty() ? 'M' : 'L', px(static_cast<double>(m.step)), py(v));
    }
    if (!path.empty()) {
      out += "<path d='" + path + "' fill='none' stroke-width='2' stroke='";
      out += c.colour;
      out += "'/>\n";
    }
    put(out, "<circle cx='%.1f' cy='18' r='4' fill='%s'/><text x='%.1f' y='22'>%s</text>\n", legend, c.colour,
        legend + 8, c.name);
    legend += 100;
  }
  return out + "</svg>\n";
}

}  // namespace apps::gpt
