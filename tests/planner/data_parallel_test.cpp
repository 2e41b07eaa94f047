// Compares predictions for single, dp-master, dp-replicated and ddp with sums done by hand.
#include <numeric>

#include "tapestry/distributed/planner/internal/overlap.h"
#include "tests/planner/examples.h"

using namespace tests;

namespace {

// The length of backward, including delays caused by communication.
double backward_s(const StepQueues& times) {
  return std::accumulate(times.computing_s.begin(), times.computing_s.end(), 0.0);
}

}  // namespace

TEST_CASE("all-reduces of buckets overlap backward") {
  const std::vector<double> ready = {2, 5, 10};
  SECTION("communication does not disturb computing") {
    // The all-reduces run from 2 s to 5 s, from 5 s to 8 s, and from 10 s to 13 s.
    StepQueues o = overlap(ready, std::vector<double>{3, 3, 3}, 10, interfering(0));
    CHECK(backward_s(o) == 10);
    CHECK(o.tail_s == 3);
    // The all-reduces run from 2 s to 8 s, from 8 s to 14 s, and from 14 s to 20 s: each waits for the one
    // before.
    o = overlap(ready, std::vector<double>{6, 6, 6}, 10, interfering(0));
    CHECK(backward_s(o) == 10);
    CHECK(o.tail_s == 10);
    // No communication is exposed if backward continues after the last all-reduce.
    o = overlap(ready, std::vector<double>{1, 1, 1}, 12, interfering(0));
    CHECK(backward_s(o) == 12);
    CHECK(o.tail_s == 0);
  }
  SECTION("communication delays computing") {
    // Computing stops from 2 to 5 and from 8 to 11. The last all-reduce runs after backward.
    StepQueues o = overlap(ready, std::vector<double>{3, 3, 3}, 10, interfering(1));
    CHECK(backward_s(o) == 16);
    CHECK(o.tail_s == 3);
    // Computing runs at half speed during all-reduces. From 2 to 6 it does 2 s of work, so the second bucket
    // is ready at 7. From 7 to 11 it does 2 s, so the third bucket is ready at 14.
    o = overlap(ready, std::vector<double>{4, 4, 4}, 10, interfering(0.5));
    CHECK(backward_s(o) == 14);
    CHECK(o.tail_s == 4);
    // The second bucket is ready at 8, while the first all-reduce runs until 12. The second one runs from 12
    // to 13. By then 5 + 2.5 s of work are done, so backward ends at 13 + 2.5.
    o = overlap(std::vector<double>{2, 5}, std::vector<double>{10, 1}, 10, interfering(0.5));
    CHECK(backward_s(o) == 15.5);
    CHECK(o.tail_s == 0);
  }
  SECTION("no buckets, or all-reduces without cost, do not change backward") {
    CHECK(backward_s(overlap({}, {}, 7, interfering(0.5))) == 7);
    CHECK(backward_s(overlap(ready, std::vector<double>{0, 0, 0}, 10, interfering(1))) == 10);
    CHECK(overlap(ready, std::vector<double>{0, 0, 0}, 10, interfering(1)).tail_s == 0);
  }
  SECTION("computing slows communication down") {
    // The first all-reduce takes 6 s, from 2 to 8, in which computing does 3 s of work and completes the
    // second bucket. The second runs from 8 to 14. The third starts when backward ends at 16 and takes 3 s.
    StepQueues o = overlap(ready, std::vector<double>{3, 3, 3}, 10, interfering(0.5, 2));
    CHECK(backward_s(o) == 16);
    CHECK(o.tail_s == 3);
    // From 2 to 10 the all-reduce does 4 s of its 6 s.
    o = overlap(std::vector<double>{2}, std::vector<double>{6}, 10, interfering(0, 2));
    CHECK(backward_s(o) == 10);
    CHECK(o.tail_s == 2);
  }
  CHECK_THROWS_WITH(overlap(ready, std::vector<double>{1}, 10, {}), ContainsSubstring("3 buckets with 1"));
  CHECK_THROWS_WITH(overlap(std::vector<double>{5, 2}, std::vector<double>{1, 1}, 10, interfering(0)),
                    ContainsSubstring("bucket 1 is complete after 2 s, the one before it after 5 s"));
  CHECK_THROWS_WITH(overlap(ready, ready, 9, interfering(0)), ContainsSubstring("backward ends after 9 s"));
  CHECK_THROWS_WITH(overlap(ready, ready, 10, interfering(1.5)), ContainsSubstring("from 0 to 1"));
  CHECK_THROWS_WITH(overlap(ready, ready, 10, interfering(0, 0.5)), ContainsSubstring("1 or more"));
}

