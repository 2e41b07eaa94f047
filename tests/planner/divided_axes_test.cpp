// Predictions for divided sequences and experts, compared with what ranks really send and with sums done by
// hand.
#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "tapestry/tapestry.h"
#include "tests/planner/examples.h"

using namespace tests;
using namespace tapestry;
namespace dist = tapestry::distributed;

namespace {

constexpr std::int64_t kFeatures = 32, kLength = 8, kSamples = 4, kWords = 16;

// Two blocks of attention with four heads, and with mixtures if there are experts. Each token has all
// experts, so that the router uses them equally.
std::vector<Block> blocks_with(std::int64_t experts) {
  const nn::Gpt2Config config{.vocab_size = kWords,
                              .n_positions = kLength,
                              .n_embd = kFeatures,
                              .n_layer = 1,
                              .n_head = 4,
                              .n_inner = 32,
                              .embd_pdrop = 0,
                              .attn_pdrop = 0,
                              .resid_pdrop = 0};
  std::vector<Block> blocks{{"words", std::make_shared<nn::Sequential>(nn::Embedding::Options{
                                          .num_embeddings = kWords, .embedding_dim = kFeatures})}};
  for (int i = 0; i < 2; ++i) {
    const auto block = std::make_shared<nn::Sequential>();
    block->push_back(std::make_shared<nn::Gpt2Block>(config));
    if (experts > 0)
      block->push_back(std::make_shared<nn::MixtureOfExperts>(nn::MixtureOfExpertsOptions{
          .embed_dim = kFeatures, .hidden_dim = 16, .num_experts = experts, .top_k = experts}));
    blocks.push_back({"block" + std::to_string(i), block});
  }
  blocks.push_back({"head", std::make_shared<nn::Sequential>(
                                nn::Linear::Options{.in_features = kFeatures, .out_features = kWords})});
  return blocks;
}

Model model_with(std::int64_t experts) {
  manual_seed(3);
  return {
      .make_blocks = [experts] { return blocks_with(experts); },
      .inputs = randint(0, kWords, {kSamples, kLength}),
      .targets = randint(0, kWords, {kSamples, kLength}),
      .loss = [](const Tensor& x, const Tensor& y) { return cross_entropy(x.flatten(0, 1), y.flatten()); },
      .sequence_dim = 1};
}

// Bytes by sender, receiver, axis, kind and phase.
using Traffic = std::map<std::tuple<int, int, std::string, std::string, std::string>, double>;

struct Sent {
  std::map<std::string, double> by_axis;  // of all ranks
  Traffic traffic;
};

Sent sent_on_ranks(const std::string& text, const Model& model, int ranks) {
  Sent all;
  std::mutex mutex;
  dist::run_local_ranks(ranks, [&](const std::shared_ptr<dist::ProcessGroup>& world) {
    nn::Sequential net;
    {
      const std::lock_guard lock(mutex);  // ranks are threads, and share the generator
      manual_seed(3);
      for (const Block& b : model.make_blocks()) net.push_back(b.module);
    }
    dist::Strategy strategy(text, {.world = world});
    dist::ModelParts parts{.forward = [&](const std::vector<Tensor>& x) { return std::vector{net(x[0])}; },
                           .loss =
                               [&](const std::vector<Tensor>& x, const std::vector<Tensor>& y) {
                                 return dist::Loss{model.loss(x[0], y[0]), static_cast<double>(y[0].numel())};
                               },
                           .sequence_dim = model.sequence_dim};
    parts.units = net.children();
    strategy.wrap(net, std::move(parts));
    const dist::Samples mine = strategy.share(kSamples, {});
    const auto part = [&](const Tensor& t) { return t.narrow(0, mine.first, mine.count).clone(); };
    const dist::Batch batch{{part(model.inputs)}, {part(model.targets)}};
    for (int step = 0; step < 2; ++step)
      strategy.gradients([&](const dist::Part&) { return batch; }, static_cast<double>(kSamples * kLength));
    const std::lock_guard lock(mutex);
    for (const dist::AxisReport& r : strategy.report())
      all.by_axis[r.axis] += static_cast<double>(r.bytes_sent);
    for (const dist::Transfer& t : strategy.transfers())
      all.traffic[{t.from, t.to, t.axis, t.what, t.phase}] += static_cast<double>(t.bytes);
  });
  return all;
}

}  // namespace

