// Predictions of tapestry-compare, against sums done by hand and against what has to hold for any numbers.
#include "tapestry/apps/compare/predict.h"

#include <cmath>
#include <numeric>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace apps::compare;

namespace {

constexpr double kMiB = 1 << 20;

Curve proportional(double per_sample) { return Curve({{1, per_sample}, {2, 2 * per_sample}}); }

// Forward takes 1 s a sample, backward 2 s; what is kept is 10 bytes a sample and the output of 4 bytes.
BlockProfile block(std::int64_t parameter_bytes, double forward = 1, double backward = 2) {
  BlockProfile b;
  b.name = "block";
  b.parameter_bytes = {parameter_bytes};
  b.forward_s = proportional(forward);
  b.backward_s = proportional(backward);
  b.update_s = 0.5;
  b.kept_bytes = proportional(10);
  b.output_bytes = proportional(4);
  b.forward_extra_bytes = proportional(3);
  b.backward_extra_bytes = Curve(
      {{1, 7.0 + static_cast<double>(parameter_bytes)}, {2, 14.0 + static_cast<double>(parameter_bytes)}});
  return b;
}

Profile profile_of_blocks(int count, std::int64_t parameter_bytes = 100) {
  Profile p;
  for (int i = 0; i < count; ++i) p.blocks.push_back(block(parameter_bytes));
  p.loss.name = "loss";
  p.image_bytes = 6;
  p.label_bytes = 8;
  return p;
}

Workload workload_of(int devices, std::int64_t batch, std::vector<int> split = {}, int micro_batches = 4) {
  Workload w;
  w.devices = devices;
  w.batch_size = batch;
  w.split = std::move(split);
  w.micro_batches = micro_batches;
  return w;
}

Prediction of(const std::string& mode, const Profile& profile, const Link& link, const Workload& w) {
  const auto p = predict(mode, profile, link, w);
  REQUIRE(p.has_value());
  CHECK(p->mode == mode);
  const StepSplit& s = p->split;
  CHECK(p->step_s ==
        Approx(s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s).epsilon(1e-12));
  CHECK(p->devices == static_cast<int>(p->memory.size()));
  for (const double part : {s.forward_s, s.backward_s, s.exposed_comm_s, s.update_s, s.idle_s})
    CHECK(part >= -1e-9 * p->step_s);
  return *p;
}

const std::vector<std::string> kModes = {"single", "dp-master",      "dp-replicated", "ddp",
                                         "model",  "pipeline-gpipe", "pipeline-1f1b", "pipeline-zero-bubble"};

AllReduce stopping(double share, double slower = 1) {
  return {.message = {}, .slower_beside = slower, .stops_compute = share, .contention = {}};
}

Link slow_link() {
  const Line line{0.25, 1e-3};
  return {.copy = line, .broadcast = line, .add = line, .local = {line}, .ranks = {line}};
}

}  // namespace

TEST_CASE("a curve goes through what was measured") {
  const Curve c({{16, 10}, {4, 4}, {8, 5}});
  CHECK(c.at(4) == 4);
  CHECK(c.at(8) == 5);
  CHECK(c.at(16) == 10);
  CHECK(c.at(6) == 4.5);
  CHECK(c.at(12) == 7.5);
  CHECK(c.at(24) == 15);  // on with the last line
  CHECK(c.at(2) == 3.5);  // on with the first
  CHECK(c.at(0) == 3);
  CHECK(Curve({{1, 10}, {2, 30}}).at(0) == 0);  // never below
  CHECK(Curve({{1, 10}, {2, 5}}).at(4) == 5);   // a time that fell from noise does not go on falling
  CHECK(Curve({{1, 10}, {2, 5}}).at(0.5) == 10);
  CHECK(Curve({{3, 7}}).at(100) == 7);
  CHECK(Curve().at(5) == 0);
  CHECK_THROWS_WITH(Curve({{1, 2}, {1, 3}}), ContainsSubstring("two points have the size 1"));
  CHECK_THROWS_WITH(Curve({{1, NAN}}), ContainsSubstring("finite"));
}

