#pragma once
// metrics.jsonl of a training run, and its curve.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/common/live_page.h"
#include "tapestry/apps/common/run_folder.h"

namespace apps::gpt {

struct Metrics {
  std::int64_t step = 0, tokens = 0;
  double train_loss = 0;           ///< the mean since the line before
  std::optional<double> held_out;  ///< the held-out loss, if it was measured
  double lr = 0, grad_norm = 0, seconds = 0;
};

std::string to_line(const Metrics& metrics);
/// Reads metrics.jsonl up to `last_step`. Throws IoError for a damaged line.
std::vector<Metrics> read_metrics(const std::string& path, std::int64_t last_step);
/// Tells the page of these metrics, which are those of a resumed run.
void tell(LivePage& live, const std::vector<Metrics>& metrics);
/// Both losses over the steps. Values that are not finite are left out.
std::string losses_svg(const std::vector<Metrics>& metrics, const std::string& title);

}  // namespace apps::gpt
