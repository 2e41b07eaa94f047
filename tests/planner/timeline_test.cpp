// Compares timelines of predictions with steps simulated by hand. apps/compare_page_test.cpp checks of random
// predictions that their timelines add up to their parts.
#include "tests/planner/examples.h"

using namespace tests;
using tapestry::Activity;

namespace {

struct Expected {
  int row;
  Activity activity;
  std::string name;
  double begin, end;
  bool beside = false;
};

void check_timeline(const Prediction& p, const std::vector<Expected>& by_hand) {
  REQUIRE(p.timeline.size() == by_hand.size());
  for (std::size_t i = 0; i < by_hand.size(); ++i) {
    CAPTURE(i, by_hand[i].name);
    const PredictedSpan& s = p.timeline[i];
    CHECK(s.row == by_hand[i].row);
    CHECK(s.beside == by_hand[i].beside);
    CHECK(s.activity == by_hand[i].activity);
    CHECK(s.name == by_hand[i].name);
    CHECK(s.begin_s == Approx(by_hand[i].begin));
    CHECK(s.end_s == Approx(by_hand[i].end));
  }
}

constexpr Activity kForward = Activity::forward, kBackward = Activity::backward,
                   kComm = Activity::communication, kUpdate = Activity::optimizer;

// Begin and total bytes of each sample.
using Held = std::vector<std::pair<double, double>>;
void check_memory(const Prediction& p, int device, const Held& by_hand) {
  CHECK(p.memory_device == device);
  REQUIRE(p.memory_over_time.size() == by_hand.size());
  double most = 0;
  for (std::size_t i = 0; i < by_hand.size(); ++i) {
    CAPTURE(i);
    CHECK(p.memory_over_time[i].begin_s == Approx(by_hand[i].first));
    CHECK(p.memory_over_time[i].items.total() == Approx(by_hand[i].second));
    most = std::max(most, p.memory_over_time[i].items.total());
  }
  CHECK(most == p.largest().total());
}

void check_subject(const PredictedSpan& s, const std::string& block, int bucket, std::int64_t bytes,
                   const std::string& axis) {
  INFO(s.name);
  CHECK(s.subject.module == block);
  CHECK(s.subject.bucket == bucket);
  CHECK(s.subject.bytes == bytes);
  CHECK(s.subject.axis == axis);
}

}  // namespace

TEST_CASE("ddp: a bucket is reduced behind backward, and the rest of the last one is waited for") {
  Link link;
  link.ranks.message = {0, 0.03};  // 3 s for an all-reduce of 100 bytes over two ranks
  TrainingSetup setup = setup_of(2, 2);
  setup.first_bucket_bytes = setup.bucket_cap_bytes = 100;  // a bucket for each of the two blocks
  const Prediction p = predicted("ddp", profile_with(2), link, setup);
  CHECK(p.rows == 1);
  check_timeline(p, {{0, kForward, "forward", 0, 2},
                     {0, kBackward, "backward", 2, 10},
                     {0, kComm, "wait for bucket 1", 6, 10},
                     {0, kComm, "bucket 0", 4, 7, true},
                     {0, kComm, "bucket 1", 7, 10, true},
                     {0, kUpdate, "update", 10, 11}});
  check_subject(p.timeline[1], "", -1, 0, "");
  check_subject(p.timeline[2], "", 1, 100, "replicate");
  check_subject(p.timeline[3], "", 0, 100, "replicate");
}

TEST_CASE("memory over time follows the blocks, up to the peak") {
  // 200 bytes of parameters and 14 of the batch. A forward saves 10 bytes and needs 3 more. A backward needs
  // 121 bytes with its gradient of 100, which stays.
  const Prediction p = predicted("single", profile_with(2), {}, setup_of(1, 1));
  check_memory(p, 0, {{0, 227}, {1, 237}, {2, 345}, {4, 435}, {6, 414}});
  // The stage that holds most waits for the first micro-batch.
  Link link;
  link.ranks.peer_message = {0.25, 0};
  Profile profile = profile_with(2);
  profile.blocks[1] = block(1000);
  const Prediction stages = predicted("pipeline=2", profile, link, setup_of(2, 2, {1, 1}, 2));
  CHECK(stages.memory_device == 1);
  const std::vector<PredictedMemory>& held = stages.memory_over_time;
  REQUIRE(held.size() > 5);
  CHECK((held[0].begin_s == 0 && held[1].begin_s == 1.25));
  CHECK(held[0].items.activations == 0);
  CHECK(held[1].items.activations > 0);
  CHECK(held.back().items.gradients == 1000);
  // Under stage 2 of ZeRO, the gathered buckets are the workspace of the update.
  const Prediction zero = predicted("zero2", profile_with(2), {}, setup_of(2, 2));
  CHECK(zero.memory_over_time.back().begin_s == 6);
  CHECK(zero.memory_over_time.back().items.workspace > 0);
  CHECK(zero.memory_over_time.back().items.buckets == 100);
}

