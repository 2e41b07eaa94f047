// Compares predictions for model parallelism and pipelines with sums done by hand.
#include <cmath>

#include "tests/planner/examples.h"

using namespace tests;

TEST_CASE("model: stages and the copies between them follow each other") {
  const Prediction p = predicted("model", profile_with(4, 10), slow_link(), setup_of(2, 8, {1, 3}));
  const double copies = 2 * (0.25 + 1e-3 * 4 * 8), computing = 4 * 8 + 4 * 16;
  CHECK(p.step_s ==
        Approx(computing + copies + 3 * 0.5));  // both devices update at once: three blocks take longest
  CHECK(p.breakdown.forward_s == Approx(4 * 8 / 2.0));
  CHECK(p.breakdown.exposed_comm_s == Approx(copies / 2));
  CHECK(p.breakdown.idle_s ==
        Approx((computing + copies) / 2 + 0.5));  // before the update, one of two devices is always idle
  REQUIRE(p.memory.size() == 2);
  CHECK(p.memory[0].parameters == 10);
  CHECK(p.memory[1].parameters == 30);
  CHECK(p.memory[0].data == 8 * 6);
  CHECK(p.memory[1].data == 8 * 8);
  CHECK(p.memory[0].activations == 80);
  CHECK(p.memory[1].activations == 3 * 80 + 32);  // and the copy of the input
  CHECK_THROWS_WITH(predict(plan_of("model"), profile_with(4), {}, setup_of(2, 8, {1, 2})),
                    ContainsSubstring("2 stages with 3 blocks; the model has 4"));
  CHECK_THROWS_WITH(predict(plan_of("model"), profile_with(4), {}, setup_of(2, 8)),
                    ContainsSubstring("0 stages with 0 blocks"));
  CHECK_THROWS_WITH(predict(plan_of("model"), profile_with(4), {}, setup_of(2, 8, {0, 4})),
                    ContainsSubstring("at least one"));
}

TEST_CASE("pipelines: the bubble is (p - 1) / (m + p - 1), and schedules differ in memory") {
  const Profile profile = profile_with(4, 1);
  for (const char* mode : {"pipeline-gpipe", "pipeline-1f1b"}) {
    CAPTURE(mode);
    // Two stages of two blocks and four micro-batches of two samples: forward takes 4 s and backward 8 s per
    // micro-batch and stage. The pipeline takes m + p - 1 = 5 of each.
    const Prediction p = predicted(mode, profile, {}, setup_of(2, 8, {2, 2}, 4));
    CHECK(p.step_s == Approx(5 * (4 + 8) + 1));
    CHECK(p.breakdown.forward_s == Approx(4 * 4));
    CHECK(p.breakdown.backward_s == Approx(4 * 8));
    CHECK(p.breakdown.update_s == Approx(1));  // each device updates its own two blocks
    CHECK(p.breakdown.idle_s == Approx(12));
    // gpipe keeps the activations of all micro-batches. Under 1F1B the first of two stages keeps those of two
    // micro-batches, and the last stage those of one.
    const bool gpipe = std::string(mode) == "pipeline-gpipe";
    CHECK(p.memory[0].activations == (gpipe ? 4 : 2) * 2 * 20);
    CHECK(p.memory[1].activations == (gpipe ? 4 : 1) * (2 * 20 + 8));
    SECTION("the bubble shrinks with more micro-batches") {
      double before = 1;
      for (const int m : {1, 2, 4, 8, 64, 256}) {
        const Prediction more = predicted(mode, profile, {}, setup_of(2, 256, {2, 2}, m));
        const double idle = more.breakdown.idle_s / (more.step_s - 1);
        CHECK(idle == Approx(1.0 / (m + 1)));
        CHECK(idle < before);
        before = idle;
      }
    }
    SECTION("copies between stages keep a CPU device busy, but not a GPU") {
      TrainingSetup w = setup_of(2, 8, {2, 2}, 4);
      const double copy = 0.25 + 1e-3 * 4 * 2, step = 5 * (4 + 8) + 1;
      const double on_cpu = predicted(mode, profile, slow_link(), w).step_s;
      CHECK(on_cpu > step + 4 * copy);
      w.device_type = tapestry::DeviceType::cuda;
      const double on_gpu = predicted(mode, profile, slow_link(), w).step_s;
      CHECK(on_gpu < on_cpu);
      CHECK(on_gpu >= step + 2 * copy);
    }
    SECTION("all micro-batches but the first accumulate gradients") {
      Profile adds = profile;
      for (BlockProfile& b : adds.blocks) b.accumulate_s = 0.5;
      // Three of the four passes add to existing gradients. This takes 1 s for the two blocks of a stage,
      // which is 0.75 s per pass on average.
      CHECK(predicted(mode, adds, {}, setup_of(2, 8, {2, 2}, 4)).step_s == Approx(5 * (4 + 8 + 0.75) + 1));
    }
  }
  CHECK_THROWS_WITH(predict(plan_of("pipeline-gpipe"), profile, {}, setup_of(2, 8, {2, 2}, 9)),
                    ContainsSubstring("9 micro-batches for a batch of 8"));
}