TEST_CASE("a link's line is found again from what it says, small sizes as well as large ones") {
  const Line line{20e-6, 1 / 4e9};
  std::vector<std::pair<double, double>> points;
  for (const double bytes : {1e3, 1e5, 1e6, 1e8}) points.emplace_back(bytes, line.time(bytes));
  const Line found = fit_line(points);
  CHECK(found.latency_s == Approx(line.latency_s).epsilon(1e-9));
  CHECK(found.s_per_byte == Approx(line.s_per_byte).epsilon(1e-9));
  SECTION("the sum of squared relative errors is least") {
    points = {{1, 1.1}, {2, 1.9}, {4, 4.3}, {64, 60}};
    const auto error = [&](const Line& l) {
      double sum = 0;
      for (const auto& [x, t] : points) sum += std::pow(l.time(x) / t - 1, 2);
      return sum;
    };
    const Line best = fit_line(points);
    for (const double d : {-1e-3, 1e-3}) {
      CHECK(error({best.latency_s + d, best.s_per_byte}) > error(best));
      CHECK(error({best.latency_s, best.s_per_byte + d}) > error(best));
    }
  }
  SECTION("neither number is negative") {
    const Line steep = fit_line({{1, 1}, {2, 3}}), falling = fit_line({{1, 3}, {2, 1}});
    CHECK(steep.latency_s == 0);
    CHECK(steep.s_per_byte > 1);
    CHECK(falling.s_per_byte == 0);
    CHECK(falling.latency_s > 0);
  }
  CHECK_THROWS_WITH(fit_line({{5, 1}, {5, 2}}), ContainsSubstring("two sizes or more"));
  CHECK_THROWS_WITH(fit_line({}), ContainsSubstring("two sizes or more"));
  CHECK_THROWS_WITH(fit_line({{5, 1}, {6, 0}}), ContainsSubstring("above 0"));
}

TEST_CASE("an all-reduce is 2 (n - 1) messages of a n-th") {
  const Line message{1, 0.5};
  CHECK(ring_time(message, 8, 1) == 0);
  CHECK(ring_time(message, 8, 2) == 2 * (1 + 2));
  CHECK(ring_time(message, 8, 4) == 6 * (1 + 1));
  for (const int n : {2, 3, 8}) {
    const Line again =
        ring_message({ring_time(message, 0, n), ring_time(message, 1, n) - ring_time(message, 0, n)}, n);
    CHECK(again.latency_s == Approx(message.latency_s));
    CHECK(again.s_per_byte == Approx(message.s_per_byte));
  }
  CHECK_THROWS_AS(ring_message(message, 1), tapestry::ValueError);
}

TEST_CASE("buckets are averaged while backward goes on") {
  const std::vector<double> ready = {2, 5, 10};
  SECTION("by a link of its own") {
    // From 2 to 5, from 5 to 8, from 10 to 13.
    Overlap o = overlap(ready, std::vector<double>{3, 3, 3}, 10, stopping(0));
    CHECK(o.backward_s == 10);
    CHECK(o.exposed_s == 3);
    // From 2 to 8, 8 to 14, 14 to 20: each waits for the one before.
    o = overlap(ready, std::vector<double>{6, 6, 6}, 10, stopping(0));
    CHECK(o.backward_s == 10);
    CHECK(o.exposed_s == 10);
    // Nothing is left at the end if backward goes on after the last bucket.
    o = overlap(ready, std::vector<double>{1, 1, 1}, 12, stopping(0));
    CHECK(o.backward_s == 12);
    CHECK(o.exposed_s == 0);
  }
  SECTION("by the cores that compute") {
    // Computing stands still from 2 to 5 and from 8 to 11; the last one comes after it.
    Overlap o = overlap(ready, std::vector<double>{3, 3, 3}, 10, stopping(1));
    CHECK(o.backward_s == 16);
    CHECK(o.exposed_s == 3);
    // At half speed: 2 to 6 does 2, so that the second is ready at 7, 7 to 11 does 2, the third at 14.
    o = overlap(ready, std::vector<double>{4, 4, 4}, 10, stopping(0.5));
    CHECK(o.backward_s == 14);
    CHECK(o.exposed_s == 4);
    // A link that is still busy when the next bucket comes: 2 to 12 does 3 by 8, the second then from 12 to
    // 13, and backward ends at 13 + (10 - 5 - 2.5).
    o = overlap(std::vector<double>{2, 5}, std::vector<double>{10, 1}, 10, stopping(0.5));
    CHECK(o.backward_s == 15.5);
    CHECK(o.exposed_s == 0);
  }
  SECTION("none, or of no cost") {
    CHECK(overlap({}, {}, 7, stopping(0.5)).backward_s == 7);
    CHECK(overlap(ready, std::vector<double>{0, 0, 0}, 10, stopping(1)).backward_s == 10);
    CHECK(overlap(ready, std::vector<double>{0, 0, 0}, 10, stopping(1)).exposed_s == 0);
  }
  SECTION("slower while there is something to compute") {
    // From 2 to 8 at half speed, which completes the second; from 8 to 14 again. The third is complete at 16,
    // as backward ends, and then nothing slows it.
    Overlap o = overlap(ready, std::vector<double>{3, 3, 3}, 10, stopping(0.5, 2));
    CHECK(o.backward_s == 16);
    CHECK(o.exposed_s == 3);
    // From 2 to 10 it does 4 of the 6.
    o = overlap(std::vector<double>{2}, std::vector<double>{6}, 10, stopping(0, 2));
    CHECK(o.backward_s == 10);
    CHECK(o.exposed_s == 2);
  }
  CHECK_THROWS_WITH(overlap(ready, std::vector<double>{1}, 10, {}), ContainsSubstring("3 buckets with 1"));
  CHECK_THROWS_WITH(overlap(ready, ready, 10, stopping(1.5)), ContainsSubstring("from 0 to 1"));
  CHECK_THROWS_WITH(overlap(ready, ready, 10, stopping(0, 0.5)), ContainsSubstring("1 or more"));
}

