#include "tapestry/apps/compare/split.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/core/error.h"

namespace apps::compare {

std::vector<int> balanced_split(const std::vector<double>& costs, int parts) {
  const int n = static_cast<int>(costs.size());
  tapestry::check(parts >= 1 && n >= parts, "[balanced_split] ", n, " items for ", parts,
                  " parts; give each part at least one");
  std::vector<double> sum{0};  // of the first i costs
  for (const double cost : costs) {
    tapestry::check(std::isfinite(cost) && cost >= 0, "[balanced_split] a cost is ", cost,
                    "; costs are finite and not negative");
    sum.push_back(sum.back() + cost);
  }
  // best[p][i]: the smallest possible largest sum where p parts hold the items from i on.
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<double>> best(
      at(parts) + 1, std::vector<double>(at(n) + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> taken(at(parts) + 1, std::vector<int>(at(n) + 1, 0));
  best[0][at(n)] = 0;
  for (int p = 1; p <= parts; ++p)
    for (int i = 0; i < n; ++i)
      for (int count = 1; i + count <= n; ++count) {
        const double largest = std::max(sum[at(i + count)] - sum[at(i)], best[at(p - 1)][at(i + count)]);
        if (largest >= best[at(p)][at(i)]) continue;
        best[at(p)][at(i)] = largest;
        taken[at(p)][at(i)] = count;
      }
  std::vector<int> split;
  for (int p = parts, i = 0; p > 0; i += taken[at(p)][at(i)], --p) split.push_back(taken[at(p)][at(i)]);
  return split;
}

}  // namespace apps::compare
