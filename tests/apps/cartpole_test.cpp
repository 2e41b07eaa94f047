// Compares the cart-pole of apps/common with Gymnasium's CartPole-v1.
#include <fstream>
#include <limits>
#include <sstream>

#include "tapestry/apps/common/cartpole.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using apps::CartPole;

TEST_CASE("the cart-pole moves and fails like Gymnasium's") {
  std::ifstream file(tests::source_path("tests/golden/cartpole.txt"));
  REQUIRE(file);
  CartPole pole;
  std::string line, word, actions;
  int taken = 0, episodes = 0, rows = 0, falls = 0, ends = 0;
  bool failed_early = false;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    in >> word;
    if (word == "start") {
      REQUIRE(in >> pole.x >> pole.x_dot >> pole.theta >> pole.theta_dot);
      ++episodes, taken = 0, failed_early = false;
    } else if (word == "actions") {
      REQUIRE(in >> actions);
    } else {
      REQUIRE(word == "step");
      int steps = 0;
      CartPole expected;
      bool terminated = false, truncated = false;
      REQUIRE(in >> steps >> expected.x >> expected.x_dot >> expected.theta >> expected.theta_dot >>
              terminated >> truncated);
      for (; taken < steps; ++taken) {
        failed_early = failed_early || pole.failed();
        pole.step(actions.at(static_cast<std::size_t>(taken)) == '1');
      }
      INFO("episode " << episodes << ", step " << steps);
      // The tolerance bounds rounding errors. Rows are at most 25 steps apart, and each starts from the state
      // of the row before. Both programs round about 16 operations per step, by 2^-53 of numbers below 3. A
      // falling pole multiplies errors by e^4 per second (4.0 / s is the eigenvalue of the linearized
      // equations), which is e^2 in 25 steps.
      const double tolerance = 25 * 16 * 3 * std::exp(2.0) * std::numeric_limits<double>::epsilon();
      CHECK(std::abs(pole.x - expected.x) < tolerance);
      CHECK(std::abs(pole.x_dot - expected.x_dot) < tolerance);
      CHECK(std::abs(pole.theta - expected.theta) < tolerance);
      CHECK(std::abs(pole.theta_dot - expected.theta_dot) < tolerance);
      CHECK(pole.failed() == terminated);
      CHECK((steps == CartPole::kMaxSteps) == truncated);
      CHECK_FALSE(failed_early);
      ++rows, falls += terminated, ends += truncated;
      pole = expected;
    }
  }
  CHECK(episodes == 5);
  CHECK(rows > 70);
  CHECK(falls == 4);
  CHECK(ends == 1);
}

TEST_CASE("a cart-pole at its limits has not failed, beyond them or with NaN it has") {
  CHECK_FALSE(CartPole{.x = 2.4}.failed());
  CHECK_FALSE(CartPole{.x = -2.4}.failed());
  CHECK(CartPole{.x = 2.4000001}.failed());
  CHECK(CartPole{.x = -2.4000001}.failed());
  CHECK_FALSE(CartPole{.theta = 0.2094}.failed());
  CHECK(CartPole{.theta = 0.2095}.failed());
  CHECK(CartPole{.theta = -0.2095}.failed());
  CHECK(CartPole{.x = std::numeric_limits<double>::quiet_NaN()}.failed());
  CHECK(CartPole{.theta = std::numeric_limits<double>::quiet_NaN()}.failed());
}