TEST_CASE("ranks of divided sequences and experts send what is predicted, by axis, receiver and phase") {
  for (const std::int64_t experts : {0, 4}) {
    const Model model = model_with(experts);
    const std::vector<std::string> layers =
        experts > 0
            ? std::vector<std::string>{"expert=2", "expert=4", "expert=2,context=2", "expert=2,tensor=2"}
            : std::vector<std::string>{"context=2", "context=2:attention=gathered",
                                       "context=2:attention=ring", "context=4:attention=ring",
                                       "context=2,tensor=2"};
    const Profile profile =
        measure_profile(model, setup_of(1, kSamples),
                        {.warmup = 0, .passes = 1, .simulated_devices = {2, 4}, .layers = layers});
    std::vector<std::string> modes = layers;
    if (experts > 0)
      modes.insert(modes.end(), {"replicate=2,expert=2", "replicate=2:zero=1,expert=2",
                                 "replicate=2:zero=2,expert=2", "shard=2,expert=2"});
    else
      modes.insert(modes.end(),
                   {"replicate=2,context=2", "replicate=2:zero=1,context=2", "shard=2,context=2"});
    for (const std::string& mode : modes) {
      INFO(mode);
      const StrategyPlan plan = plan_of(mode);
      const TrainingSetup setup = setup_of(plan.size, kSamples);
      const Prediction p = predicted(mode, profile, {}, setup);
      const Sent sent = sent_on_ranks(mode, model, plan.size);
      CHECK(sent.by_axis.size() == p.axes.size());
      Traffic predicted_traffic;
      for (const PredictedTraffic& t : predict_traffic(plan, profile, setup))
        predicted_traffic[{t.from, t.to, t.axis, t.kind, t.phase}] += t.bytes;
      // Rows of other ranks' tokens have no phase. Buckets have flags, and their ends are aligned.
      std::map<std::string, double> moved, expected;  // activations and tokens of all ranks
      for (const auto& [key, bytes] : sent.traffic) {
        const auto& [from, to, axis, kind, phase] = key;
        CAPTURE(from, to, axis, kind, phase, bytes);
        if (kind == "tokens") {
          moved[axis] += bytes;
        } else if (kind == "activations") {
          CHECK(predicted_traffic[key] == bytes);
        } else if (kind == "parameters" || axis == "shard") {
          CHECK(predicted_traffic[key] == Approx(bytes).epsilon(1e-9));
        } else {
          CHECK(predicted_traffic[key] <= bytes);
          CHECK(predicted_traffic[key] >= bytes - 512);
        }
      }
      for (const auto& [key, bytes] : predicted_traffic)
        if (std::get<3>(key) == "tokens") expected[std::get<2>(key)] += bytes;
      CHECK(moved == expected);
      CHECK((experts == 0) == moved.empty());
      for (const AxisCost& a : p.axes) {
        CAPTURE(a.axis, a.bytes_sent);
        REQUIRE(sent.by_axis.contains(a.axis));
        CHECK(a.bytes_sent == Approx(sent.by_axis.at(a.axis)).epsilon(0.1));
        CHECK(a.bytes_sent > 0);
      }
    }
  }
}

namespace {

// The profile of the same model if two devices divide sequences or experts: half of the times and of the
// saved bytes, but all parameters. A block sends 8 bytes a sample in each pass. The second of its two
// parameters belongs to experts.
Profile with_positions(Profile p, const std::string& axes, const LayerCollectives& sent) {
  DividedLayers d{.axes = axes, .blocks = p.blocks, .loss = p.loss};
  d.input_sample_bytes = p.input_sample_bytes, d.target_sample_bytes = p.target_sample_bytes;
  for (BlockProfile& b : d.blocks) {
    const std::vector<std::int64_t> bytes = b.parameter_bytes;
    b = block(bytes[0], 0.5, 1);
    b.layers_forward = b.layers_backward = {sent};
    if (sent.axis != "expert") continue;
    b.parameter_bytes = {40, 60};
    b.parts = {1};
    const Curve none({{1, 0.0}});
    b.backward = {{1, proportional(21), proportional(21), none},
                  {0, proportional(21), proportional(21), none}};
  }
  p.divided.push_back(d);
  return p;
}

}  // namespace

