#include "tapestry/distributed/common/ddp_report.h"

#include <algorithm>
#include <cstdio>

namespace tapestry::distributed {

std::string DdpReport::str() const {
  char line[256];
  std::snprintf(line, sizeof line,
                "backward %.2f ms, communication %.2f ms: %.2f ms hidden, %.2f ms exposed\n",
                backward_s * 1e3, communication_s * 1e3, hidden_s * 1e3, exposed_s * 1e3);
  std::string text = line;
  std::snprintf(line, sizeof line, "%10s %10s %10s %10s %10s  %s\n", "KiB", "posted", "started", "finished",
                "exposed", "bucket (ms since backward began)");
  text += line;
  for (const BucketReport& b : buckets) {
    const double exposed = std::max(0.0, b.finished - std::max(backward_s, b.started));
    std::snprintf(line, sizeof line, "%10.1f %10.2f %10.2f %10.2f %10.2f  ",
                  static_cast<double>(b.bytes) / 1024, b.posted * 1e3, b.started * 1e3, b.finished * 1e3,
                  exposed * 1e3);
    text += line + b.name + '\n';
  }
  return text;
}

}  // namespace tapestry::distributed