TEST_CASE("single: the sum of its parts, and what it holds") {
  Profile profile = profile_of_blocks(3, 10);
  profile.loss.forward_s = profile.loss.backward_s = proportional(0.125);
  const Prediction p = of("single", profile, slow_link(), workload_of(2, 8));
  CHECK(p.split.forward_s == Approx(3 * 8 + 1));
  CHECK(p.split.backward_s == Approx(3 * 2 * 8 + 1));
  CHECK(p.split.update_s == Approx(1.5));
  CHECK(p.split.exposed_comm_s == 0);
  CHECK(p.split.idle_s == 0);
  REQUIRE(p.memory.size() == 1);
  // The most is there when the backward of the last block runs: all that is kept, the output's gradient, and
  // its workspace.
  const MemoryItems& m = p.memory[0];
  CHECK(m.parameters == 30);
  CHECK(m.data == 8 * (6 + 8));
  CHECK(m.activations == 3 * 80);
  CHECK(m.gradients == 0);
  CHECK(m.workspace == 32 + 56 + 10);
  CHECK(m.buckets == 0);
  CHECK(m.total() == 30 + 112 + 240 + 98);
  CHECK(p.largest().total() == m.total());
  SECTION("where gradients weigh more than activations, the most is there at the end of backward") {
    const Prediction heavy = of("single", profile_of_blocks(3, 10000), slow_link(), workload_of(1, 8));
    CHECK(heavy.memory[0].gradients == 20000);
    CHECK(heavy.memory[0].activations == 80);
    CHECK(heavy.memory[0].workspace == 32 + 56 + 10000);
  }
}

TEST_CASE("dp-master: out, forward, in, loss, back, added, step") {
  Profile profile = profile_of_blocks(2);
  profile.loss.forward_s = proportional(0.5);
  profile.loss.backward_s = proportional(0.25);
  profile.loss.kept_bytes = proportional(5);
  Link link;
  link.copy = {0.1, 0.01};
  link.broadcast = {0.15, 0.015};
  link.add = {0.2, 0.02};
  link.master = {1.5, 1.25, 2};
  const Prediction p = of("dp-master", profile, link, workload_of(2, 10));
  const double images = 0.1 + 0.01 * 6 * 5, broadcast = 2 * 0.15 + 0.015 * 200, outputs = 0.1 + 0.01 * 4 * 5;
  const double added = 2 * 0.2 + 0.02 * 200;
  CHECK(p.split.exposed_comm_s == Approx(images + broadcast + 2 * outputs + added));
  // While the first device has the loss and the step, the other is idle.
  CHECK(p.split.forward_s == Approx(1.5 * 2 * 5 + 0.5 * 10 / 2));
  CHECK(p.split.backward_s == Approx(1.25 * 2 * 2 * 5 + 0.25 * 10 / 2));
  CHECK(p.split.update_s == Approx(2 * 1.0 / 2));
  CHECK(p.split.idle_s == Approx((5 + 2.5 + 2) / 2));
  // The master holds the whole batch, all outputs, and what the loss keeps.
  CHECK(p.memory.at(0).data == 10 * 14 + 10 * 4 + 10 * 5);
  CHECK(p.memory.at(1).data == 5 * 6);
  const MemoryItems heavy = of("dp-master", profile_of_blocks(2, 10000), link, workload_of(2, 10)).memory[0];
  CHECK(heavy.gradients == 20000);  // its own, to which those of the others are added
  CHECK(heavy.workspace == 10000);
  CHECK(p.memory[0].parameters == 200);
  CHECK(p.memory[1].parameters == 200);
  SECTION("more devices: each of the others costs as much again") {
    const Prediction four = of("dp-master", profile, link, workload_of(4, 8));
    CHECK(four.split.exposed_comm_s == Approx((3 * 0.1 + 0.01 * 6 * 6) + (2 * 0.15 + 3 * 0.015 * 200) +
                                              2 * (3 * 0.1 + 0.01 * 4 * 6) + 3 * added));
  }
}

