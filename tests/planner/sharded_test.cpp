// Compares predictions for fsdp, zero1 and zero2 with sums done by hand.
#include <cmath>
#include <utility>

#include "tapestry/distributed/planner/internal/sharded_step.h"
#include "tapestry/distributed/planner/internal/step_queues.h"
#include "tests/planner/examples.h"

using namespace tests;

namespace {

// A link on which an all-gather over `devices` takes one second per 100 bytes.
Link link_for(int devices) {
  const TransferCost message{0, devices / (100.0 * (devices - 1))};
  return {.ranks = {.message = message, .overlap_slowdown = 1, .compute_stall = 0, .contention = {}}};
}

}  // namespace

TEST_CASE("phases and collectives run side by side and wait for each other") {
  const std::vector<ComputePhase> phases = {{2, 0}, {2, 1}, {3, -1}};
  const std::vector<Collective> collectives = {
      {.seconds = 1}, {.seconds = 4, .after = 0, .at_begin = true}, {.seconds = 5, .after = 1}};
  // The first collective runs from 0 to 1, and the first phase from 1 to 3. The second collective runs from 1
  // to 5, so the second phase runs from 5 to 7. The third collective runs from 7 to 12, beside the third
  // phase until 10.
  StepQueues q = simulate(phases, collectives, interfering(0));
  CHECK(q.waiting_s == std::vector<double>{1, 2, 0});
  CHECK(q.computing_s == std::vector<double>{2, 2, 3});
  CHECK(q.tail_s == 2);
  // A phase runs at half speed beside a collective. The first phase needs 4 s, all of them beside the second
  // collective, so the second phase begins at once. The third phase does 2.5 s of its work in 5 s.
  q = simulate(phases, collectives, interfering(0.5));
  CHECK(q.waiting_s == std::vector<double>{1, 0, 0});
  CHECK(q.computing_s == std::vector<double>{4, 2, 5.5});
  CHECK(q.tail_s == 0);
  // A collective takes twice as long beside a phase: the second one does 1 s of its work beside the first
  // phase, and 3 s after it.
  q = simulate(phases, collectives, interfering(0, 2));
  CHECK(q.waiting_s == std::vector<double>{1, 3, 0});
  CHECK(q.tail_s == 3.5);
  // Phases stand still beside collectives.
  q = simulate(phases, collectives, interfering(1));
  CHECK(q.waiting_s == std::vector<double>{1, 0, 0});
  CHECK(q.computing_s == std::vector<double>{6, 2, 8});

  CHECK(simulate({}, {}, interfering(0)).tail_s == 0);
  CHECK_THROWS_WITH(
      simulate(std::vector<ComputePhase>{{1, 0}}, std::vector<Collective>{{1, 0}}, interfering(0)),
      ContainsSubstring("wait for each other"));
  CHECK_THROWS_WITH(simulate(std::vector<ComputePhase>{{1, 3}}, {}, interfering(0)),
                    ContainsSubstring("needs collective 3 of 0"));
  CHECK_THROWS_WITH(simulate({}, std::vector<Collective>{{1, 2}}, interfering(0)),
                    ContainsSubstring("waits for phase 2 of 0"));
  CHECK_THROWS_WITH(simulate(phases, collectives, interfering(2)), ContainsSubstring("from 0 to 1"));
}

TEST_CASE("fsdp: gathers and reduce-scatters overlap computing, and the first and the last are exposed") {
  const Profile profile =
      profile_with(4);  // 100 bytes a block; with 4 samples forward takes 4 s, backward 8 s
  for (const int devices : {2, 4}) {
    CAPTURE(devices);
    const Prediction p = predicted("fsdp", profile, link_for(devices), setup_of(devices, 4 * devices));
    CHECK(p.breakdown.forward_s == Approx(16));
    CHECK(p.breakdown.backward_s == Approx(32));
    // One second each: the first gather, the first gather of backward, and the last reduce-scatter. At the
    // begin of backward the second gather is posted when the first block computes.
    CHECK(p.breakdown.exposed_comm_s == Approx(3));
    CHECK(p.breakdown.update_s == Approx(2.0 / devices));
    CHECK(p.breakdown.idle_s == 0);
  }
  // 10 s per collective: every collective of forward and backward takes longer than the computing beside it.
  // Forward waits 10 s for the first gather and 6 s for each of three. Backward waits 10 s for its first
  // gather, 2 s for the second, and 10 + 10 - 8 s for each of two, because a reduce-scatter comes between.
  // The last two reduce-scatters take 2 + 10 s longer than the last block.
  const Prediction slow = predicted("fsdp", profile_with(4, 1000), link_for(2), setup_of(2, 8));
  CHECK(slow.breakdown.exposed_comm_s == Approx(10 + 3 * 6 + 10 + 2 + 2 * 12 + 12));
}

