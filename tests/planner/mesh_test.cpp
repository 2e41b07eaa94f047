// Compares predictions for meshes, over one and over several hosts, with sums done by hand.
#include <cmath>

#include "tests/planner/examples.h"

using namespace tests;

namespace {

// A link on which a message of an all-reduce, of a gather and between stages takes one second per 100 bytes.
Link link_of(double s_per_byte) { return {.ranks = {.message = {0, s_per_byte}}}; }

const AxisCost& axis_of(const Prediction& p, const std::string& name) {
  for (const AxisCost& a : p.axes)
    if (a.axis == name) return a;
  FAIL("no axis " + name);
  return p.axes.front();
}

double exposed(const Prediction& p) {
  double sum = 0;
  for (const AxisCost& a : p.axes) sum += a.exposed_s;
  return sum;
}

const std::vector<const char*> kMeshes = {"pipeline=2,replicate=2",
                                          "pipeline=2:schedule=gpipe,replicate=2",
                                          "pipeline=2:schedule=zero-bubble,replicate=2",
                                          "pipeline=2,replicate=2:zero=1",
                                          "pipeline=2,replicate=2:zero=2",
                                          "pipeline=2,shard=2",
                                          "pipeline=2:schedule=gpipe,shard=2",
                                          "pipeline=2:schedule=zero-bubble,shard=2",
                                          "replicate=2,shard=2",
                                          "pipeline=4",
                                          "replicate=4",
                                          "shard=4"};

// Blocks whose passes of zero bubble take as long as forward.
Profile with_passes(Profile p) {
  for (BlockProfile& b : p.blocks) b.input_grad_s = b.weight_grad_s = b.weight_grad_accumulate_s = 1;
  return p;
}

}  // namespace

TEST_CASE("stages over ranks: messages pass beside computing, and their time is the pipeline's") {
  const Profile profile = profile_with(4, 1);
  // Two stages, four micro-batches of two samples: forward 4 s, backward 8 s. A message has 8 bytes.
  const Prediction fast = predicted("pipeline=2", profile, {}, setup_of(2, 8, {2, 2}));
  CHECK(fast.step_s == Approx(5 * (4 + 8) + 1));
  CHECK(fast.bubble_s == Approx(12));
  CHECK(axis_of(fast, "pipeline").exposed_s == 0);
  CHECK(axis_of(fast, "pipeline").bytes_sent == 2 * 4 * 8);
  // gpipe: the first forward and the last backward wait for a message of a second each.
  const Prediction slow =
      predicted("pipeline=2:schedule=gpipe", profile, link_of(1.0 / 8), setup_of(2, 8, {2, 2}));
  CHECK(slow.step_s == Approx(fast.step_s + 2));
  CHECK(axis_of(slow, "pipeline").exposed_s == Approx(2));
  CHECK(slow.bubble_s == Approx(12));
  // The cost of a message between stages, if it was measured.
  Link peers = link_of(1);
  peers.ranks.peer_message = {0, 1.0 / 8};
  CHECK(predicted("pipeline=2:schedule=gpipe", profile, peers, setup_of(2, 8, {2, 2})).step_s ==
        Approx(slow.step_s));
}

TEST_CASE("replicas of stages add gradients beside the last backward") {
  const Profile profile = profile_with(4);  // 100 bytes a block
  const TrainingSetup setup = setup_of(4, 16, {2, 2});
  const Prediction p = predicted("pipeline=2,replicate=2", profile, link_of(1.0 / 100), setup);
  // The stages compute as those of one replica with half of the batch. Each stage then reduces one bucket of
  // 200 bytes in a ring of two messages of 100 bytes, which takes 2 s after its last backward. The second
  // stage sends its last gradients 2 s later.
  const Prediction alone = predicted("pipeline=2", profile, link_of(1.0 / 100), setup_of(2, 8, {2, 2}));
  CHECK(p.devices == 4);
  CHECK(p.breakdown.forward_s == Approx(alone.breakdown.forward_s));
  CHECK(p.breakdown.backward_s == Approx(alone.breakdown.backward_s));
  CHECK(axis_of(p, "replicate").exposed_s == Approx(2));
  CHECK(axis_of(p, "replicate").bytes_sent == 4 * 200);
  CHECK(axis_of(p, "pipeline").bytes_sent == 2 * 4 * 16);
  CHECK(p.step_s == Approx(alone.step_s + 4));
  // Small buckets are added while earlier blocks of the stage compute: half of each is exposed.
  TrainingSetup small = setup;
  small.first_bucket_bytes = small.bucket_cap_bytes = 1;
  const Prediction half = predicted("pipeline=2,replicate=2", profile, link_of(1.0 / 100), small);
  CHECK(axis_of(half, "replicate").exposed_s == Approx(1));
  // Gradients are added once, whatever the number of micro-batches is.
  for (const int m : {1, 2, 8}) {
    TrainingSetup other = setup;
    other.micro_batches = m;
    CHECK(axis_of(predicted("pipeline=2,replicate=2", profile, link_of(1.0 / 100), other), "replicate")
              .bytes_sent == 4 * 200);
  }
}

