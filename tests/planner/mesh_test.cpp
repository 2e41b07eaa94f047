// Compares predictions for meshes, over one and over several hosts, with sums done by hand.
#include <algorithm>
#include <cmath>
#include <map>

#include "tests/planner/examples.h"

using namespace tests;

namespace {

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

// The same model when two devices divide its layers: half of the parameters, of the times and of the saved
// bytes. In each pass a block sends one all-reduce of 8 bytes a sample.
Profile with_divided(Profile p, bool sequence = false) {
  DividedLayers d{.axes = sequence ? "tensor=2:sequence=1" : "tensor=2", .blocks = p.blocks, .loss = p.loss};
  d.input_sample_bytes = p.input_sample_bytes, d.target_sample_bytes = p.target_sample_bytes;
  for (BlockProfile& b : d.blocks) {
    const std::string name = b.name;
    const double split = b.input_grad_s / 2;
    b = block(b.parameter_bytes[0] / 2, 0.5, 1);
    b.name = name;
    b.update_s = 0.25;
    b.input_grad_s = b.weight_grad_s = b.weight_grad_accumulate_s = split;
    LayerCollectives sent = sends("tensor");
    sent.all_reduce = {2, proportional(8)};
    b.layers_forward = b.layers_backward = {sent};
  }
  p.divided.push_back(d);
  return p;
}

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

TEST_CASE("divided layers wait for their sums, which nothing hides") {
  const Profile profile = with_divided(profile_with(4));
  // A block's all-reduce of n samples is two messages with 4 n bytes each: 0.5 + n seconds.
  Link link = link_of(1.0 / 8);
  link.ranks.message.latency_s = 0.25;
  const Prediction p = predicted("tensor=2", profile, link, setup_of(2, 2));
  CHECK(p.breakdown.forward_s == Approx(4 * 0.5 * 2));
  CHECK(p.breakdown.backward_s == Approx(4 * 1.0 * 2));
  CHECK(p.breakdown.exposed_comm_s == Approx(4 * 2 * 2.5));
  CHECK(p.breakdown.update_s == Approx(4 * 0.25));
  CHECK(axis_of(p, "tensor").exposed_s == Approx(20));
  CHECK(axis_of(p, "tensor").bytes_sent == 2 * 4 * 2 * 16);
  REQUIRE(p.memory.size() == 2);
  for (const MemoryItems& m : p.memory) CHECK((m.parameters == 4 * 50 && m.buckets == 0));
  CHECK(p.timeline.size() == 3 + 4 + 4);
  CHECK(p.timeline[1].name == "wait for block activations");
  CHECK((p.timeline[1].begin_s == Approx(1) && p.timeline[1].end_s == Approx(3.5)));
  const tapestry::SpanSubject& about = p.timeline[1].subject;
  CHECK((about.module == "block" && about.bucket == -1 && about.bytes == 16 && about.axis == "tensor"));
  LayerCollectives sent = sends("tensor");
  sent.all_reduce = {6, proportional(6)}, sent.all_gather = {3, proportional(3)};
  sent.reduce_scatter = {3, proportional(6)};
  CHECK(sent.whole_bytes(2, 4) == 2 * (4 + 4 + 8));
  // Replicas, of which each has half of the samples, add the gradients of their parts.
  const Prediction four = predicted("replicate=2,tensor=2", profile, link, setup_of(4, 4));
  CHECK(four.breakdown.forward_s == Approx(p.breakdown.forward_s));
  CHECK(axis_of(four, "tensor").exposed_s == Approx(20));
  CHECK(axis_of(four, "tensor").bytes_sent == 2 * 256);
  CHECK(axis_of(four, "replicate").bytes_sent == 4 * 200);
  CHECK(axis_of(four, "replicate").exposed_s == Approx(2 * (0.25 + 100.0 / 8)));
  CHECK(four.memory.size() == 4);
  // Gathers and scatters have their own costs.
  Profile sequence = with_divided(profile_with(4), true);
  for (BlockProfile& b : sequence.divided[0].blocks) {
    LayerCollectives halves = sends("tensor");
    halves.all_gather = halves.reduce_scatter = {1, proportional(4)};
    b.layers_forward = b.layers_backward = {halves};
  }
  link.ranks.gather_message = {0, 1};
  const Prediction divided = predicted("tensor=2:sequence=1", sequence, link, setup_of(2, 2));
  CHECK(axis_of(divided, "tensor").exposed_s == Approx(4 * 2 * (8 + 0.25 + 1)));
  CHECK(axis_of(divided, "tensor").bytes_sent == 256);
  // One device divides nothing. Sizes that were not measured have no prediction.
  CHECK(predicted("tensor=-1", profile, link, setup_of(1, 2)).step_s ==
        predicted("none", profile, link, setup_of(1, 2)).step_s);
  for (const char* const mode : {"tensor=4", "tensor=4:sequence=1"})
    CHECK_FALSE(predict(plan_of(mode), profile, link, setup_of(4, 4)).has_value());
  CHECK_FALSE(predict(plan_of("tensor=2:sequence=1"), profile, link, setup_of(2, 4)).has_value());
  CHECK_FALSE(simulate_devices(plan_of("tensor=2"), profile, link, setup_of(2, 4), 4).has_value());
  CHECK(simulate_devices(plan_of("replicate=2,tensor=2"), profile, link, setup_of(4, 8), 8)->devices == 8);
}

TEST_CASE(
    "other axes around divided layers cost what they cost around a model with these waits in its blocks") {
  const Profile profile = with_divided(with_passes(profile_with(6, static_cast<std::int64_t>(kMiB))));
  Link link = link_of(1e-7);
  link.ranks.peer_message = {0, 1e-7};
  link.ranks.contention = {1.25, 1.5, 1.75};
  for (const char* const mode :
       {"replicate=2", "replicate=2:zero=1", "replicate=2:zero=2", "shard=2", "pipeline=2",
        "pipeline=2:schedule=gpipe", "pipeline=2:schedule=zero-bubble", "pipeline=2,replicate=2",
        "pipeline=2:schedule=zero-bubble,replicate=2:zero=2", "pipeline=2,shard=2",
        "pipeline=2:schedule=zero-bubble,shard=2:gather=part", "replicate=2,shard=2",
        "pipeline=2,replicate=2,shard=2"}) {
    CAPTURE(mode);
    const bool stages = std::string(mode).starts_with("pipeline");
    const int devices = plan_of(mode).size, micro_batches = 4;
    const int replicas = devices / (stages ? 2 : 1);
    const std::int64_t batch = 4 * replicas;
    const double n = stages ? 1 : 4;
    Profile whole = profile;
    whole.blocks = profile.divided[0].blocks;
    for (BlockProfile& b : whole.blocks) {
      const double waits = b.layers_forward.at(0).seconds(link.ranks, n);
      b.layers_forward.clear(), b.layers_backward.clear();
      // Contention slows down computing, and not the waits.
      b.forward_s = Curve({{n, 0.5 * n * 1.25 + waits}});
      b.backward_s = Curve({{n, 1.0 * n * 1.5 + waits}});
      b.input_grad_s = 0.5 * 1.5 + waits;
      b.weight_grad_s = b.weight_grad_accumulate_s = 0.5 * 1.5;
    }
    Link quiet = link, busy = link;
    quiet.ranks.contention = {1, 1, 1.75};
    // Stages contend with what runs beside them, which no simple factor is.
    if (stages) busy.ranks.contention = quiet.ranks.contention;
    if (stages)
      for (std::size_t k = 0; k < whole.blocks.size(); ++k) {
        BlockProfile& b = whole.blocks[k];
        const double waits = profile.divided[0].blocks[k].layers_forward.at(0).seconds(link.ranks, n);
        b.forward_s = Curve({{n, 0.5 * n + waits}});
        b.backward_s = Curve({{n, 1.0 * n + waits}});
        b.input_grad_s = profile.divided[0].blocks[k].input_grad_s + waits;
        b.weight_grad_s = b.weight_grad_accumulate_s = profile.divided[0].blocks[k].weight_grad_s;
      }
    const TrainingSetup setup = setup_of(devices, batch, {3, 3}, micro_batches);
    TrainingSetup twice = setup;
    twice.devices = 2 * devices;
    const Prediction one = predicted(mode, whole, quiet, setup),
                     two = predicted(std::string(mode) + ",tensor=2", profile, busy, twice);
    CHECK(two.step_s == Approx(one.step_s));
    const AxisCost& tensor = axis_of(two, "tensor");
    CHECK(tensor.exposed_s ==
          Approx((stages ? 0.5 * micro_batches : 1) * 6 * 2 *
                 profile.divided[0].blocks[0].layers_forward.at(0).seconds(link.ranks, n)));
    CHECK(tensor.bytes_sent == Approx(2 * replicas * (stages ? micro_batches : 1) * 6 * 2 * 8 * n));
    CHECK(two.breakdown.forward_s + two.breakdown.backward_s + tensor.exposed_s ==
          Approx(one.breakdown.forward_s + one.breakdown.backward_s));
    CHECK(two.bubble_s == Approx(one.bubble_s).margin(1e-9));
    for (const AxisCost& a : one.axes) {
      CHECK(axis_of(two, a.axis).exposed_s == Approx(a.exposed_s).margin(1e-9));
      CHECK(axis_of(two, a.axis).bytes_sent == Approx(2 * a.bytes_sent));
    }
    REQUIRE(two.memory.size() == 2 * one.memory.size());
    for (std::size_t d = 0; d < two.memory.size(); ++d)
      CHECK(two.memory[d].total() >= one.memory[d / 2].total());
    // The time of a pass, which its blocks share, includes the waits of their layers.
    CHECK(two.memory_device == 2 * one.memory_device);
    REQUIRE(two.memory_over_time.size() == one.memory_over_time.size());
    double most = 0;
    for (std::size_t i = 0; i < two.memory_over_time.size(); ++i) {
      CHECK(two.memory_over_time[i].begin_s == Approx(one.memory_over_time[i].begin_s));
      most = std::max(most, two.memory_over_time[i].items.total());
    }
    CHECK(most == Approx(two.memory.at(static_cast<std::size_t>(two.memory_device)).total()));
    // Each device sends to the one that has the other half of its layers.
    std::map<std::string, double> sent;  // by phase
    const auto plan = plan_of(std::string(mode) + ",tensor=2");
    for (const PredictedTraffic& t : predict_traffic(plan, profile, twice)) {
      if (t.axis != "tensor") continue;
      CHECK((t.to == (t.from ^ 1) && t.kind == "activations"));
      CHECK(t.bytes == Approx(tensor.bytes_sent / twice.devices / 2));
      sent[t.phase] += t.bytes;
    }
    CHECK(sent.size() == 2);
    for (const char* const phase : {"forward", "backward"})
      CHECK(sent[phase] == Approx(tensor.bytes_sent / 2));
    double waits = 0;  // of all rows of the timeline
    for (const PredictedSpan& s : two.timeline)
      if (s.name == "wait for block activations") waits += s.end_s - s.begin_s;
    CHECK(waits == Approx(two.rows * tensor.exposed_s));
  }
}

TEST_CASE("divided layers stay on one host where they can, and meshes have them") {
  const Profile profile = with_divided(with_passes(profile_with(6)));
  Link link = link_of(1e-8);
  link.cross = {.message = {1, 1e-6}};
  TrainingSetup setup = setup_of(4, 64);
  setup.devices_per_host = 2;
  const auto exposed_of = [&] {
    return axis_of(predicted("replicate=2,tensor=2", profile, link, setup), "tensor").exposed_s;
  };
  const double inside = exposed_of();
  setup.devices_per_host = 1;
  CHECK(exposed_of() > inside + 6 * 2 * 2);  // two messages for each of the passes of six blocks
  CHECK(meshes(4, 2, 8, {"tensor=2", "tensor=8"}) ==
        std::vector<std::string>{"replicate=4", "replicate=2,shard=2", "shard=4", "pipeline=2,replicate=2",
                                 "pipeline=2,shard=2", "replicate=2,tensor=2", "shard=2,tensor=2",
                                 "pipeline=2,tensor=2"});
  for (const int devices : {8, 512}) {
    TrainingSetup wide = setup_of(2, 512, {3, 3});
    wide.devices_per_host = 8;
    const std::vector<Prediction> all = sweep(profile, link, wide, devices);
    CHECK(all.size() == meshes(devices, 6, 512, {"tensor=2"}).size());
    CHECK(all.size() > meshes(devices, 6, 512).size());
    for (const Prediction& p : all) CHECK(p.memory.size() == static_cast<std::size_t>(devices));
    wide.devices_per_host = 1;  // no host holds two devices that divide layers
    CHECK(sweep(profile, link, wide, devices).size() == meshes(devices, 6, 512).size());
  }
}

TEST_CASE("what does not combine has no prediction") {
  const Profile profile = profile_with(4);
  // Without stages a model that stays whole during a step is not predicted; that is not the default there.
  CHECK_FALSE(predict(plan_of("shard=2:gather=step"), profile, {}, setup_of(2, 8)).has_value());
  CHECK_FALSE(predict(plan_of("replicate=2,shard=2:gather=step"), profile, {}, setup_of(4, 8)).has_value());
  for (const char* const mode : {"shard=2", "shard=2:gather=part", "shard=2:reduce=part"})
    CHECK(predict(plan_of(mode), profile, {}, setup_of(2, 8)).has_value());
  const Profile sequence = with_divided(profile, true);
  CHECK(predict(plan_of("tensor=2:sequence=1"), sequence, {}, setup_of(2, 8)).has_value());
  for (const char* const mode : {"tensor=2:chunks=2:sequence=1", "pipeline=2,tensor=2:sequence=1",
                                 "pipeline=2,shard=2:reduce=part", "shard=2:offload=host"})
    CHECK_FALSE(predict(plan_of(mode), sequence, {}, setup_of(plan_of(mode).size, 16, {2, 2})).has_value());
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