TEST_CASE("single: step time and memory are sums over the blocks") {
  Profile profile = profile_with(3, 10);
  profile.loss.forward_s = profile.loss.backward_s = proportional(0.125);
  const Prediction p = predicted("single", profile, slow_link(), setup_of(2, 8));
  CHECK(p.breakdown.forward_s == Approx(3 * 8 + 1));
  CHECK(p.breakdown.backward_s == Approx(3 * 2 * 8 + 1));
  CHECK(p.breakdown.update_s == Approx(1.5));
  CHECK(p.breakdown.exposed_comm_s == 0);
  CHECK(p.breakdown.idle_s == 0);
  REQUIRE(p.memory.size() == 1);
  // Memory peaks when the backward of the last block runs: all saved activations, the gradient of the output,
  // and the workspace.
  const MemoryItems& m = p.memory[0];
  CHECK(m.parameters == 30);
  CHECK(m.data == 8 * (6 + 8));
  CHECK(m.activations == 3 * 80);
  CHECK(m.gradients == 0);
  CHECK(m.workspace == 32 + 56 + 10);
  CHECK(m.buckets == 0);
  CHECK(m.total() == 30 + 112 + 240 + 98);
  CHECK(p.largest().total() == m.total());
  SECTION("memory peaks at the end of backward if gradients are larger than activations") {
    const Prediction heavy = predicted("single", profile_with(3, 10000), slow_link(), setup_of(1, 8));
    CHECK(heavy.memory[0].gradients == 20000);
    CHECK(heavy.memory[0].activations == 80);
    CHECK(heavy.memory[0].workspace == 32 + 56 + 10000);
  }
}

TEST_CASE("dp-master: phases follow each other, and the other devices idle during loss and update") {
  Profile profile = profile_with(2);
  profile.loss.forward_s = proportional(0.5);
  profile.loss.backward_s = proportional(0.25);
  profile.loss.saved_bytes = proportional(5);
  Link link;
  link.copy = {0.1, 0.01};
  link.broadcast = {0.15, 0.015};
  link.add = {0.2, 0.02};
  link.master_contention = {1.5, 1.25, 2};
  const Prediction p = predicted("dp-master", profile, link, setup_of(2, 10));
  const double images = 0.1 + 0.01 * 6 * 5, broadcast = 2 * 0.15 + 0.015 * 200, outputs = 0.1 + 0.01 * 4 * 5;
  const double added = 2 * 0.2 + 0.02 * 200;
  CHECK(p.breakdown.exposed_comm_s == Approx(images + broadcast + 2 * outputs + added));
  // While the first device computes the loss and runs the optimizer, the other is idle.
  CHECK(p.breakdown.forward_s == Approx(1.5 * 2 * 5 + 0.5 * 10 / 2));
  CHECK(p.breakdown.backward_s == Approx(1.25 * 2 * 2 * 5 + 0.25 * 10 / 2));
  CHECK(p.breakdown.update_s == Approx(2 * 1.0 / 2));
  CHECK(p.breakdown.idle_s == Approx((5 + 2.5 + 2) / 2));
  // The first device holds the whole batch, all outputs and their gradient.
  CHECK(p.memory.at(0).data == 10 * 14 + 2 * 10 * 4);
  CHECK(p.memory.at(1).data == 5 * 6);
  const MemoryItems heavy = predicted("dp-master", profile_with(2, 10000), link, setup_of(2, 10)).memory[0];
  CHECK(heavy.gradients == 20000);  // gradients of other devices are added to these, one by one
  CHECK(heavy.workspace == 10000);
  CHECK(p.memory[0].parameters == 200);
  CHECK(p.memory[1].parameters == 200);
  SECTION("the cost of communication grows with the number of other devices") {
    const Prediction four = predicted("dp-master", profile, link, setup_of(4, 8));
    CHECK(four.breakdown.exposed_comm_s == Approx((3 * 0.1 + 0.01 * 6 * 6) + (2 * 0.15 + 3 * 0.015 * 200) +
                                                  2 * (3 * 0.1 + 0.01 * 4 * 6) + 3 * added));
  }
}

