// Compares curves and fits with values computed by hand.
#include "tapestry/distributed/planner/curve.h"

#include <cmath>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed::planner;

TEST_CASE("a curve passes through the measured points") {
  const Curve c({{16, 10}, {4, 4}, {8, 5}});
  CHECK(c.at(4) == 4);
  CHECK(c.at(8) == 5);
  CHECK(c.at(16) == 10);
  CHECK(c.at(6) == 4.5);
  CHECK(c.at(12) == 7.5);
  CHECK(c.at(24) == 15);  // the line through the last two points
  CHECK(c.at(2) == 3.5);  // the line through the first two points
  CHECK(c.at(0) == 3);
  CHECK(Curve({{1, 10}, {2, 30}}).at(0) == 0);  // never negative
  CHECK(Curve({{1, 10}, {2, 5}}).at(4) == 5);   // a falling line is noise and is not extrapolated
  CHECK(Curve({{1, 10}, {2, 5}}).at(0.5) == 10);
  CHECK(Curve({{3, 7}}).at(100) == 7);
  CHECK(Curve().at(5) == 0);
  CHECK_THROWS_WITH(Curve({{1, 2}, {1, 3}}), ContainsSubstring("two points have the size 1"));
  CHECK_THROWS_WITH(Curve({{1, NAN}}), ContainsSubstring("finite"));
}

TEST_CASE("fit_transfer_cost recovers latency and bandwidth from exact times") {
  const TransferCost cost{20e-6, 1 / 4e9};
  std::vector<std::pair<double, double>> points;
  for (const double bytes : {1e3, 1e5, 1e6, 1e8}) points.emplace_back(bytes, cost.time(bytes));
  const TransferCost found = fit_transfer_cost(points);
  CHECK(found.latency_s == Approx(cost.latency_s).epsilon(1e-9));
  CHECK(found.s_per_byte == Approx(cost.s_per_byte).epsilon(1e-9));
  SECTION("the fit minimizes the squared relative errors") {
    points = {{1, 1.1}, {2, 1.9}, {4, 4.3}, {64, 60}};
    const auto error = [&](const TransferCost& l) {
      double sum = 0;
      for (const auto& [x, t] : points) sum += std::pow(l.time(x) / t - 1, 2);
      return sum;
    };
    const TransferCost best = fit_transfer_cost(points);
    for (const double d : {-1e-3, 1e-3}) {
      CHECK(error({best.latency_s + d, best.s_per_byte}) > error(best));
      CHECK(error({best.latency_s, best.s_per_byte + d}) > error(best));
    }
  }
  SECTION("latency and time per byte are never negative") {
    const TransferCost steep = fit_transfer_cost({{1, 1}, {2, 3}}),
                       falling = fit_transfer_cost({{1, 3}, {2, 1}});
    CHECK(steep.latency_s == 0);
    CHECK(steep.s_per_byte > 1);
    CHECK(falling.s_per_byte == 0);
    CHECK(falling.latency_s > 0);
  }
  CHECK_THROWS_WITH(fit_transfer_cost({{5, 1}, {5, 2}}), ContainsSubstring("two sizes or more"));
  CHECK_THROWS_WITH(fit_transfer_cost({}), ContainsSubstring("two sizes or more"));
  CHECK_THROWS_WITH(fit_transfer_cost({{5, 1}, {6, 0}}), ContainsSubstring("above 0"));
}

TEST_CASE("a ring all-reduce takes 2 (n - 1) messages of 1/n of the bytes") {
  const TransferCost message{1, 0.5};
  CHECK(ring_time(message, 8, 1) == 0);
  CHECK(ring_time(message, 8, 2) == 2 * (1 + 2));
  CHECK(ring_time(message, 8, 4) == 6 * (1 + 1));
  for (const int n : {2, 3, 8}) {
    const TransferCost again =
        ring_message({ring_time(message, 0, n), ring_time(message, 1, n) - ring_time(message, 0, n)}, n);
    CHECK(again.latency_s == Approx(message.latency_s));
    CHECK(again.s_per_byte == Approx(message.s_per_byte));
  }
  CHECK_THROWS_AS(ring_message(message, 1), tapestry::ValueError);
}