TEST_CASE("ranks that divide sequences add gradients along all axes of copies at once") {
  LayerCollectives sent = sends("context");
  sent.all_gather = {1, proportional(8)};
  const Profile profile = with_positions(profile_with(4), "context=2", sent);
  const Link link = link_of(1.0 / 8);
  // Two devices compute the same two samples: a block waits for a message of 16 bytes in each pass, and in
  // the end for the sum of 400 bytes.
  const Prediction p = predicted("context=2", profile, link, setup_of(2, 2));
  REQUIRE(p.axes.size() == 1);
  CHECK(axis_of(p, "context").size == 2);
  CHECK(axis_of(p, "context").bytes_sent == 2 * (4 * 2 * 16 + 400));
  CHECK(axis_of(p, "context").exposed_s == Approx(4 * 2 * 2 + 400.0 / 8));
  CHECK(p.breakdown.forward_s == Approx(4 * 0.5 * 2));
  for (const MemoryItems& m : p.memory) CHECK((m.parameters == 400 && m.buckets == 400));
  // Four devices add in one ring, each with its next neighbour along both axes.
  const Prediction four = predicted("replicate=2,context=2", profile, link, setup_of(4, 4));
  REQUIRE(four.axes.size() == 2);
  CHECK(axis_of(four, "replicate_context").size == 4);
  CHECK(axis_of(four, "replicate_context").bytes_sent == 4 * 2 * 300);
  CHECK(axis_of(four, "replicate_context").exposed_s == Approx(2 * 300.0 / 8));
  CHECK(axis_of(four, "context").bytes_sent == 4 * 4 * 2 * 16);
  CHECK(axis_of(four, "context").exposed_s == Approx(4 * 2 * 2));
  int rings = 0;
  for (const PredictedTraffic& t :
       predict_traffic(plan_of("replicate=2,context=2"), profile, setup_of(4, 4))) {
    if (t.axis != "replicate_context") continue;
    ++rings;
    CHECK(t.to == (t.from + 1) % 4);
    CHECK(t.bytes == 600);
  }
  CHECK(rings == 4);
  // ZeRO divides the optimizer's state over all of them, and so does a sharded model the parameters.
  for (const int devices : {2, 4})
    CHECK(
        predicted("replicate=-1:zero=1,context=2", profile, link, setup_of(devices, 4)).breakdown.update_s ==
        Approx(4 * 0.5 / devices));
  const Prediction shards = predicted("shard=2,context=2", profile, link, setup_of(4, 4));
  CHECK(axis_of(shards, "shard").bytes_sent == 4 * 3 * 200);
  CHECK(axis_of(shards, "context").bytes_sent == 4 * (4 * 2 * 16 + 200));
  CHECK_FALSE(predict(plan_of("context=4"), profile, link, setup_of(4, 4)).has_value());
  CHECK_FALSE(predict(plan_of("context=2:attention=ring"), profile, link, setup_of(2, 4)).has_value());
  // With two devices on each host, the ring of four crosses hosts, and the two devices of a host exchange for
  // free.
  TrainingSetup hosts = setup_of(4, 4);
  hosts.devices_per_host = 2;
  Link both = link_of(0);
  both.ranks.message.latency_s = 1e-9;
  both.cross = {.message = {0, 1.0 / 8}};
  const Prediction apart = predicted("replicate=2,context=2", profile, both, hosts);
  CHECK(axis_of(apart, "replicate_context").exposed_s == Approx(2 * 300.0 / 8));
  CHECK(axis_of(apart, "context").exposed_s < 1e-6);
  hosts.devices_per_host = 1;
  CHECK(axis_of(predicted("replicate=2,context=2", profile, both, hosts), "context").exposed_s ==
        Approx(4 * 2 * 2));
}