TEST_CASE("dp-replicated and ddp: buckets of 1 MiB and then 25 MiB, last layers first") {
  Profile profile = profile_of_blocks(4, static_cast<std::int64_t>(20 * kMiB));
  profile.blocks[3].parameter_bytes = {static_cast<std::int64_t>(0.5 * kMiB),
                                       static_cast<std::int64_t>(0.5 * kMiB)};
  Link link;
  link.ranks.message = {0, 1 / kMiB};  // a second a MiB and message
  // Two devices with four samples each: a block's backward takes 8 s. Buckets: the last block's 1 MiB after 8
  // s, 40 MiB (the cap is passed with the second block) after 24 s, 20 MiB after 32 s.
  const Prediction p = of("ddp", profile, link, workload_of(2, 8));
  CHECK(p.split.forward_s == Approx(4 * 4));
  CHECK(p.split.backward_s == Approx(32));
  // All-reduce of b MiB between two: 2 * b / 2. So 24 to 64, then 64 to 84.
  CHECK(p.split.exposed_comm_s == Approx(84 - 32));
  CHECK(p.split.update_s == Approx(2));
  REQUIRE(p.memory.size() == 2);
  CHECK(p.memory[0].buckets == 61 * kMiB);
  CHECK(p.memory[0].gradients == 0);  // they are views of the buckets
  CHECK(p.memory[0].data == 4 * 14);
  SECTION("in one process the first device has the batch, and the others' part is copied") {
    link.local = link.ranks;
    link.copy.latency_s = 0.25;
    profile.handoff_s = 0.125;
    const Prediction dp = of("dp-replicated", profile, link, workload_of(2, 8));
    CHECK(dp.split.exposed_comm_s == Approx(84 - 32 + 0.25));
    CHECK(dp.split.idle_s == Approx(3 * 0.125));
    CHECK(dp.memory[0].data == 8 * 14);
    CHECK(dp.memory[1].data == 4 * 14);
  }
  SECTION("gradients are copied into their buckets") {
    for (BlockProfile& b : profile.blocks) b.copy_s = 0.25;
    const Prediction copied = of("ddp", profile, link, workload_of(2, 8));
    CHECK(copied.split.backward_s == Approx(32 + 4 * 0.25));
    CHECK(copied.split.exposed_comm_s == Approx(84 - 32 - 0.25));  // the second bucket is complete 0.75 later
  }
  SECTION("devices that share memory are slower together, threads and processes each as they are") {
    link.local.contention = {1.5, 1.25, 2};
    link.ranks.contention = {1.25, 1.5, 3};
    const Prediction slower = of("dp-replicated", profile, link, workload_of(2, 8));
    CHECK(slower.split.forward_s == Approx(1.5 * 16));
    CHECK(slower.split.backward_s == Approx(1.25 * 32));
    CHECK(slower.split.update_s == Approx(2 * 2));
    const Prediction ranks = of("ddp", profile, link, workload_of(2, 8));
    CHECK(ranks.split.forward_s == Approx(1.25 * 16));
    CHECK(ranks.split.backward_s == Approx(1.5 * 32));
    CHECK(ranks.split.update_s == Approx(3 * 2));
    // alone, nothing is
    CHECK(of("single", profile, link, workload_of(2, 8)).split.forward_s == Approx(4 * 8));
    CHECK(of("model", profile, link, workload_of(2, 8, {2, 2})).split.forward_s == Approx(4 * 8 / 2.0));
  }
  SECTION("a batch that does not divide: the largest share is waited for") {
    const Prediction uneven = of("ddp", profile, link, workload_of(3, 8));
    CHECK(uneven.split.forward_s == Approx(4 * 3));
    CHECK(uneven.memory[0].data == 3 * 14);
    CHECK(uneven.memory[2].data == 2 * 14);
  }
}

