#include <cmath>
#include <limits>
#include <set>

#include "tapestry/core/error.h"
#include "tapestry/data/sampler.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::data;

TEST_CASE("WeightedRandomSampler draws samples in proportion to their weights") {
  const std::vector<double> weights = {0, 1, 0, 3, 0.5, 0};
  const std::int64_t draws = 20000;
  const WeightedRandomSampler sampler(weights, draws);
  CHECK(sampler.size() == draws);
  const auto order = sampler.indices(0);
  REQUIRE(order.size() == static_cast<std::size_t>(draws));
  std::vector<double> count(6);
  for (const std::int64_t i : order) ++count.at(static_cast<std::size_t>(i));
  for (std::size_t i = 0; i < 6; ++i) {
    const double p = weights[i] / 4.5, expected = p * static_cast<double>(draws);
    CHECK(std::abs(count[i] - expected) <= 5 * std::sqrt(expected * (1 - p)));
  }
  CHECK(order == sampler.indices(0));
  CHECK(order != sampler.indices(1));
  CHECK(order != WeightedRandomSampler(weights, draws, {.seed = 1}).indices(0));
  // Weights far apart, and a single one.
  for (const std::int64_t i : WeightedRandomSampler({1e-300, 1, 1e-300}, 1000).indices(0)) CHECK(i == 1);
  CHECK(WeightedRandomSampler({0, 5e-324}, 3).indices(0) == std::vector<std::int64_t>{1, 1, 1});
}

TEST_CASE("WeightedRandomSampler without replacement draws each sample at most once") {
  const std::vector<double> weights = {4, 0, 2, 1};
  std::vector<double> first(4), second(4);
  const int epochs = 6000;
  const WeightedRandomSampler sampler(weights, 2, {.replacement = false});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto order = sampler.indices(epoch);
    REQUIRE(order.size() == 2);
    REQUIRE(order[0] != order[1]);
    ++first.at(static_cast<std::size_t>(order[0]));
    ++second.at(static_cast<std::size_t>(order[1]));
  }
  // P(second is 0) = P(first is 2) * 4 / 5 + P(first is 3) * 4 / 6, and so on.
  const double p_first[] = {4.0 / 7, 0, 2.0 / 7, 1.0 / 7};
  const double p_second[] = {2.0 / 7 * 4 / 5 + 1.0 / 7 * 4 / 6, 0, 4.0 / 7 * 2 / 3 + 1.0 / 7 * 2 / 6,
                             4.0 / 7 * 1 / 3 + 2.0 / 7 * 1 / 5};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto near = [&](double count, double p) {
      CHECK(std::abs(count - p * epochs) <= 5 * std::sqrt(p * (1 - p) * epochs));
    };
    near(first[i], p_first[i]);
    near(second[i], p_second[i]);
  }
  const auto all = WeightedRandomSampler({1e-9, 1, 1e9}, 3, {.replacement = false}).indices(0);
  CHECK(std::set<std::int64_t>(all.begin(), all.end()).size() == 3);
}

TEST_CASE("WeightedRandomSampler refuses weights that are no distribution") {
  const double inf = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(WeightedRandomSampler({1, -1}, 1), ContainsSubstring("weight 1 is -1"));
  CHECK_THROWS_AS(WeightedRandomSampler({1, std::nan("")}, 1), ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler({inf}, 1), ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler({1e308, 1e308}, 1), ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler({0, 0}, 1), ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler({}, 1), ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler({1}, -1), ValueError);
  CHECK_THROWS_WITH(WeightedRandomSampler({1, 0, 1}, 3, {.replacement = false}),
                    ContainsSubstring("2 weights are positive"));
  CHECK(WeightedRandomSampler({}, 0).indices(0).empty());
}