TEST_CASE("messages of a ring pass beside attention, as far as it takes as long") {
  LayerCollectives sent = sends("context");
  sent.beside = {1, proportional(8)};
  sent.beside_s = proportional(0.25);
  sent.all_gather = {1, proportional(1)};
  Link link;
  const auto exposed_of = [&](double s_per_byte) {
    link.ranks.message = {0, s_per_byte};
    const Profile profile = with_positions(profile_with(1), "context=2:attention=ring", sent);
    const Prediction p = predicted("context=2:attention=ring", profile, link, setup_of(2, 2));
    return axis_of(p, "context").exposed_s - 100 * s_per_byte;  // without the sum of gradients
  };
  // In each of the two passes, 16 bytes travel beside half a second of attention, and nothing hides 2 bytes.
  CHECK(exposed_of(1.0 / 64) == Approx(2 * 2.0 / 64));
  CHECK(exposed_of(1.0 / 8) == Approx(2 * (2 - 0.5 + 2.0 / 8)));
  link.ranks.compute_stall = 0.5;  // of a second of messages, attention loses half
  link.ranks.overlap_slowdown = 1;
  CHECK(sent.seconds(link.ranks, 2) == Approx(2 - 0.5 + 2.0 / 8));
  link.ranks.message = {0, 1.0 / 64};
  CHECK(sent.seconds(link.ranks, 2) == Approx(0.5 * 0.25 + 2.0 / 64));
  link.ranks.overlap_slowdown = 4;
  CHECK(sent.seconds(link.ranks, 2) == Approx(1 - 0.5 + 2.0 / 64));
  CHECK(sent.bytes(2) == 18);
  CHECK(sent.whole_bytes(2, 2) == 2 * 2 + 16);
}

TEST_CASE("gradients of experts are added over fewer ranks than all others") {
  LayerCollectives sent = sends("expert", "tokens");
  sent.all_gather = {2, proportional(8)};
  const Profile profile = with_positions(profile_with(4), "expert=2", sent);
  const Link link = link_of(1.0 / 8);
  // Each device has samples of its own.
  const Prediction p = predicted("expert=2", profile, link, setup_of(2, 4));
  REQUIRE(p.axes.size() == 1);
  CHECK(p.breakdown.forward_s == Approx(4 * 0.5 * 2));
  CHECK(axis_of(p, "expert").bytes_sent == 2 * (4 * 2 * 16 + 160));
  CHECK(axis_of(p, "expert").exposed_s == Approx(4 * 2 * 2 + 160.0 / 8));
  CHECK(p.timeline[1].name == "wait for block tokens");
  // No devices add the gradients of experts, so these are in no bucket. All of them exist before the last
  // gradient, which needs 42 bytes.
  for (const MemoryItems& m : p.memory)
    CHECK((m.buckets == 160 && m.gradients == 240 && m.total() == 400 + 160 + 240 + 2 * (6 + 8) + 42));
  const Prediction four = predicted("replicate=2,expert=2", profile, link, setup_of(4, 8));
  REQUIRE(four.axes.size() == 3);
  CHECK(axis_of(four, "replicate_expert").bytes_sent == 4 * 2 * 160 * 3 / 4);
  CHECK(axis_of(four, "replicate").bytes_sent == 4 * 240);
  CHECK(axis_of(four, "replicate").size == 2);
  CHECK(axis_of(four, "expert").bytes_sent == 4 * 4 * 2 * 16);
  for (const MemoryItems& m : four.memory) CHECK((m.buckets == 400 && m.gradients == 0));
  // Both sums begin when backward ends. They have groups of their own, so the longer one counts.
  CHECK(four.breakdown.exposed_comm_s == Approx(4 * 2 * 2 + 240.0 / 8));
  const Prediction eight = predicted("replicate=4,expert=2", profile, link, setup_of(8, 8));
  CHECK(axis_of(eight, "replicate_expert").size == 8);
  CHECK(axis_of(eight, "replicate").bytes_sent == Approx(8 * 2 * 240 * 3.0 / 4));
  // ZeRO divides the state of experts, and in stage 2 their gradients, over the devices that add them.
  Profile with_state = profile;
  with_state.divided[0].optimizer_state = 2;
  for (const double stage : {1, 2}) {
    const std::string mode = stage == 1 ? "replicate=2:zero=1,expert=2" : "replicate=2:zero=2,expert=2";
    const Prediction zero = predicted(mode, with_state, link, setup_of(4, 8));
    REQUIRE(zero.axes.size() == 3);
    CHECK(axis_of(zero, "replicate_expert").bytes_sent == 4 * (4 - stage) * 160 * 3 / 4);
    CHECK(axis_of(zero, "replicate").bytes_sent == 4 * (4 - stage) * 240 / 2);
    CHECK(zero.breakdown.update_s == Approx(4 * 0.5 * (160.0 / 4 + 240.0 / 2) / 400));
    for (const MemoryItems& m : zero.memory) CHECK(m.optimizer == Approx(2 * (160.0 / 4 + 240.0 / 2)));
    // In stage 2, whole buckets exist beside this device's parts of them until they are divided.
    double buckets = 0;
    for (const PredictedMemory& m : zero.memory_over_time) buckets = std::max(buckets, m.items.buckets);
    CHECK(buckets == (stage == 1 ? 400 : 160.0 / 4 + 240.0 / 2 + 400));
    // While the parameters are gathered, the bucket of experts and that of all else exist, with this device's
    // parts of both.
    CHECK(zero.memory_over_time.back().items.workspace == Approx(160 * (1 + 1.0 / 4) + 240 * (1 + 1.0 / 2)));
    // Both sums take 30 s, or 15 s in stage 2, and both gathers 15 s. Sums and gathers have their own groups.
    CHECK(zero.breakdown.exposed_comm_s == Approx(4 * 2 * 2 + 30 / stage + 15));
  }
  CHECK_FALSE(predict(plan_of("replicate=-1:zero=1,expert=2"), profile, link, setup_of(2, 4)).has_value());
  const Prediction shards = predicted("shard=2,expert=2", profile, link, setup_of(4, 8));
  CHECK(axis_of(shards, "shard").bytes_sent == 4 * 3 * 200);
  CHECK(axis_of(shards, "expert").bytes_sent == 4 * (4 * 2 * 16 + 80));
}