TEST_CASE("pipelines: contention slows a stage only while other stages compute") {
  Profile profile = profile_with(4, 1);
  const auto step = [&](int micro_batches) {
    return predicted("pipeline-gpipe", profile, {}, setup_of(2, 2 * micro_batches, {2, 2}, micro_batches))
        .step_s;
  };
  const double one = step(1), two = step(2);
  profile.stages = {{1.5, 1.5, 1}, {1.5, 1.5, 1}};
  CHECK(step(1) == Approx(one));  // stages do not overlap
  // F0 F1 .. .. B0 B1
  // .. F0 F1 B0 B1 ..   each stage is alone for half of its time
  CHECK(step(2) == Approx((two - 1) * 1.25 + 1));
  CHECK(step(64) == Approx((64 - 1) * (4 + 8) * 1.5 + 2 * (4 + 8) + 1).epsilon(0.01));
  // Only the second stage's backward contends. The second stage takes 4 + 8 (1 + w) s per micro-batch, where
  // w is the fraction of this time in which the first stage computes for its 12 s. So w (12 + 8 w) = 12.
  profile.stages = {{1, 1, 1}, {1, 2, 1}};
  const double w = (std::sqrt(144.0 + 4 * 8 * 12) - 12) / 16;
  CHECK(step(64) == Approx(64 * (4 + 8 * (1 + w)) + 4 + 8 + 1).epsilon(0.01));
}

TEST_CASE("zero bubble: weight gradients fill idle time") {
  Profile profile = profile_with(4, 1);
  for (BlockProfile& b : profile.blocks) {
    b.input_grad_s = 3;
    b.weight_grad_s = b.weight_grad_accumulate_s = 1;
    b.input_grad = {.peak = 2 * (10 + 4 + 7), .growth = 6};
  }
  const TrainingSetup w = setup_of(2, 8, {2, 2}, 4);
  const Prediction p = predicted("pipeline-zero-bubble", profile, {}, w),
                   whole = predicted("pipeline-1f1b", profile, {}, w);
  // Forward takes 4 s and backward 8 s. The second stage defers a quarter of backward, the first stage all of
  // it. The second stage, F0 B0 F1 B1 W0 F2 B2 W1 F3 B3, starts at 4 and is never idle. Then the first stage
  // computes its last 8 s.
  CHECK(p.step_s == Approx(4 + 4 * (4 + 6) + 2 * 2 + 8 + 1));
  CHECK(whole.step_s == Approx(5 * 12 + 1));
  CHECK(p.breakdown.forward_s == Approx(whole.breakdown.forward_s));
  CHECK(p.breakdown.backward_s == Approx(whole.breakdown.backward_s));
  // The first stage keeps the activations of two micro-batches, as under 1F1B. The second stage keeps the
  // input and the activations (2 * 20) of one micro-batch, and the input and the deferred bytes of the one
  // before.
  CHECK(p.memory[0].activations == 2 * 2 * 20);
  CHECK(p.memory[1].activations == 8 + 2 * 20 + 2 * 6 + 8);
  // In three of four passes, the weight-gradient pass accumulates and takes longer. The second stage is never
  // idle.
  for (BlockProfile& b : profile.blocks) b.weight_grad_accumulate_s = 3;
  CHECK(predicted("pipeline-zero-bubble", profile, {}, w).breakdown.backward_s ==
        Approx(p.breakdown.backward_s + 3 * 2 * 2 / 2.0));
}

TEST_CASE("zero bubble: gradients that are added in place take no memory beside existing ones") {
  Profile profile = profile_with(4, 1000);
  for (BlockProfile& b : profile.blocks) {
    b.input_grad_s = 3;
    b.weight_grad_s = b.weight_grad_accumulate_s = 1;
    b.input_grad = {.peak = 2 * (10 + 4 + 7), .growth = 6};
  }
  const auto last = [&](double bytes) {
    for (BlockProfile& b : profile.blocks)
      b.weight_grad_accumulate = {.peak = 2 * 7 + bytes, .growth = bytes};
    return predicted("pipeline-zero-bubble", profile, {}, setup_of(2, 8, {2, 2}, 4)).memory[1];
  };
  // The second block's pass needs 7 bytes per sample besides both blocks' new gradients.
  for (const double bytes : {1000.0, 600.0}) {
    CHECK(last(bytes).gradients == 2000);
    CHECK(last(bytes).workspace == 2 * bytes + 2 * 7);
  }
  // Without new gradients, the pass of the input gradients needs most: the outputs' gradients, too.
  CHECK(last(0).gradients == 2000);
  CHECK(last(0).workspace == 2 * (4 + 7));
}

TEST_CASE("zero bubble: contention and times are those of the split backward") {
  Profile profile = profile_with(4, 1);
  for (BlockProfile& b : profile.blocks) {
    b.input_grad_s = b.weight_grad_s = b.weight_grad_accumulate_s = 2;
  }
  const auto step = [&](const char* mode) {
    return predicted(mode, profile, {}, setup_of(2, 128, {2, 2}, 64)).step_s;
  };
  const double halves = step("pipeline-zero-bubble"), whole = step("pipeline-1f1b");
  profile.stages = {{1.5, 1.5, 1}, {1.5, 1.5, 1}};
  CHECK(step("pipeline-zero-bubble") == Approx(halves));
  CHECK(step("pipeline-1f1b") > 1.4 * whole);
  profile.stages.clear();
  // If the measured times of the stages equal the sums over their blocks, the prediction must not change.
  profile.zero_bubble_stages = {{{}, 0, 8, 8}, {{}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") == Approx(halves));
  CHECK(step("pipeline-1f1b") == Approx(whole));
  // 63 of 64 weight-gradient passes accumulate and take longer. The second stage is never idle.
  profile.zero_bubble_stages = {{{}, 0, 8, 8}, {{}, 4, 4, 6}};
  CHECK(step("pipeline-zero-bubble") == Approx(64 * (4 + 4 + 4) + 63 * 2).epsilon(0.05));
  profile.zero_bubble_stages = {{{}, 0, 8, 8}, {{1, 1, 1.5}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") == Approx(64 * (4 + 4 + 4 * 1.5)).epsilon(0.1));
  profile.zero_bubble_stages = {{{}, 0, 8, 8}, {{1, 1.5, 1}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") > 1.1 * halves);
}