TEST_CASE("a stage contends with its other replicas, and with other stages while they compute") {
  const Profile profile = profile_with(4, 1);
  Link link;
  const auto step = [&](const char* mode, int devices) {
    return predicted(mode, profile, link, setup_of(devices, 4 * devices, {2, 2}, 1)).step_s - 1;
  };
  // With one micro-batch, stages compute one after another: 16 s forward and 32 s backward each.
  CHECK(step("pipeline=2,replicate=2", 4) == Approx(2 * (16 + 32)));
  link.ranks.contention = {1.5, 1.5, 1};
  CHECK(step("pipeline=2", 2) == Approx(2 * (16 + 32)));
  // One of the three other devices computes at the same time.
  CHECK(step("pipeline=2,replicate=2", 4) == Approx(2 * (16 + 32) * (1 + 0.5 / 3)));
}

TEST_CASE("divided stages: bytes by axis, and memory of the model") {
  Profile profile = profile_with(4);
  profile.optimizer_state = 2;
  const TrainingSetup setup = setup_of(4, 16, {2, 2});
  const Link link = link_of(1.0 / 1000);
  const Prediction replicas = predicted("pipeline=2,replicate=2", profile, link, setup),
                   zero1 = predicted("pipeline=2,replicate=2:zero=1", profile, link, setup),
                   zero2 = predicted("pipeline=2,replicate=2:zero=2", profile, link, setup),
                   shards = predicted("pipeline=2,shard=2", profile, link, setup);
  CHECK(replicas.largest().optimizer == 400);
  CHECK(zero1.largest().optimizer == 200);
  CHECK(zero2.largest().optimizer == 200);
  CHECK(shards.largest().optimizer == 200);
  CHECK(replicas.largest().parameters == 200);
  CHECK(shards.largest().parameters == 200.0 / 2 + 200);
  CHECK(axis_of(zero1, "replicate").bytes_sent == 4 * (200 + 100));
  CHECK(axis_of(zero2, "replicate").bytes_sent == 4 * (100 + 100));
  // Each unit is gathered once and divided once.
  CHECK(axis_of(shards, "shard").bytes_sent == 4 * (100 + 100));
  {
    // Or it is gathered for every forward and every backward of four micro-batches, and is not kept.
    const TrainingSetup three_each = setup_of(4, 16, {3, 3});
    Profile six = profile_with(6);
    const Prediction each = predicted("pipeline=2,shard=2:gather=part", six, link, three_each),
                     once = predicted("pipeline=2,shard=2", six, link, three_each);
    CHECK(axis_of(each, "shard").bytes_sent == 4 * (8 * 150 + 150));
    CHECK(axis_of(each, "shard").exposed_s > axis_of(once, "shard").exposed_s);
    CHECK(each.largest().parameters == 300.0 / 2 + 200);  // two units of three are whole
    CHECK(once.largest().parameters == 300.0 / 2 + 300);
    CHECK(each.largest().gradients <= once.largest().gradients);
  }
  CHECK(zero1.step_s > replicas.breakdown.update_s);
  // An accumulated gradient has its own memory until the last backward copies it into a bucket.
  CHECK(replicas.memory[3].buckets == 200);
  CHECK(replicas.memory[3].gradients > 0);
}