TEST_CASE("fsdp: every event of a schedule with different collectives is where it is by hand") {
  Profile profile;
  for (const auto& [forward, backward] : {std::pair(1.0, 2.0), {4.0, 3.0}, {1.0, 5.0}})
    profile.blocks.push_back(block(100, forward, backward));
  profile.loss.name = "loss";
  profile.loss.forward_s = proportional(1);
  profile.loss.backward_s = proportional(2);
  Link link;  // over two devices a gather takes 2 s, a reduce-scatter 3 s
  link.ranks.message = {7, 7};
  link.ranks.gather_message = {0, 2.0 / 50};
  link.ranks.scatter_message = {1, 2.0 / 50};
  const TrainingSetup setup = setup_of(2, 2);
  const CostModel c{profile, link, setup, {sharded_over(2, link)}};
  const BlockTimes forward = forward_times(c, c.all_blocks(), 1, true, 1),
                  backward = backward_times(c, c.all_blocks(), 1, true, 1);
  const ShardedStep step(c, c.all_blocks(), &forward, &backward, {});
  const StepQueues q = simulate(step.phases, step.collectives, link.ranks);
  // Forward: block 0 waits for its gather, until 2. Block 1 waits for its own, from 2 to 4. Block 2 and the
  // loss wait for nothing. Backward of the loss ends at 12, and then the gathers of block 2 (to 14) and block
  // 1 (to 16) are posted. Backward of block 2 runs from 14 to 19. Its reduce-scatter runs to 22, so the
  // gather of block 0, posted at 19, ends at 24. Block 1 runs from 19 to 22, block 0 from 24 to 26. The
  // reduce-scatters of block 1 and block 0 run from 24 to 27 and to 30.
  const auto near = [](const std::vector<double>& all, const std::vector<double>& by_hand) {
    REQUIRE(all.size() == by_hand.size());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == Approx(by_hand[i]));
  };
  near(q.phase_ended_s, {3, 8, 9, 10, 12, 19, 22, 26});
  near(q.collective_ended_s, {2, 4, 6, 14, 16, 22, 24, 27, 30});
  const Prediction p = predicted("fsdp", profile, link, setup);
  CHECK(p.breakdown.exposed_comm_s == Approx(2 + 1 + 2 + 2 + 4));
  CHECK(p.breakdown.forward_s == Approx(7));
  CHECK(p.breakdown.backward_s == Approx(12));
  // Costs that were not measured are those of half an all-reduce.
  link.ranks.gather_message = link.ranks.scatter_message = {};
  CHECK(link.ranks.gather_s(100, 2) == Approx(7 + 7 * 50));
  CHECK(link.ranks.scatter_s(100, 2) == Approx(7 + 7 * 50));
}

TEST_CASE("replicas of a divided model add the parts of gradients that a device keeps") {
  Profile profile = profile_with(4);
  profile.optimizer_state = 2;
  const StrategyPlan plan = plan_of("replicate=2,shard=2");
  const auto p = predict(plan, profile, link_for(2), setup_of(4, 16));
  REQUIRE(p.has_value());
  CHECK(p->mode == "replicate=2,shard=2");
  CHECK(p->devices == 4);
  CHECK(p->breakdown.forward_s == Approx(16));  // 4 samples per device
  CHECK(p->breakdown.backward_s == Approx(32));
  // One second each: the first gather, the first gather of backward, the last reduce-scatter, and the
  // all-reduce of its 50 bytes.
  CHECK(p->breakdown.exposed_comm_s == Approx(4));
  CHECK(p->breakdown.update_s == Approx(2.0 / 2));
  // A device keeps half of the model, and at the peak two whole blocks of 100 bytes.
  CHECK(p->largest().parameters == 400.0 / 2 + 200);
  CHECK(p->largest().optimizer == 2 * 400.0 / 2);

  // One replica costs what fully_shard() costs.
  const auto one = predict(plan_of("replicate=1,shard=-1"), profile, slow_link(), setup_of(4, 16));
  CHECK(one->step_s == predicted("fsdp", profile, slow_link(), setup_of(4, 16)).step_s);

  CHECK(simulate_devices(plan, profile, link_for(2), setup_of(4, 16), 8)->devices == 8);  // four replicas
  CHECK_FALSE(simulate_devices(plan, profile, link_for(2), setup_of(4, 16), 7).has_value());
  CHECK_THROWS_WITH(predict(plan, profile, {}, setup_of(2, 16)),
                    ContainsSubstring("replicate=2,shard=2 are not those of 2 devices"));
}