TEST_CASE("model: all parts one after another, and what crosses between them") {
  const Prediction p = of("model", profile_of_blocks(4, 10), slow_link(), workload_of(2, 8, {1, 3}));
  const double crossing = 2 * (0.25 + 1e-3 * 4 * 8), computing = 4 * 8 + 4 * 16;
  CHECK(p.step_s == Approx(computing + crossing + 3 * 0.5));  // both step at once, three blocks and one
  CHECK(p.split.forward_s == Approx(4 * 8 / 2.0));
  CHECK(p.split.exposed_comm_s == Approx(crossing / 2));
  CHECK(p.split.idle_s == Approx((computing + crossing) / 2 + 0.5));  // till then one of two is always idle
  REQUIRE(p.memory.size() == 2);
  CHECK(p.memory[0].parameters == 10);
  CHECK(p.memory[1].parameters == 30);
  CHECK(p.memory[0].data == 8 * 6);
  CHECK(p.memory[1].data == 8 * 8);
  CHECK(p.memory[0].activations == 80);
  CHECK(p.memory[1].activations == 3 * 80 + 32);  // and a copy of what came in
  CHECK_THROWS_WITH(predict("model", profile_of_blocks(4), {}, workload_of(2, 8, {1, 2})),
                    ContainsSubstring("2 parts with 3 blocks; the model has 4"));
  CHECK_THROWS_WITH(predict("model", profile_of_blocks(4), {}, workload_of(2, 8)),
                    ContainsSubstring("0 parts with 0 blocks"));
  CHECK_THROWS_WITH(predict("model", profile_of_blocks(4), {}, workload_of(2, 8, {0, 4})),
                    ContainsSubstring("at least one"));
}

TEST_CASE("pipelines: micro-batches fill the gap") {
  const Profile profile = profile_of_blocks(4, 1);
  for (const char* mode : {"pipeline-gpipe", "pipeline-1f1b"}) {
    CAPTURE(mode);
    // Two stages of two blocks, four micro-batches of two samples: forward 4, backward 8. (m + p - 1) of
    // both.
    const Prediction p = of(mode, profile, {}, workload_of(2, 8, {2, 2}, 4));
    CHECK(p.step_s == Approx(5 * (4 + 8) + 1));
    CHECK(p.split.forward_s == Approx(4 * 4));
    CHECK(p.split.backward_s == Approx(4 * 8));
    CHECK(p.split.update_s == Approx(1));  // each steps its own two blocks
    CHECK(p.split.idle_s == Approx(12));
    // gpipe keeps all micro-batches; 1F1B as many as there are stages from it on.
    const bool gpipe = std::string(mode) == "pipeline-gpipe";
    CHECK(p.memory[0].activations == (gpipe ? 4 : 2) * 2 * 20);
    CHECK(p.memory[1].activations == (gpipe ? 4 : 1) * (2 * 20 + 8));
    SECTION("the bubble goes to 0 with more micro-batches") {
      double before = 1;
      for (const int m : {1, 2, 4, 8, 64, 256}) {
        const Prediction more = of(mode, profile, {}, workload_of(2, 256, {2, 2}, m));
        const double idle = more.split.idle_s / (more.step_s - 1);
        CHECK(idle == Approx(1.0 / (m + 1)));
        CHECK(idle < before);
        before = idle;
      }
    }
    SECTION("what crosses keeps the receiver's processor busy, but no GPU") {
      Workload w = workload_of(2, 8, {2, 2}, 4);
      const double crossing = 0.25 + 1e-3 * 4 * 2, step = 5 * (4 + 8) + 1;
      const double on_cpu = of(mode, profile, slow_link(), w).step_s;
      CHECK(on_cpu > step + 4 * crossing);
      w.device_type = tapestry::DeviceType::cuda;
      const double on_gpu = of(mode, profile, slow_link(), w).step_s;
      CHECK(on_gpu < on_cpu);
      CHECK(on_gpu >= step + 2 * crossing);
    }
    SECTION("passes after the first add to gradients that are there") {
      Profile adds = profile;
      for (BlockProfile& b : adds.blocks) b.accumulate_s = 0.5;
      // three of four passes of two blocks: 0.75 a pass on average
      CHECK(of(mode, adds, {}, workload_of(2, 8, {2, 2}, 4)).step_s == Approx(5 * (4 + 8 + 0.75) + 1));
    }
  }
  CHECK_THROWS_WITH(predict("pipeline-gpipe", profile, {}, workload_of(2, 8, {2, 2}, 9)),
                    ContainsSubstring("9 micro-batches for a batch of 8"));
}

