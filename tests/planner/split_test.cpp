// Compares balanced_split() with an exhaustive search.
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tapestry/distributed/planner/planner.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed::planner;

namespace {

using Split = std::vector<int>;

double largest_part(const std::vector<double>& costs, const Split& split) {
  double most = 0;
  auto at = costs.begin();
  for (const int count : split) {
    most = std::max(most, std::accumulate(at, at + count, 0.0));
    at += count;
  }
  return most;
}

// Returns the smallest possible largest sum, found by trying all splits.
double best_possible(const std::vector<double>& costs, std::size_t begin, int parts) {
  if (parts == 1)
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t i = begin; i + static_cast<std::size_t>(parts) - 1 < costs.size(); ++i) {
    sum += costs[i];
    best = std::min(best, std::max(sum, best_possible(costs, i + 1, parts - 1)));
  }
  return best;
}

}  // namespace

TEST_CASE("balanced_split minimizes the largest sum of costs") {
  CHECK(balanced_split({1, 1, 1, 1}, 2) == Split{2, 2});
  CHECK(balanced_split({3, 1, 1, 1}, 2) == Split{1, 3});
  CHECK(balanced_split({1, 1, 1, 3}, 2) == Split{3, 1});
  CHECK(balanced_split({5, 1, 1}, 3) == Split{1, 1, 1});
  CHECK(balanced_split({4}, 1) == Split{1});
  CHECK(balanced_split({0, 0, 0}, 2).size() == 2);

  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0, 1);
  for (int n = 1; n <= 8; ++n)
    for (int parts = 1; parts <= n; ++parts) {
      std::vector<double> costs(static_cast<std::size_t>(n));
      for (double& c : costs) c = cost(random);
      const Split split = balanced_split(costs, parts);
      REQUIRE(split.size() == static_cast<std::size_t>(parts));
      CHECK(std::accumulate(split.begin(), split.end(), 0) == n);
      for (const int count : split) CHECK(count >= 1);
      CHECK(largest_part(costs, split) == Approx(best_possible(costs, 0, parts)).epsilon(1e-12));
    }

  CHECK_THROWS_WITH(balanced_split({1, 2}, 3), ContainsSubstring("2 items for 3 parts"));
  CHECK_THROWS_WITH(balanced_split({1, 2}, 0), ContainsSubstring("0 parts"));
  CHECK_THROWS_WITH(balanced_split({1, -2}, 1), ContainsSubstring("-2"));
  CHECK_THROWS_WITH(balanced_split({1, std::nan("")}, 1), ContainsSubstring("not negative"));
}

TEST_CASE("balanced_split of a profile uses the time of a micro-batch") {
  // With 2 samples per micro-batch the blocks take 8, 3, 3 and 2 seconds; with 8 samples the last one would
  // take most.
  Profile profile;
  for (const Curve& c : {Curve({{2, 8}, {8, 8}}), Curve({{2, 3}, {8, 3}}), Curve({{2, 3}, {8, 3}}),
                         Curve({{2, 2}, {8, 100}})}) {
    profile.blocks.emplace_back();
    profile.blocks.back().forward_s = c;
  }
  const TrainingSetup setup{.batch_size = 8, .devices = 2, .micro_batches = 4};
  CHECK(balanced_split(profile, setup) == Split{1, 3});
  CHECK(balanced_split(profile, {.batch_size = 8, .devices = 2, .micro_batches = 1}) == Split{3, 1});
  CHECK_THROWS_WITH(balanced_split(profile, {.batch_size = 8, .devices = 2, .micro_batches = 0}),
                    ContainsSubstring("0 micro-batches"));
}