TEST_CASE("dp-replicated and ddp: gradients fill buckets of 1 MiB and then 25 MiB, from the last layer on") {
  Profile profile = profile_with(4, static_cast<std::int64_t>(20 * kMiB));
  profile.blocks[3].parameter_bytes = {static_cast<std::int64_t>(0.5 * kMiB),
                                       static_cast<std::int64_t>(0.5 * kMiB)};
  Link link;
  link.ranks.message = {0, 1 / kMiB};  // 1 s per MiB
  // Two devices have four samples each, so the backward of a block takes 8 s. The first bucket is the last
  // block's 1 MiB, after 8 s. The second has the next two blocks, 40 MiB, since a bucket is closed when it
  // reaches its cap; it is complete after 24 s. The third has 20 MiB, after 32 s.
  const Prediction p = predicted("ddp", profile, link, setup_of(2, 8));
  CHECK(p.breakdown.forward_s == Approx(4 * 4));
  CHECK(p.breakdown.backward_s == Approx(32));
  // An all-reduce of b MiB between two devices takes 2 * b / 2 s. So the second one runs from 24 s to 64 s,
  // and the third one from 64 s to 84 s.
  CHECK(p.breakdown.exposed_comm_s == Approx(84 - 32));
  CHECK(p.breakdown.update_s == Approx(2));
  REQUIRE(p.memory.size() == 2);
  CHECK(p.memory[0].buckets == 61 * kMiB);
  CHECK(p.memory[0].gradients == 0);  // gradients are views of the buckets
  CHECK(p.memory[0].data == 4 * 14);
  SECTION("in one process, the first device holds the batch and the samples of the others are copied") {
    link.local = link.ranks;
    link.copy.latency_s = 0.25;
    profile.dispatch_s = 0.125;
    const Prediction dp = predicted("dp-replicated", profile, link, setup_of(2, 8));
    CHECK(dp.breakdown.exposed_comm_s == Approx(84 - 32 + 0.25));
    CHECK(dp.breakdown.idle_s == Approx(3 * 0.125));
    CHECK(dp.memory[0].data == 8 * 14);
    CHECK(dp.memory[1].data == 4 * 14);
  }
  SECTION("copying gradients into buckets delays backward") {
    for (BlockProfile& b : profile.blocks) b.bucket_copy_s = 0.25;
    const Prediction copied = predicted("ddp", profile, link, setup_of(2, 8));
    CHECK(copied.breakdown.backward_s == Approx(32 + 4 * 0.25));
    CHECK(copied.breakdown.exposed_comm_s ==
          Approx(84 - 32 - 0.25));  // the second bucket is ready 0.75 s later
  }
  SECTION("contention slows all phases, by different factors for threads and processes") {
    link.local.contention = {1.5, 1.25, 2};
    link.ranks.contention = {1.25, 1.5, 3};
    const Prediction slower = predicted("dp-replicated", profile, link, setup_of(2, 8));
    CHECK(slower.breakdown.forward_s == Approx(1.5 * 16));
    CHECK(slower.breakdown.backward_s == Approx(1.25 * 32));
    CHECK(slower.breakdown.update_s == Approx(2 * 2));
    const Prediction ranks = predicted("ddp", profile, link, setup_of(2, 8));
    CHECK(ranks.breakdown.forward_s == Approx(1.25 * 16));
    CHECK(ranks.breakdown.backward_s == Approx(1.5 * 32));
    CHECK(ranks.breakdown.update_s == Approx(3 * 2));
    // Modes in which one device computes at a time have no contention.
    CHECK(predicted("single", profile, link, setup_of(2, 8)).breakdown.forward_s == Approx(4 * 8));
    CHECK(predicted("model", profile, link, setup_of(2, 8, {2, 2})).breakdown.forward_s ==
          Approx(4 * 8 / 2.0));
  }
  SECTION("if the batch does not divide evenly, the device with most samples determines the time") {
    const Prediction uneven = predicted("ddp", profile, link, setup_of(3, 8));
    CHECK(uneven.breakdown.forward_s == Approx(4 * 3));
    CHECK(uneven.memory[0].data == 3 * 14);
    CHECK(uneven.memory[2].data == 2 * 14);
  }
}