TEST_CASE("pipelines: a part is slower while others are at work") {
  Profile profile = profile_of_blocks(4, 1);
  const auto step = [&](int micro_batches) {
    return of("pipeline-gpipe", profile, {}, workload_of(2, 2 * micro_batches, {2, 2}, micro_batches)).step_s;
  };
  const double one = step(1), two = step(2);
  profile.parts = {{1.5, 1.5, 1}, {1.5, 1.5, 1}};
  CHECK(step(1) == Approx(one));  // one at a time
  // F0 F1 .. .. B0 B1
  // .. F0 F1 B0 B1 ..   each is alone in half of its time
  CHECK(step(2) == Approx((two - 1) * 1.25 + 1));
  CHECK(step(64) == Approx((64 - 1) * (4 + 8) * 1.5 + 2 * (4 + 8) + 1).epsilon(0.01));
  // Only the second one's backward: then the first, which takes 12 with a micro-batch, is at work for a share
  // w of its 4 + 8 (1 + w), so that w (12 + 8 w) = 12.
  profile.parts = {{1, 1, 1}, {1, 2, 1}};
  const double w = (std::sqrt(144.0 + 4 * 8 * 12) - 12) / 16;
  CHECK(step(64) == Approx(64 * (4 + 8 * (1 + w)) + 4 + 8 + 1).epsilon(0.01));
}

TEST_CASE("zero bubble: weights' gradients where a device would be idle") {
  Profile profile = profile_of_blocks(4, 1);
  for (BlockProfile& b : profile.blocks) {
    b.inputs_s = 3;
    b.weights_s = b.weights_added_s = 1;
    b.postponed_bytes = 6;
  }
  const Workload w = workload_of(2, 8, {2, 2}, 4);
  const Prediction p = of("pipeline-zero-bubble", profile, {}, w),
                   whole = of("pipeline-1f1b", profile, {}, w);
  // Forward takes 4 and backward 8, of which the second stage does a quarter later, and the first all. The
  // second, F0 B0 F1 B1 W0 F2 B2 W1 F3 B3, is never idle after it has begun at 4; then the first does its
  // last 8.
  CHECK(p.step_s == Approx(4 + 4 * (4 + 6) + 2 * 2 + 8 + 1));
  CHECK(whole.step_s == Approx(5 * 12 + 1));
  CHECK(p.split.forward_s == Approx(whole.split.forward_s));
  CHECK(p.split.backward_s == Approx(whole.split.backward_s));
  // The first stage keeps two micro-batches, as under 1F1B; the second what comes in and a new one's 2 * 20,
  // beside what weights still need of the one before and what came in with that.
  CHECK(p.memory[0].activations == 2 * 2 * 20);
  CHECK(p.memory[1].activations == 8 + 2 * 20 + 2 * 6 + 8);
  // Weights whose gradients are there take longer, in three of four passes. The second stage is never idle.
  for (BlockProfile& b : profile.blocks) b.weights_added_s = 3;
  CHECK(of("pipeline-zero-bubble", profile, {}, w).split.backward_s ==
        Approx(p.split.backward_s + 3 * 2 * 2 / 2.0));
}

