#include "tapestry/apps/gpt/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tapestry/apps/common/svg_axes.h"
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

void tell(LivePage& live, const std::vector<Metrics>& metrics) {
  std::int64_t before = 0;
  for (const Metrics& m : metrics) {
    if (m.step > before)
      live.earlier({.step = m.step, .steps = m.step - before, .loss = m.train_loss},
                   m.held_out.value_or(NAN));
    before = m.step;
  }
}

std::string losses_svg(const std::vector<Metrics>& metrics, const std::string& title) {
  std::string out = svg_header(740, 410);
  out += "<text x='60' y='22' class='title'>" + escaped(title) + "</text>\n";
  PlotCurve training{"training", "#4477aa", {}}, held_out{"held-out", "#cc6677", {}};
  double last = 1;
  for (const Metrics& m : metrics) {
    const auto step = static_cast<double>(m.step);
    last = std::max(last, step);
    training.points.emplace_back(step, m.train_loss);
    held_out.points.emplace_back(step, m.held_out.value_or(NAN));
  }
  draw_curves(out, {60, 50, 640, 300}, {"step", 0, last, std::max(1.0, tick_distance(last, 8))},
              {training, held_out}, {.legend_x = 480, .legend_y = 22});
  return out + "</svg>\n";
}

}  // namespace apps::gpt