TEST_CASE("meshes have all axes that a profile was measured for") {
  LayerCollectives of_context = sends("context"), of_experts = sends("expert", "tokens");
  of_context.all_gather = of_experts.all_gather = {1, proportional(8)};
  Profile profile = with_positions(profile_with(6), "context=2", of_context);
  LayerCollectives of_layers = sends("tensor");
  of_layers.all_reduce = {2, proportional(8)};
  profile = with_positions(profile, "tensor=2", of_layers);
  profile = with_positions(profile, "expert=4", of_experts);
  const std::vector<std::string> layers{"context=2", "tensor=2", "expert=4"};
  // Experts need samples of their own; sequences do not.
  CHECK(meshes(4, 1, 1, layers) == std::vector<std::string>{});
  CHECK(meshes(4, 1, 2, layers) == std::vector<std::string>{"replicate=2,context=2", "shard=2,context=2",
                                                            "replicate=2,tensor=2", "shard=2,tensor=2"});
  CHECK(meshes(4, 1, 4, layers).back() == "expert=4");
  CHECK(meshes(4, 1, 4, {"context=2,tensor=2"}).back() == "context=2,tensor=2");
  for (const int devices : {8, 64, 512}) {
    TrainingSetup wide = setup_of(2, 512, {3, 3});
    wide.devices_per_host = 8;
    const std::vector<Prediction> all = sweep(profile, link_of(1e-8), wide, devices);
    CHECK(all.size() == meshes(devices, 6, 512, layers).size());
    for (const char* const axis : {"tensor", "context", "expert"})
      CHECK(std::any_of(all.begin(), all.end(),
                        [&](const Prediction& p) { return p.mode.find(axis) != std::string::npos; }));
    for (const Prediction& p : all) CHECK(p.memory.size() == static_cast<std::size_t>(devices));
  }
  CHECK(layers_of(plan_of("replicate=-1,context=2:attention=ring,tensor=2:sequence=1"), 8) ==
        "context=2:attention=ring,tensor=2:sequence=1");
  CHECK(layers_of(plan_of("context=2:attention=auto"), 2) == "context=2");
  CHECK(layers_of(plan_of("expert=2,tensor=2"), 8, true) == "expert=4,tensor=2");
  CHECK(layers_of(plan_of("context=2"), 8, true) == "context=8");
  CHECK(layers_of(plan_of("replicate=2"), 8).empty());
}