TEST_CASE("zero bubble: what parts take from each other is that of passes in halves") {
  Profile profile = profile_of_blocks(4, 1);
  for (BlockProfile& b : profile.blocks) {
    b.inputs_s = b.weights_s = b.weights_added_s = 2;
  }
  const auto step = [&](const char* mode) {
    return of(mode, profile, {}, workload_of(2, 128, {2, 2}, 64)).step_s;
  };
  const double halves = step("pipeline-zero-bubble"), whole = step("pipeline-1f1b");
  profile.parts = {{1.5, 1.5, 1}, {1.5, 1.5, 1}};
  CHECK(step("pipeline-zero-bubble") == Approx(halves));
  CHECK(step("pipeline-1f1b") > 1.4 * whole);
  profile.parts.clear();
  // What the blocks do one by one, a part does at one go: as long to begin with.
  profile.parts_in_halves = {{{}, 0, 8, 8}, {{}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") == Approx(halves));
  CHECK(step("pipeline-1f1b") == Approx(whole));
  // Longer where it adds, in 63 of 64 passes; the second part is never idle, and the first is less busy.
  profile.parts_in_halves = {{{}, 0, 8, 8}, {{}, 4, 4, 6}};
  CHECK(step("pipeline-zero-bubble") == Approx(64 * (4 + 4 + 4) + 63 * 2).epsilon(0.05));
  profile.parts_in_halves = {{{}, 0, 8, 8}, {{1, 1, 1.5}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") == Approx(64 * (4 + 4 + 4 * 1.5)).epsilon(0.1));
  profile.parts_in_halves = {{{}, 0, 8, 8}, {{1, 1.5, 1}, 4, 4, 4}};
  CHECK(step("pipeline-zero-bubble") > 1.1 * halves);
}

TEST_CASE("one device: every mode is single") {
  Profile profile = profile_of_blocks(3);
  profile.loss.forward_s = proportional(0.5);
  const double single = of("single", profile, slow_link(), workload_of(1, 8)).step_s;
  for (const std::string& mode : kModes) {
    CAPTURE(mode);
    Link link = slow_link();
    CHECK(of(mode, profile, link, workload_of(1, 8, {3}, 1)).step_s == Approx(single));
  }
}

TEST_CASE("a faster link is never slower") {
  Profile profile = profile_of_blocks(5, static_cast<std::int64_t>(9 * kMiB));
  for (const std::string& mode : kModes)
    for (const int devices : {2, 3, 5})
      for (const double stops : {0.0, 0.3, 1.0}) {
        CAPTURE(mode, devices, stops);
        std::vector<int> split(static_cast<std::size_t>(devices), 1);
        split[0] += 5 - devices;
        double before = INFINITY;
        for (const double bandwidth : {1e6, 1e7, 1e8, 1e9, 1e12}) {
          const Line line{1e-3, 1 / bandwidth};
          const Link link = {
              .copy = line, .add = line, .local = {line, 1.5, stops, {}}, .ranks = {line, 1.5, stops, {}}};
          const double step = of(mode, profile, link, workload_of(devices, 30, split, 5)).step_s;
          CHECK(step <= before * (1 + 1e-12));
          before = step;
        }
      }
}

TEST_CASE("what cannot be is refused, and what is not known has no prediction") {
  const Profile profile = profile_of_blocks(2);
  CHECK_FALSE(predict("fsdp", profile, {}, workload_of(2, 8)).has_value());
  CHECK_FALSE(simulate_devices("fsdp", profile, {}, workload_of(2, 8), 8).has_value());
  CHECK_THROWS_WITH(predict("single", Profile(), {}, workload_of(2, 8)), ContainsSubstring("no blocks"));
  CHECK_THROWS_WITH(predict("ddp", profile, {}, workload_of(9, 8)),
                    ContainsSubstring("9 devices for a batch of 8"));
}

TEST_CASE("more devices than there are: simulated, and said so") {
  Profile profile = profile_of_blocks(6);
  profile.contention = {2, 2, 2};  // of the machine that was measured
  profile.parts = {{2, 2, 1}, {2, 2, 1}};
  profile.parts_in_halves = {{{2, 2, 2}, 9, 9, 9}, {{2, 2, 2}, 9, 9, 9}};
  Link link;
  link.ranks.contention = link.master = {2, 2, 2};
  const Workload measured = workload_of(2, 64, {3, 3}, 16);
  const auto ddp = simulate_devices("ddp", profile, link, measured, 8);
  REQUIRE(ddp.has_value());
  CHECK((ddp->simulated && ddp->devices == 8));
  CHECK(ddp->split.forward_s == Approx(6 * 8));
  CHECK(simulate_devices("dp-master", profile, link, measured, 8)->split.forward_s == Approx(6 * 8));
  CHECK_FALSE(predict("ddp", profile, {}, measured)->simulated);
  const auto pipeline = simulate_devices("pipeline-1f1b", profile, {}, measured, 6);
  REQUIRE(pipeline.has_value());
  CHECK(pipeline->step_s == Approx((16 + 5) * (4 + 8) + 0.5));
  CHECK_FALSE(simulate_devices("pipeline-1f1b", profile, {}, measured, 8).has_value());  // six blocks
  CHECK(simulate_devices("ddp", profile, {}, measured, 8).has_value());
}

TEST_CASE("another link: what is not given stays as measured") {
  Link measured;
  measured.copy = {1, 2};
  measured.broadcast = {2, 2};
  measured.add = {3, 5};
  measured.local = {{4, 6}, 2, 0.5, {}};
  measured.ranks = {{7, 8}, 3, 1, {}};
  CHECK(to_text(link_with(measured, {}, {})) == to_text(measured));
  const Link both = link_with(measured, 0.5, 4.0);
  for (const Line& line : {both.copy, both.broadcast, both.local.message, both.ranks.message}) {
    CHECK(line.latency_s == 0.5);
    CHECK(line.s_per_byte == 0.25);
  }
  CHECK(both.add.s_per_byte == 3.25);
  CHECK(both.ranks.stops_compute == 0);
  CHECK(both.ranks.slower_beside == 1);
  const Link later = link_with(measured, 0.5, {});
  CHECK(later.ranks.message.latency_s == 0.5);
  CHECK(later.ranks.message.s_per_byte == 8);
  CHECK(later.add.s_per_byte == 5);
}

TEST_CASE("a table of predictions: a mode a row, as wide as its head") {
  const auto single = predict("single", profile_of_blocks(2), {}, workload_of(2, 8));
  const auto rows = prediction_rows({*single});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].size() == rows[1].size());
  CHECK(rows[1][0] == "single");
  CHECK(rows[1][2] == "49000.00");
}

TEST_CASE("profiles and links go through text") {
  Profile profile = profile_of_blocks(2);
  profile.contention = {1.5, 1.25, 2};
  profile.parts = {{1.5, 1, 1}, {2, 3, 1}};
  profile.parts_in_halves = {{{1, 1, 1.5}, 1, 2, 3}};
  profile.handoff_s = 1e-5;
  profile.loss.kept_bytes = Curve({{3, -2}});
  const Profile again = profile_of(to_text(profile));
  CHECK(to_text(again) == to_text(profile));
  CHECK(again.blocks[1].backward_extra_bytes.points() == profile.blocks[1].backward_extra_bytes.points());
  CHECK(again.contention.update == 2);
  CHECK(again.parts.at(1).backward == 3);
  CHECK(again.parts_in_halves.at(0).contention.weights == 1.5);
  CHECK(again.parts_in_halves.at(0).weights_added_s == 3);
  Link link = slow_link();
  link.ranks.stops_compute = 0.75;
  link.ranks.contention.update = link.master.forward = 1.75;
  const Link read = link_of(to_text(link));
  CHECK(to_text(read) == to_text(link));
  CHECK(read.ranks.stops_compute == 0.75);
  CHECK((read.ranks.contention.update == 1.75 && read.master.forward == 1.75));
  for (const char* text : {"", "{}", "[1]", "{\"blocks\": 3}"}) {
    CHECK_THROWS_WITH(profile_of(text), ContainsSubstring("this is no profile"));
    CHECK_THROWS_WITH(link_of(text), ContainsSubstring("this is no link"));
  }
}

TEST_CASE("of measurements that were repeated, every figure's median") {
  std::vector<Profile> profiles;
  std::vector<Link> links;
  for (const double x : {3.0, 1.0, 2.0, 9.0}) {
    Profile p = profile_of_blocks(2);
    p.blocks[1].forward_s = Curve({{1, x}, {4, 10 - x}});
    p.contention.update = 1 + x;
    profiles.push_back(p);
    Link link = slow_link();
    link.ranks.message.latency_s = x;
    links.push_back(link);
  }
  const Profile median = median_of(profiles);
  CHECK(median.blocks[1].forward_s.points() == std::vector<std::pair<double, double>>{{1, 2.5}, {4, 7.5}});
  CHECK(median.contention.update == 3.5);
  CHECK(to_text(Profile{.blocks = {median.blocks[0]}}) ==
        to_text(Profile{.blocks = {profiles[0].blocks[0]}}));
  CHECK(median_of(links).ranks.message.latency_s == 2.5);
  links.pop_back();
  CHECK(median_of(links).ranks.message.latency_s == 2);
  CHECK(to_text(median_of({links[0]})) == to_text(links[0]));
  CHECK_THROWS_WITH(median_of({profile_of_blocks(2), profile_of_blocks(3)}),
                    ContainsSubstring("the same model"));
  CHECK_THROWS_WITH(median_of(std::vector<Link>()), ContainsSubstring("no link"));
}
