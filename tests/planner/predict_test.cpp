// Tests properties that hold for the predictions of every mode, and simulations of devices and links that do
// not exist.
#include <cmath>

#include "tapestry/core/error.h"
#include "tapestry/distributed/strategy/internal/row.h"
#include "tests/planner/examples.h"

using namespace tests;

TEST_CASE("on one device every mode takes as long as single") {
  Profile profile = profile_with(3);
  profile.loss.forward_s = proportional(0.5);
  const double single = predicted("single", profile, slow_link(), setup_of(1, 8)).step_s;
  for (const std::string& mode : kModes) {
    CAPTURE(mode);
    Link link = slow_link();
    CHECK(predicted(mode, profile, link, setup_of(1, 8, {3}, 1)).step_s == Approx(single));
  }
}

TEST_CASE("a faster link never makes a step slower") {
  Profile profile = profile_with(5, static_cast<std::int64_t>(9 * kMiB));
  for (const std::string& mode : kModes)
    for (const int devices : {2, 3, 5})
      for (const double stops : {0.0, 0.3, 1.0}) {
        CAPTURE(mode, devices, stops);
        std::vector<int> split(static_cast<std::size_t>(devices), 1);
        split[0] += 5 - devices;
        double before = INFINITY;
        for (const double bandwidth : {1e6, 1e7, 1e8, 1e9, 1e12}) {
          const TransferCost cost{1e-3, 1 / bandwidth};
          Link link = {
              .copy = cost, .add = cost, .local = interfering(stops, 1.5), .ranks = interfering(stops, 1.5)};
          link.local.message = link.ranks.message = cost;
          const double step = predicted(mode, profile, link, setup_of(devices, 30, split, 5)).step_s;
          CHECK(step <= before * (1 + 1e-12));
          before = step;
        }
      }
}

TEST_CASE("impossible setups throw, and options that no row describes have no prediction") {
  const Profile profile = profile_with(2);
  CHECK_THROWS_WITH(predict(plan_of("horovod"), profile, {}, setup_of(2, 8)),
                    ContainsSubstring("there is no axis"));
  CHECK_FALSE(predict(plan_of("replicate=2:compress=bf16"), profile, {}, setup_of(2, 8)).has_value());
  CHECK_FALSE(simulate_devices(plan_of("shard=2:devices"), profile, {}, setup_of(2, 8), 8).has_value());
  CHECK_THROWS_WITH(predict(plan_of("replicate=3"), profile, {}, setup_of(2, 8)),
                    ContainsSubstring("replicate=3 are not those of 2 devices"));
  CHECK_THROWS_WITH(predict(plan_of("single"), Profile(), {}, setup_of(2, 8)),
                    ContainsSubstring("no blocks"));
  CHECK_THROWS_WITH(predict(plan_of("ddp"), profile, {}, setup_of(9, 8)),
                    ContainsSubstring("9 devices for a batch of 8"));
}

TEST_CASE("a row brings what predicts it") {
  const Profile profile = profile_with(4);
  {
    const tapestry::distributed::RowRegistration row{{.axis = "tensor",
                                                      .over_devices = true,
                                                      .order = 20,
                                                      .divide =
                                                          [](const AxisSpec&, StepDivision& step) {
                                                            step.sum = StepDivision::Sum::buckets;
                                                            return true;
                                                          },
                                                      .make = nullptr}};
    CHECK(predicted("tensor=2:devices", profile, slow_link(), setup_of(2, 8)).step_s ==
          predicted("dp-replicated", profile, slow_link(), setup_of(2, 8)).step_s);
  }
  CHECK_THROWS_WITH(predict(plan_of("tensor=2:devices"), profile, {}, setup_of(2, 8)),
                    ContainsSubstring("no axis tensor"));
}

TEST_CASE("simulated devices have no contention and are marked") {
  Profile profile = profile_with(6);
  profile.contention = {2, 2, 2};  // simulations must ignore all contention
  profile.stages = {{2, 2, 1}, {2, 2, 1}};
  profile.zero_bubble_stages = {{{2, 2, 2}, 9, 9, 9}, {{2, 2, 2}, 9, 9, 9}};
  Link link;
  link.ranks.contention = link.master_contention = {2, 2, 2};
  const TrainingSetup measured = setup_of(2, 64, {3, 3}, 16);
  const auto ddp = simulate_devices(plan_of("ddp"), profile, link, measured, 8);
  REQUIRE(ddp.has_value());
  CHECK((ddp->simulated && ddp->devices == 8));
  CHECK(ddp->breakdown.forward_s == Approx(6 * 8));
  CHECK(simulate_devices(plan_of("dp-master"), profile, link, measured, 8)->breakdown.forward_s ==
        Approx(6 * 8));
  CHECK_FALSE(predict(plan_of("ddp"), profile, {}, measured)->simulated);
  const auto pipeline = simulate_devices(plan_of("pipeline-1f1b"), profile, {}, measured, 6);
  REQUIRE(pipeline.has_value());
  CHECK(pipeline->step_s == Approx((16 + 5) * (4 + 8) + 0.5));
  CHECK_FALSE(simulate_devices(plan_of("pipeline-1f1b"), profile, {}, measured, 8)
                  .has_value());  // there are only six blocks
  CHECK(simulate_devices(plan_of("ddp"), profile, {}, measured, 8).has_value());
}

TEST_CASE("link_with replaces only the given values") {
  Link measured;
  measured.copy = {1, 2};
  measured.broadcast = {2, 2};
  measured.add = {3, 5};
  measured.local = interfering(0.5, 2);
  measured.ranks = interfering(1, 3);
  measured.local.message = {4, 6};
  measured.ranks.message = {7, 8};
  CHECK(to_text(link_with(measured, {}, {})) == to_text(measured));
  const Link both = link_with(measured, 0.5, 4.0);
  for (const TransferCost& cost : {both.copy, both.broadcast, both.local.message, both.ranks.message}) {
    CHECK(cost.latency_s == 0.5);
    CHECK(cost.s_per_byte == 0.25);
  }
  CHECK(both.add.s_per_byte == 3.25);
  CHECK(both.ranks.compute_stall == 0);
  CHECK(both.ranks.overlap_slowdown == 1);
  const Link later = link_with(measured, 0.5, {});
  CHECK(later.ranks.message.latency_s == 0.5);
  CHECK(later.ranks.message.s_per_byte == 8);
  CHECK(later.add.s_per_byte == 5);
}