TEST_CASE("three axes add up, and the mode of one device of an axis is that without it") {
  const Profile profile = with_passes(profile_with(6));
  const Link link = slow_link();
  const auto step = [&](const char* mode, int devices, std::vector<int> split) {
    return predicted(mode, profile, link, setup_of(devices, 32, std::move(split))).step_s;
  };
  const Prediction all = predicted("pipeline=2,replicate=2,shard=2", profile, link, setup_of(8, 32, {3, 3}));
  CHECK(all.devices == 8);
  REQUIRE(all.axes.size() == 3);
  CHECK(all.axes[0].axis == "pipeline");
  CHECK(exposed(all) == Approx(all.breakdown.exposed_comm_s));
  CHECK(axis_of(all, "replicate").bytes_sent == 8 * 300 / 2);  // the parts of 150 bytes, over two replicas
  CHECK(step("pipeline=2,replicate=-1", 2, {3, 3}) > 0);
  CHECK(step("replicate=-1,shard=4", 4, {}) == step("shard=4", 4, {}));
}

TEST_CASE("properties of the predictions of all meshes") {
  const Profile profile = with_passes(profile_with(6, static_cast<std::int64_t>(kMiB)));
  for (const char* const mode : kMeshes) {
    CAPTURE(mode);
    double before = INFINITY;
    const bool four = std::string(mode) == "pipeline=4";
    const std::vector<int> split = four ? std::vector{2, 2, 1, 1} : std::vector{3, 3};
    for (const double bandwidth : {1e5, 1e6, 1e7, 1e8, 1e12}) {
      Link link = link_of(1 / bandwidth);
      link.ranks.overlap_slowdown = 1.5;
      link.ranks.compute_stall = 0.3;
      const Prediction p = predicted(mode, profile, link, setup_of(4, 32, split));
      CHECK(p.step_s <= before * (1 + 1e-12));
      CHECK(exposed(p) == Approx(p.breakdown.exposed_comm_s).margin(1e-12));
      CHECK(p.bubble_s >= -1e-9);
      before = p.step_s;
    }
    for (const TransferCost cross : {TransferCost{0, 1e-8}, {0, 1e-7}, {1, 1e-7}}) {
      // Links between hosts cost more, and the innermost axis does not use them.
      TrainingSetup hosts = setup_of(4, 32, split);
      hosts.devices_per_host = 2;
      Link link = link_of(1e-8);
      link.cross = {.message = cross};
      const double within = predicted(mode, profile, link, setup_of(4, 32, split)).step_s;
      CHECK(predicted(mode, profile, link, hosts).step_s >= within * (1 - 1e-12));
    }
  }
}

TEST_CASE("replicas across hosts and divided models inside beat a model that is divided across both") {
  const Profile profile = profile_with(8, static_cast<std::int64_t>(10 * kMiB));
  TrainingSetup setup = setup_of(8, 8);
  setup.devices_per_host = 4;
  // Inside a host a gather of a block over four devices takes 3 s, about as long as its forward of 2 s.
  const double inside = 4.0 / (10 * kMiB);
  const auto steps = [&](double factor, int links) {
    setup.links_per_host = links;
    Link link = link_of(inside);
    link.cross = {.message = {0, factor * inside}};
    return std::pair(predicted("replicate=2,shard=4", profile, link, setup),
                     predicted("shard=8", profile, link, setup));
  };
  for (const int links : {1, 4}) {
    CAPTURE(links);
    const auto [inner, across] = steps(8, links);
    CHECK(across.step_s > 2 * inner.step_s);
    // The groups of the four devices of a host share its link to the other one, unless each has a link.
    const double all_reduce_s = 2 * (10 * kMiB / 4 / 2) * 8 * inside * (links == 1 ? 4 : 1);
    CHECK(axis_of(inner, "replicate").exposed_s >= Approx(all_reduce_s));
    CHECK(axis_of(inner, "replicate").bytes_sent == Approx(8 * (80 * kMiB / 4)));
  }
  // With equal links, fewer devices gather from each other, and their gradients are added once more.
  const auto [inner, across] = steps(1, 4);
  CHECK(inner.step_s < 1.05 * across.step_s);
}

