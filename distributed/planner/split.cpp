#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

std::vector<int> balanced_split(const std::vector<double>& costs, int parts) {
  const int n = static_cast<int>(costs.size());
  check(parts >= 1 && n >= parts, "[balanced_split] ", n, " items for ", parts,
        " parts; each part needs at least one");
  std::vector<double> sum{0};  // sum[i]: of the first i costs
  for (const double cost : costs) {
    check(std::isfinite(cost) && cost >= 0, "[balanced_split] a cost is ", cost,
          "; costs must be finite and not negative");
    sum.push_back(sum.back() + cost);
  }
  // best[p][i]: the smallest possible largest sum if p parts hold the items from i on. taken[p][i]: the
  // number of items in the first of these parts.
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

std::vector<int> balanced_split(const Profile& profile, const TrainingSetup& setup, int stages) {
  check(setup.micro_batches >= 1, "[balanced_split] ", setup.micro_batches, " micro-batches; pass 1 or more");
  return balanced_split(profile.costs(static_cast<double>(setup.batch_size) / setup.micro_batches),
                        stages > 0 ? stages : setup.devices);
}

}  // namespace tapestry::distributed::planner
