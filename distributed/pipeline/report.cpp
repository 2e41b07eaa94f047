#include "tapestry/distributed/pipeline/report.h"

#include <cstdio>

namespace tapestry::distributed {

std::string PipelineReport::str() const {
  char line[200];
  const auto format = [&](const char* text, auto... values) {
    std::snprintf(line, sizeof line, text, values...);
    return std::string(line);
  };
  std::string out = format("%-6s %-16s %-8s %12s %12s %12s %12s %12s %6s\n", "stage", "module", "device",
                           "forward ms", "backward ms", "receive ms", "idle ms", "bytes in", "alive");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageReport& r = stages[s];
    out += format("%-6zu %-16s %-8s %12.3f %12.3f %12.3f %12.3f %12lld %6d\n", s, r.name.c_str(),
                  r.device.str().c_str(), r.forward_s * 1e3, r.backward_s * 1e3, r.receive_s * 1e3,
                  r.idle_s * 1e3, static_cast<long long>(r.bytes_received), r.peak_micro_batches);
  }
  return out +
         format("%d micro-batches in %.3f ms, bubble %.1f%%\n", micro_batches, wall_s * 1e3, bubble * 100);
}

}  // namespace tapestry::distributed