TEST_CASE("fsdp: units wait for their gathers, and reduce-scatters run behind backward") {
  Profile profile;
  for (const auto& [name, forward, backward] :
       {std::tuple("a", 1.0, 2.0), {"b", 4.0, 3.0}, {"c", 1.0, 5.0}}) {
    profile.blocks.push_back(block(100, forward, backward));
    profile.blocks.back().name = name;
  }
  profile.loss.forward_s = proportional(1);
  profile.loss.backward_s = proportional(2);
  Link link;  // over two devices a gather takes 2 s, a reduce-scatter 3 s
  link.ranks.message = {7, 7};
  link.ranks.gather_message = {0, 2.0 / 50};
  link.ranks.scatter_message = {1, 2.0 / 50};
  // sharded_test.cpp derives these times.
  const Prediction p = predicted("fsdp", profile, link, setup_of(2, 2));
  check_subject(p.timeline[3], "b", -1, 100, "shard");   // waits for a gather
  check_subject(p.timeline[12], "c", -1, 100, "shard");  // divides gradients
  check_timeline(p, {{0, kForward, "forward", 0, 10},
                     {0, kBackward, "backward", 10, 30},
                     {0, kComm, "wait for a all_gather", 0, 2},
                     {0, kComm, "wait for b all_gather", 3, 4},
                     {0, kComm, "wait for c all_gather", 12, 14},
                     {0, kComm, "wait for a all_gather", 22, 24},
                     {0, kComm, "wait for a reduce_scatter", 26, 30},
                     {0, kComm, "a all_gather", 0, 2, true},
                     {0, kComm, "b all_gather", 2, 4, true},
                     {0, kComm, "c all_gather", 4, 6, true},
                     {0, kComm, "c all_gather", 12, 14, true},
                     {0, kComm, "b all_gather", 14, 16, true},
                     {0, kComm, "c reduce_scatter", 19, 22, true},
                     {0, kComm, "a all_gather", 22, 24, true},
                     {0, kComm, "b reduce_scatter", 24, 27, true},
                     {0, kComm, "a reduce_scatter", 27, 30, true},
                     {0, kUpdate, "update", 30, 30.75}});
}

TEST_CASE("stages have a row each, and their messages are idle time") {
  Link link;
  link.ranks.peer_message = {0.25, 0};
  const Prediction p = predicted("pipeline=2", profile_with(2), link, setup_of(2, 2, {1, 1}, 2));
  CHECK(p.rows == 2);
  check_timeline(p, {{0, kForward, "forward 0", 0, 1},
                     {0, kForward, "forward 1", 1, 2},
                     {0, kBackward, "backward 0", 4.5, 6.5},
                     {0, kBackward, "backward 1", 7.5, 9.5},
                     {0, kUpdate, "update", 9.5, 10},
                     {1, kForward, "forward 0", 1.25, 2.25},
                     {1, kBackward, "backward 0", 2.25, 4.25},
                     {1, kForward, "forward 1", 4.25, 5.25},
                     {1, kBackward, "backward 1", 5.25, 7.25},
                     {1, kUpdate, "update", 7.25, 7.75}});
  // In one process, the thread of the receiving stage copies, and all stages update at the end.
  link.copy = {1, 0};
  check_timeline(predicted("model", profile_with(2), link, setup_of(2, 2, {1, 1})),
                 {{0, kForward, "forward", 0, 2},
                  {1, kComm, "copy of the activations", 2, 3},
                  {1, kForward, "forward", 3, 5},
                  {1, kBackward, "backward", 5, 9},
                  {0, kComm, "copy of the gradients", 9, 10},
                  {0, kBackward, "backward", 10, 14},
                  {0, kUpdate, "update", 14, 14.5},
                  {1, kUpdate, "update", 14, 14.5}});
  const Prediction model = predicted("model", profile_with(2), link, setup_of(2, 2, {1, 1}));
  check_subject(model.timeline[1], "", -1, 8, "pipeline");  // two samples of 4 bytes
  // Replicas do as their stage does: one row for both.
  CHECK(predicted("pipeline=2,replicate=2", profile_with(2), link, setup_of(4, 4, {1, 1}, 2)).rows == 2);
}