TEST_CASE("zero1 and zero2: a bucket is gathered while the next one is updated") {
  const Profile profile = profile_with(4);
  const Prediction ddp = predicted("ddp", profile, link_for(2), setup_of(2, 8));
  CHECK(ddp.breakdown.exposed_comm_s == Approx(8));  // an all-reduce of one bucket of 400 bytes
  for (const auto& [mode, reduce_s] : {std::pair("zero1", 8.0), std::pair("zero2", 4.0)}) {
    const Prediction p = predicted(mode, profile, link_for(2), setup_of(2, 8));
    CHECK(p.breakdown.forward_s == ddp.breakdown.forward_s);
    CHECK(p.breakdown.backward_s == ddp.breakdown.backward_s);
    CHECK(p.breakdown.update_s == Approx(1));
    CHECK(p.breakdown.exposed_comm_s == Approx(reduce_s + 4));
  }
  // Six buckets of 25 MiB: a bucket is gathered in 0.25 s, while the next one is updated in 0.25 s.
  const TransferCost message{0, 2 * 0.25 / (25 * kMiB)};
  const Link link = {
      .ranks = {.message = message, .overlap_slowdown = 1, .compute_stall = 0, .contention = {}}};
  const auto buckets = profile_with(6, static_cast<std::int64_t>(25 * kMiB));
  const Prediction p = predicted("zero2", buckets, link, setup_of(2, 8));
  CHECK(p.breakdown.update_s == Approx(1.5));
  CHECK(p.breakdown.exposed_comm_s == Approx(0.25 + 0.25));  // the last bucket is reduced, and gathered
}

TEST_CASE("zero1 and zero2 hold two of their own buckets") {
  Profile profile;
  for (const int mib : {20, 20, 8, 2}) profile.blocks.push_back(block(static_cast<std::int64_t>(mib * kMiB)));
  const auto mib = [&](const char* mode) {
    const MemoryItems most = predicted(mode, profile, {}, setup_of(2, 2)).largest();
    return std::pair(std::round(most.buckets / kMiB), std::round(most.workspace / kMiB));
  };
  // ZeRO-1 gathers buckets of 40 and 10 MiB, from the first layer to the last. With them are this rank's
  // halves. ZeRO-2 uses those of DDP, of 2, 28 and 20 MiB.
  CHECK(mib("zero1") == std::pair(50.0, 1.5 * 50));
  CHECK(mib("zero2") == std::pair(25.0, 1.5 * 48));
  // With so many activations, the peak is in the backward of the last block. It has two parameters of 2 MiB,
  // and its gradients are copied into buckets one by one. The buckets have 2, 30 and 20 MiB.
  profile.blocks.back().parameter_bytes = {static_cast<std::int64_t>(2 * kMiB),
                                           static_cast<std::int64_t>(2 * kMiB)};
  for (BlockProfile& b : profile.blocks) b.saved_bytes = proportional(100 * kMiB);
  const Curve peak({{1, 164 * kMiB}}), end({{1, 162 * kMiB}});
  profile.blocks.back().backward = {{1, peak, peak, end}, {0, peak, peak, end}};
  // When the second of them arrives, the first bucket is being reduced and the second one is new.
  CHECK(mib("zero2") == std::pair(26.0 + 2 + 30, 62.0));
  CHECK(mib("zero1") == std::pair(52.0, 64.0));
}

TEST_CASE("sharded modes hold the bytes that the tutorial's table says") {
  Profile profile = profile_with(8, 1000);
  profile.optimizer_state = 2;              // AdamW
  for (BlockProfile& b : profile.blocks) {  // without activations
    b.saved_bytes = b.output_bytes = b.forward_extra_bytes = Curve();
    b.backward = {{0, Curve({{1, 1000}}), Curve({{1, 1000}}), Curve({{1, 1000}})}};
  }
  profile.input_sample_bytes = profile.target_sample_bytes = 0;
  const double all = 8000;
  for (const int n : {2, 4, 8}) {
    CAPTURE(n);
    const auto memory = [&](const char* mode) {
      return predicted(mode, profile, link_for(n), setup_of(n, 8)).largest();
    };
    const MemoryItems ddp = memory("ddp"), zero1 = memory("zero1"), fsdp = memory("fsdp");
    CHECK(ddp.parameters + ddp.buckets + ddp.optimizer == 4 * all);
    CHECK(zero1.parameters + zero1.buckets + zero1.optimizer == 2 * all + 2 * all / n);
    CHECK(fsdp.optimizer == 2 * all / n);
    // Two whole blocks of parameters. Three of gradients, when backward computes those of the first block: it
    // reads no parameters, so until then those of the second wait, and those of the third are being reduced.
    // The divided gradients of the first two do not exist yet.
    CHECK(fsdp.total() == Approx(4 * all / n + 5 * 1000 - 2 * 1000.0 / n));
  }
  CHECK(predicted("fsdp", profile, {}, setup_of(1, 8)).largest().parameters == all);
}