TEST_CASE("all meshes of a number of devices are swept, the fastest first") {
  CHECK(meshes(1, 4, 8) == std::vector<std::string>{"none"});
  CHECK(meshes(2, 4, 8) == std::vector<std::string>{"replicate=2", "shard=2", "pipeline=2"});
  // 12 = stages x replicas x shards has 18 factorizations: those of 1, 2, 3, 4, 6 and 12 stages.
  CHECK(meshes(12, 12, 64).size() == 6 + 4 + 3 + 2 + 2 + 1);
  CHECK(meshes(12, 3, 64).size() == 6 + 4 + 3);
  // Each replica needs a sample.
  CHECK(meshes(4, 2, 2) == std::vector<std::string>{"pipeline=2,replicate=2", "pipeline=2,shard=2"});
  CHECK_THROWS_WITH(meshes(0, 1, 1), ContainsSubstring("0 devices"));
  // Stages need no samples of their own.
  const std::vector<Prediction> few =
      sweep(with_passes(profile_with(4)), slow_link(), setup_of(2, 2, {2, 2}, 2), 4);
  REQUIRE(few.size() == meshes(4, 4, 2).size());
  CHECK(few[0].devices == 4);
  CHECK(sweep(with_passes(profile_with(6)), slow_link(), setup_of(2, 512, {3, 3}), 512).size() == 10 + 9 + 8);
  const std::vector<Prediction> all =
      sweep(with_passes(profile_with(6)), slow_link(), setup_of(2, 32, {3, 3}), 8);
  CHECK(all.size() == meshes(8, 6, 32).size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK((all[i].simulated && all[i].devices == 8));
    if (i > 0) CHECK(all[i - 1].step_s <= all[i].step_s);
    CHECK_FALSE(why(all[i]).empty());
  }
  CHECK(why(predicted("pipeline=2", profile_with(4, 1), {}, setup_of(2, 8, {2, 2}))) ==
        "12000.0 ms bubble of the pipeline");
  CHECK(why(predicted("none", profile_with(4, 1), {}, setup_of(1, 8))) == "computes nearly all the time");
}

TEST_CASE("devices that one host holds cross no hosts") {
  const Profile profile = profile_with(6);
  Link link = link_of(1e-8);
  link.cross = {.message = {1, 1}};
  TrainingSetup setup = setup_of(6, 12);
  const double within = predicted("replicate=2,shard=3", profile, link, setup).step_s;
  for (const int per_host : {6, 7, 8}) {  // the sizes need not divide the host
    setup.devices_per_host = per_host;
    CHECK(predicted("replicate=2,shard=3", profile, link, setup).step_s == within);
  }
  setup.devices_per_host = 5;
  CHECK(predicted("replicate=2,shard=3", profile, link, setup).step_s > within + 1);
}

TEST_CASE("what does not combine has no prediction") {
  const Profile profile = profile_with(4);
  // Without stages a model that stays whole during a step is not predicted; that is not the default there.
  CHECK_FALSE(predict(plan_of("shard=2:gather=step"), profile, {}, setup_of(2, 8)).has_value());
  CHECK_FALSE(predict(plan_of("replicate=2,shard=2:gather=step"), profile, {}, setup_of(4, 8)).has_value());
  for (const char* const mode : {"shard=2", "shard=2:gather=part"})
    CHECK(predict(plan_of(mode), profile, {}, setup_of(2, 8)).has_value());
  for (const auto& [mode, keeps] :
       {std::pair("shard=2", false), {"pipeline=2,shard=2", true}, {"pipeline=2,shard=2:gather=part", false}})
    CHECK(tapestry::distributed::divisions_of(plan_of(mode)).back().keeps_whole == keeps);
  CHECK_THROWS_WITH(predict(plan_of("pipeline=2,replicate=2"), profile, {}, setup_of(4, 16, {1, 1, 1, 1})),
                    ContainsSubstring("4 stages with 4 blocks; the model has 4 blocks, for 2 stages"));
  CHECK_FALSE(
      simulate_devices(plan_of("pipeline=8,replicate=2"), profile, {}, setup_of(4, 16), 16).has_value());
  CHECK(simulate_devices(plan_of("pipeline=2,replicate=2"), profile, {}, setup_of(4, 16), 8)->devices == 8);
  TrainingSetup wrong = setup_of(2, 8);
  wrong.links_per_host = 0;
  CHECK_THROWS_WITH(predict(plan_of("replicate=2"), profile, {}, wrong),
                    ContainsSubstring("0 links per host"));
}
