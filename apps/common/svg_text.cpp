#include "tapestry/apps/common/svg_text.h"

#include <cmath>

namespace apps {

double tick_distance(double range, double count) {
  const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (raw <= m * power) return m * power;
  return 10 * power;
}

}  // namespace apps
