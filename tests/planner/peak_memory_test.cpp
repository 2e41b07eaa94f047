// Compares the predicted peak memory of every mode with the allocator's count of a training step, for models
// that no other test and no program uses.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <type_traits>

#include "tapestry/tapestry.h"
#include "tests/planner/examples.h"

using namespace tapestry;
using namespace tests;
namespace dist = tapestry::distributed;

namespace {

using Blocks = std::vector<Block>;

template <class... Parts>
void add(Blocks& blocks, Parts&&... parts) {
  blocks.push_back({"block", std::make_shared<nn::Sequential>(std::forward<Parts>(parts)...)});
}

// A block of a transformer with grouped queries, RMS norms and a gated feed-forward layer.
class GroupedQueries : public nn::Module {
 public:
  static constexpr std::int64_t kWidth = 128, kHeads = 8, kGroups = 2, kHead = kWidth / kHeads;
  Tensor forward(const Tensor& x) override {
    const Tensor n = norm1_(x);
    const auto heads = [](const Tensor& t) { return t.unflatten(-1, {-1, kHead}).transpose(1, 2); };
    const Tensor seen = scaled_dot_product_attention(heads(q_(n)), heads(k_(n)), heads(v_(n)),
                                                     {.is_causal = true, .enable_gqa = true});
    const Tensor y = x + out_(seen.transpose(1, 2).flatten(2)), m = norm2_(y);
    return y + down_(silu(gate_(m)) * up_(m));
  }

 private:
  nn::Linear& linear(const char* name, std::int64_t in, std::int64_t out) {
    return nn::Module::add<nn::Linear>(name, {.in_features = in, .out_features = out, .bias = false});
  }
  nn::RMSNorm& norm(const char* name) {
    return nn::Module::add<nn::RMSNorm>(name, {.normalized_shape = {kWidth}});
  }
  nn::RMSNorm &norm1_ = norm("norm1"), &norm2_ = norm("norm2");
  nn::Linear &q_ = linear("q", kWidth, kWidth), &k_ = linear("k", kWidth, kGroups*kHead),
             &v_ = linear("v", kWidth, kGroups*kHead), &out_ = linear("out", kWidth, kWidth),
             &gate_ = linear("gate", kWidth, 3 * kWidth), &up_ = linear("up", kWidth, 3 * kWidth),
             &down_ = linear("down", 3 * kWidth, kWidth);
};

class Lstm : public nn::Module {
 public:
  explicit Lstm(std::int64_t width)
      : lstm_(nn::Module::add<nn::LSTM>("lstm",
                                        {.input_size = width, .hidden_size = width, .batch_first = true})) {}
  Tensor forward(const Tensor& x) override { return std::get<0>(lstm_(x)); }

 private:
  nn::LSTM& lstm_;
};

constexpr std::int64_t kWords = 256;

Blocks grouped_queries() {
  constexpr std::int64_t kWidth = GroupedQueries::kWidth;
  Blocks blocks;
  add(blocks, nn::Embedding::Options{.num_embeddings = kWords, .embedding_dim = kWidth});
  for (int i = 0; i < 3; ++i) blocks.push_back({"attention", std::make_shared<GroupedQueries>()});
  add(blocks, nn::RMSNorm::Options{.normalized_shape = {kWidth}},
      nn::Linear::Options{.in_features = kWidth, .out_features = kWords, .bias = false});
  return blocks;
}

Blocks lstms() {
  Blocks blocks;
  add(blocks, nn::Embedding::Options{.num_embeddings = kWords, .embedding_dim = 96});
  for (int i = 0; i < 2; ++i) blocks.push_back({"lstm", std::make_shared<Lstm>(96)});
  add(blocks, nn::Linear::Options{.in_features = 96, .out_features = kWords});
  return blocks;
}

Blocks group_norms() {
  Blocks blocks;
  std::int64_t in = 3;
  for (const std::int64_t out : {16, 32, 32, 64}) {
    add(blocks, nn::Conv2d::Options{.in_channels = in, .out_channels = out, .kernel_size = 3, .padding = 1},
        nn::GroupNorm::Options{.num_groups = 4, .num_channels = out}, nn::ReLU::Options{});
    in = out;
  }
  add(blocks, nn::AdaptiveAvgPool2d::Options{.output_size = 1}, nn::Flatten::Options{},
      nn::Linear::Options{.in_features = in, .out_features = 10});
  return blocks;
}

Blocks layer_norms() {
  Blocks blocks;
  std::int64_t in = 64;
  for (int i = 0; i < 4; ++i, in = 256)
    add(blocks, nn::Linear::Options{.in_features = in, .out_features = 256},
        nn::LayerNorm::Options{.normalized_shape = {256}}, nn::GELU::Options{});
  add(blocks, nn::Linear::Options{.in_features = in, .out_features = 10});
  return blocks;
}

// Attention that ranks can divide, and mixtures whose router uses all experts equally: each token has all.
Blocks sequences(std::int64_t experts) {
  nn::Gpt2Config c;
  c.vocab_size = kWords, c.n_positions = 32, c.n_embd = 64, c.n_layer = 2, c.n_head = 4, c.n_inner = 128;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  Blocks blocks;
  add(blocks, nn::Embedding::Options{.num_embeddings = kWords, .embedding_dim = c.n_embd});
  for (int i = 0; i < 2; ++i) {
    blocks.push_back({"attention", std::make_shared<nn::Gpt2Block>(c)});
    if (experts > 0)
      add(blocks, nn::MixtureOfExperts::Options{
                      .embed_dim = c.n_embd, .hidden_dim = 64, .num_experts = experts, .top_k = experts});
  }
  add(blocks, nn::LayerNorm::Options{.normalized_shape = {c.n_embd}},
      nn::Linear::Options{.in_features = c.n_embd, .out_features = kWords, .bias = false});
  return blocks;
}

struct Case {
  const char* name;
  Model model;
  TrainingSetup setup;
  bool adamw = false;  // otherwise SGD with momentum
};

std::vector<Case> cases() {
  const auto loss = [](const Tensor& outputs, const Tensor& targets) {
    return cross_entropy(outputs.flatten(0, -2), targets.flatten());
  };
  const auto ids = [](std::int64_t batch, std::int64_t length) {
    return randint(0, kWords, {batch, length});
  };
  const auto setup = [](std::int64_t batch, std::vector<int> split) {
    return setup_of(2, batch, std::move(split));
  };
  return {
      {"grouped queries", {grouped_queries, ids(8, 32), ids(8, 32), loss}, setup(8, {2, 3}), true},
      {"LSTM", {lstms, ids(16, 24), ids(16, 24), loss}, setup(16, {2, 2})},
      {"group norm", {group_norms, randn({16, 3, 16, 16}), randint(0, 10, {16}), loss}, setup(16, {2, 3})},
      {"layer norm, large weights",
       {layer_norms, randn({64, 64}), randint(0, 10, {64}), loss},
       setup(64, {2, 3})},
      {"layer norm, large batch",
       {layer_norms, randn({1022, 64}), randint(0, 10, {1022}), loss},
       setup(1022, {2, 3}),
       true},
  };
}

std::shared_ptr<nn::Sequential> joined(const Blocks& blocks, std::size_t begin, std::size_t end) {
  auto all = std::make_shared<nn::Sequential>();
  for (std::size_t i = begin; i < end; ++i) all->push_back(nn::named(std::to_string(i), blocks[i].module));
  return all;
}

template <template <class> class Wrapper = std::type_identity_t, class... Zero>
std::unique_ptr<optim::Optimizer> optimizer_of(const Case& c, const std::vector<nn::Parameter>& parameters,
                                               const Zero&... zero) {
  if (c.adamw) return std::make_unique<Wrapper<optim::AdamW>>(parameters, zero..., optim::AdamWOptions{});
  return std::make_unique<Wrapper<optim::SGD>>(parameters, zero...,
                                               optim::SGDOptions{.lr = 1e-3, .momentum = 0.9});
}

enum class Late { none, even_ranks, odd_ranks };

// The peak of each device in a step, above what is allocated now. On a machine with other work, a late thread
// may make another one keep memory for it. So the smallest peak of several steps counts, and steps go on
// until the peaks are `enough`. If threads are late on purpose, the largest peak counts.
class Meter {
 public:
  explicit Meter(std::vector<Device> devices) : devices_(std::move(devices)) {
    for (const Device d : devices_) before_.push_back(memory_stats(d).allocated);
  }
  std::vector<double> peaks(const std::function<void()>& step,
                            const std::function<bool(const std::vector<double>& peaks)>& enough,
                            Late late = Late::none) {
    std::vector<double> all(devices_.size(), late == Late::none ? INFINITY : 0);
    for (int i = 0; i < (late == Late::none ? 100 : 8); ++i) {
      for (const Device d : devices_) reset_peak_memory(d);
      step();
      for (std::size_t d = 0; d < devices_.size() && i >= 2; ++d) {
        const auto peak = static_cast<double>(memory_stats(devices_[d]).peak_allocated - before_[d]);
        all[d] = late == Late::none ? std::min(all[d], peak) : std::max(all[d], peak);
      }
      if (i >= 3 && late == Late::none && enough(all)) break;
    }
    return all;
  }

 private:
  std::vector<Device> devices_;
  std::vector<std::int64_t> before_;
};

// The bound of each device's peak. Steps go on while a peak is larger.
using Bounds = std::vector<double>;
bool are_within(const std::vector<double>& peaks, const Bounds& bounds) {
  return std::equal(peaks.begin(), peaks.end(), bounds.begin(), bounds.end(), std::less_equal<>());
}
bool are_within(const std::vector<double>& peaks, double bound, dist::ProcessGroup& world) {
  const Tensor above = full({1}, peaks[0] <= bound ? 0.0 : 1.0, DType::f64);
  world.all_reduce(above, dist::ReduceOp::sum).wait();  // all ranks stop at one step
  return above.item() == 0;
}

std::vector<double> measured_in_one_process(const std::string& mode, const Case& c, const Bounds& bounds) {
  const std::vector<Device> devices = mode == "single" ? std::vector<Device>{kCPU} : devices_of(c.setup);
  Meter meter(devices);
  const auto blocks = c.model.make_blocks();
  const auto model = joined(blocks, 0, blocks.size());
  std::vector<std::shared_ptr<nn::Sequential>> stages;
  std::vector<dist::Stage> placed;
  std::optional<dist::DataParallel<nn::Sequential>> dp;
  std::optional<dist::Pipeline> pipeline;
  if (mode.starts_with("dp-")) {
    dp.emplace(*model, devices,
               dist::DataParallelOptions{.mode = mode == "dp-master" ? dist::DataParallelMode::master
                                                                     : dist::DataParallelMode::replicated});
  } else if (mode != "single") {
    std::size_t begin = 0;
    for (std::size_t s = 0; s < devices.size(); ++s) {
      const std::size_t end = begin + static_cast<std::size_t>(c.setup.split[s]);
      stages.push_back(joined(blocks, std::exchange(begin, end), end));
      stages[s]->to(devices[s]);
      placed.emplace_back(*stages[s], devices[s]);
    }
    if (mode != "model")
      pipeline.emplace(
          placed, dist::PipelineOptions{.schedule = mode == "pipeline-gpipe"  ? dist::Schedule::gpipe
                                                    : mode == "pipeline-1f1b" ? dist::Schedule::one_f_one_b
                                                                              : dist::Schedule::zero_bubble,
                                        .micro_batches = c.setup.micro_batches,
                                        .uneven = true});
  }
  const auto optimizer = optimizer_of(c, model->parameters());
  const Tensor inputs = c.model.inputs.clone();
  const Tensor targets = c.model.targets.clone().to(stages.empty() ? kCPU : devices.back());
  const auto step = [&] {
    optimizer->zero_grad();
    Tensor loss, outputs = inputs;
    if (mode == "dp-replicated")
      loss = dp->loss(std::tie(inputs, targets),
                      [&](const Tensor& x, const Tensor& y) { return c.model.loss((*model)(x), y); });
    else if (mode == "dp-master") loss = c.model.loss(outputs = (*dp)(inputs), targets);
    else if (mode == "single") loss = c.model.loss((*model)(inputs), targets);
    else if (pipeline) pipeline->forward_backward(inputs, targets, c.model.loss);
    else {
      for (std::size_t s = 0; s < stages.size(); ++s) outputs = (*stages[s])(outputs.to(devices[s]));
      loss = c.model.loss(std::exchange(outputs, {}), targets);
    }
    if (loss.defined()) loss.backward();
    optimizer->step();
  };
  return meter.peaks(step, [&](const auto& peaks) { return are_within(peaks, bounds); });
}

// The backward of a block begins when the group has done all earlier calls. So communication takes no time,
// as over the free link of the predictions.
void wait_for_calls_before_backward(nn::Module& block, dist::ProcessGroup& group) {
  block.register_forward_hook(
      [to = &group](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
        outputs[0].register_hook([to](const Tensor&) {
          to->enqueue([] {}).wait();
          return Tensor();
        });
      });
}

// Each rank is a thread of this process, with a device of its own.
std::vector<double> measured_on_ranks(const std::string& mode, const Case& c, const Bounds& bounds) {
  std::vector<double> peaks(static_cast<std::size_t>(c.setup.devices));
  dist::run_local_ranks(c.setup.devices, [&](const std::shared_ptr<dist::ProcessGroup>& world) {
    const auto rank = static_cast<std::size_t>(world->rank());
    const Device device = devices_of(c.setup)[rank];
    const DeviceGuard guard(device);
    world->barrier();
    Meter meter({device});
    world->barrier();
    const auto blocks = c.model.make_blocks();
    const auto model = joined(blocks, 0, blocks.size());
    model->to(device);
    const auto samples = dist::chunk_sizes(c.setup.batch_size, peaks.size());
    const std::int64_t begin =
        std::accumulate(samples.begin(), samples.begin() + world->rank(), std::int64_t{0});
    const auto part = [&](const Tensor& t) { return t.narrow(0, begin, samples[rank]).clone().to(device); };
    const Tensor inputs = part(c.model.inputs), targets = part(c.model.targets);
    std::optional<dist::DistributedDataParallel<nn::Sequential>> ddp;
    std::unique_ptr<optim::Optimizer> optimizer;
    if (mode == "fsdp") {
      for (const Block& b : blocks) {
        dist::fully_shard(*b.module, {.group = world});
        wait_for_calls_before_backward(*b.module, *world);
      }
      dist::fully_shard(*model, {.group = world});
    } else {
      ddp.emplace(*model, dist::DdpOptions{.process_group = world});
    }
    if (mode.starts_with("zero"))
      optimizer = optimizer_of<dist::ZeroRedundancyOptimizer>(
          c, model->parameters(),
          dist::ZeroOptions{.process_group = world, .stage = mode == "zero1" ? 1 : 2});
    else optimizer = optimizer_of(c, model->parameters());
    const auto step = [&] {
      optimizer->zero_grad();
      const Tensor loss = c.model.loss(ddp ? (*ddp)(inputs) : (*model)(inputs), targets);
      loss.backward();
      optimizer->step();
      world->barrier();
    };
    const auto enough = [&](const auto& own) { return are_within(own, bounds.at(rank), *world); };
    peaks[rank] = meter.peaks(step, enough)[0];
  });
  return peaks;
}

// Each rank trains its part of a mesh, as an application does. Late ranks wait before backward.
std::vector<double> measured_on_mesh(const std::string& text, const Case& c, const Bounds& bounds,
                                     Late late = Late::none) {
  std::vector<double> peaks(static_cast<std::size_t>(c.setup.devices));
  dist::run_local_ranks(c.setup.devices, [&](const std::shared_ptr<dist::ProcessGroup>& world) {
    const auto rank = static_cast<std::size_t>(world->rank());
    const Device device = devices_of(c.setup)[rank];
    const DeviceGuard guard(device);
    world->barrier().wait();
    Meter meter({device});
    world->barrier().wait();
    const auto blocks = c.model.make_blocks();
    const auto model = joined(blocks, 0, blocks.size());
    std::vector<std::shared_ptr<nn::Sequential>> stages;
    const bool splits = text.find("pipeline") != std::string::npos;
    const int parts_of_step = splits ? c.setup.micro_batches : 1;
    dist::Strategy strategy(text, {.world = world, .devices = {device}, .parts = parts_of_step});
    dist::ModelParts parts{
        .forward = [&](const std::vector<Tensor>& x) { return std::vector{(*model)(x[0])}; },
        .loss =
            [&](const std::vector<Tensor>& x, const std::vector<Tensor>& y) {
              if (late == (rank % 2 == 0 ? Late::even_ranks : Late::odd_ranks))
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
              return dist::Loss{c.model.loss(x[0], y[0]), static_cast<double>(y[0].numel())};
            },
        .stages =
            [&](const std::vector<Device>& devices) {
              std::vector<dist::Stage> all;
              std::size_t begin = 0;
              for (std::size_t s = 0; s < devices.size(); ++s) {
                const std::size_t end = begin + static_cast<std::size_t>(c.setup.split[s]);
                stages.push_back(joined(blocks, std::exchange(begin, end), end));
                all.emplace_back(*stages.back(), devices[s]);
              }
              return all;
            }};
    for (const Block& b : blocks) parts.units.push_back(b.module.get());
    parts.tensor_plan = c.model.tensor_plan;
    parts.sequence_dim = c.model.sequence_dim;
    strategy.wrap(*model, std::move(parts));
    const auto optimizer =
        c.adamw ? dist::make_optimizer<optim::AdamW>(strategy, model->parameters(), optim::AdamWOptions{})
                : dist::make_optimizer<optim::SGD>(strategy, model->parameters(),
                                                   optim::SGDOptions{.lr = 1e-3, .momentum = 0.9});
    const dist::Samples mine = strategy.share(c.setup.batch_size, {});
    const dist::Mesh& mesh = *strategy.mesh();
    const bool is_first = !mesh.has("pipeline") || mesh["pipeline"].coordinate() == 0;
    const bool is_last =
        !mesh.has("pipeline") || mesh["pipeline"].coordinate() + 1 == mesh["pipeline"].size();
    dist::Batch batch;
    const auto part = [&](const Tensor& t) { return t.narrow(0, mine.first, mine.count).clone().to(device); };
    if (is_first) batch.inputs = {part(c.model.inputs)};
    if (is_last) batch.targets = {part(c.model.targets)};
    const auto step = [&] {
      optimizer->zero_grad();
      strategy.gradients([&](const dist::Part&) { return batch; },
                         static_cast<double>(c.model.targets.numel()));
      optimizer->step();
      world->barrier().wait();
    };
    const auto enough = [&](const auto& own) { return are_within(own, bounds.at(rank), *world); };
    peaks[rank] = meter.peaks(step, enough, late)[0];
  });
  return peaks;
}

Bounds bounds_of(const std::vector<MemoryItems>& predicted, double factor, double flags = 0) {
  Bounds bounds;
  for (const MemoryItems& m : predicted) bounds.push_back(factor * m.total() + flags);
  return bounds;
}

// The layers of grouped queries, divided by heads and features.
dist::TensorPlan plan_of_grouped_queries() {
  using Style = dist::TensorStyle;
  constexpr std::int64_t kHead = GroupedQueries::kHead;
  dist::TensorPlan plan{{{"0.0", Style::vocabulary}, {"4.1", Style::gathered_column}}};
  for (const std::string block : {"1.", "2.", "3."}) {
    for (const char* const name : {"q", "k", "v"}) plan.rules.push_back({block + name, Style::column, kHead});
    for (const char* const name : {"gate", "up"}) plan.rules.push_back({block + name, Style::column});
    for (const char* const name : {"out", "down"}) plan.rules.push_back({block + name, Style::row});
  }
  return plan;
}

}  // namespace

TEST_CASE("predicted peaks of divided layers are at least the allocator's, alone and in meshes") {
  manual_seed(1);
  Case c = cases()[0];
  c.model.make_optimizer = [&c](const std::vector<nn::Parameter>& p) { return optimizer_of(c, p); };
  c.model.tensor_plan = plan_of_grouped_queries();
  const Profile profile = measure_profile(c.model, setup_of(1, c.setup.batch_size),
                                          {.warmup = 0,
                                           .passes = 1,
                                           .simulated_devices = {2, 2 * c.setup.micro_batches},
                                           .layers = {"tensor=2", "tensor=4"}});
  for (const char* const mode : {"tensor=2", "tensor=4", "replicate=2,tensor=2",
                                 "replicate=2:zero=2,tensor=2", "shard=2,tensor=2", "pipeline=2,tensor=2"}) {
    c.setup.devices = plan_of(mode).size;
    const std::vector<MemoryItems> memory = predicted(mode, profile, {}, c.setup).memory;
    const MemoryItems whole = predicted("single", profile, {}, setup_of(1, c.setup.batch_size)).memory[0];
    constexpr double kFlags = 512 + 2672;  // as below
    const std::vector<double> bytes = measured_on_mesh(mode, c, bounds_of(memory, 1, kFlags));
    REQUIRE(memory.size() == bytes.size());
    for (std::size_t d = 0; d < bytes.size(); ++d) {
      CAPTURE(mode, d, memory[d].items(), bytes[d]);
      CHECK(memory[d].total() + kFlags >= bytes[d]);
      CHECK(memory[d].total() <= 1.3 * bytes[d]);
      CHECK(memory[d].parameters < whole.parameters);
    }
  }
}

TEST_CASE("predicted peaks of divided sequences and experts are at least the allocator's") {
  for (const std::int64_t experts : {0, 4}) {
    manual_seed(1);
    Case c = cases()[0];
    c.model.make_blocks = [experts] { return sequences(experts); };
    c.model.sequence_dim = 1;
    c.model.make_optimizer = [&c](const std::vector<nn::Parameter>& p) { return optimizer_of(c, p); };
    const std::vector<std::string> layers =
        experts > 0 ? std::vector<std::string>{"expert=2", "expert=4"}
                    : std::vector<std::string>{"context=2", "context=2:attention=gathered",
                                               "context=2:attention=ring", "context=2,tensor=2"};
    std::vector<std::string> modes = layers;
    if (experts > 0)
      modes.insert(modes.end(), {"replicate=2,expert=2", "replicate=2:zero=1,expert=2",
                                 "replicate=2:zero=2,expert=2", "shard=2,expert=2"});
    else modes.insert(modes.end(), {"replicate=2,context=2", "shard=2,context=2"});
    const Profile profile =
        measure_profile(c.model, setup_of(1, c.setup.batch_size),
                        {.warmup = 0, .passes = 1, .simulated_devices = {2, 4}, .layers = layers});
    for (const std::string& mode : modes) {
      c.setup.devices = plan_of(mode).size;
      const std::vector<MemoryItems> memory = predicted(mode, profile, {}, c.setup).memory;
      // Under ZeRO, experts have flags and aligned buckets of their own.
      const double flags = mode.find("zero") == std::string::npos ? 512 : 1024;
      const std::vector<double> bytes = measured_on_mesh(mode, c, bounds_of(memory, 1, flags));
      REQUIRE(memory.size() == bytes.size());
      for (std::size_t d = 0; d < bytes.size(); ++d) {
        CAPTURE(mode, d, memory[d].items(), memory[d].total(), bytes[d]);
        CHECK(memory[d].total() + flags >= bytes[d]);
        // Beside replicas, the bound assumes that gradients of a block wait for those of the next one.
        CHECK(memory[d].total() <= (mode.starts_with("shard") ? 1.3 : 1.1) * bytes[d]);
      }
    }
  }
}

// The prediction is an upper bound, and at most 10% too high, or 20% for a later stage that postpones the
// gradients of weights. Some peaks depend on timing: how many micro-batches a later stage receives ahead,
// and, beside replicas, whether the gradients of a block are divided before those of the next one arrive.
// Such peaks are measured with late ranks too. The prediction leaves out the flags in buckets, the numbers
// that ranks compare, and the header of a message that a stage is receiving (MessageHeader): some bytes.
TEST_CASE("predicted peaks of meshes are at least the allocator's, and at most 10% above") {
  manual_seed(1);
  for (Case& c : cases()) {
    const std::string name = c.name;
    if (name != "grouped queries" && name != "layer norm, large weights") continue;
    c.model.make_optimizer = [&c](const std::vector<nn::Parameter>& p) { return optimizer_of(c, p); };
    c.setup.devices = 4;
    const Profile profile =
        measure_profile(c.model, setup_of(1, c.setup.batch_size),
                        {.warmup = 0, .passes = 1, .simulated_devices = {2 * c.setup.micro_batches}});
    constexpr double kFlags = 512 + 2672;  // with a header
    for (const char* const mode :
         {"pipeline=2,replicate=2", "pipeline=2:schedule=gpipe,replicate=2",
          "pipeline=2:schedule=zero-bubble,replicate=2", "replicate=2,shard=2", "pipeline=2,shard=2",
          "pipeline=2,replicate=2:zero=1", "pipeline=2,replicate=2:zero=2"}) {
      const std::vector<MemoryItems> memory = predicted(mode, profile, {}, c.setup).memory;
      std::vector<double> bytes = measured_on_mesh(mode, c, bounds_of(memory, 1, kFlags));
      REQUIRE(memory.size() == bytes.size());
      for (std::size_t d = 0; d < bytes.size(); ++d) {
        CAPTURE(c.name, mode, d, memory[d].items(), bytes[d]);
        CHECK(memory[d].total() + kFlags >= bytes[d]);
        const bool postpones =
            2 * d >= bytes.size() && std::string(mode).find("zero-bubble") != std::string::npos;
        const double most = postpones ? 1.2 : 1.1;
        for (int again = 0; again < 8; ++again)
          for (const Late late : {Late::even_ranks, Late::odd_ranks})
            if (memory[d].total() > most * bytes[d])
              bytes[d] = std::max(bytes[d], measured_on_mesh(mode, c, {}, late)[d]);
        CHECK(memory[d].total() <= most * bytes[d]);
      }
    }
  }
}

TEST_CASE("predicted peaks of unknown models are within 2% of the allocator's") {
  manual_seed(1);
  for (Case& c : cases()) {
    c.model.make_optimizer = [&c](const std::vector<nn::Parameter>& p) { return optimizer_of(c, p); };
    const Profile profile = measure_profile(c.model, c.setup, {.warmup = 0, .passes = 1});
    for (const std::string& mode : kModes) {
      const std::vector<MemoryItems> memory = predicted(mode, profile, {}, c.setup).memory;
      const bool on_ranks = mode == "ddp" || mode == "fsdp" || mode.starts_with("zero");
      const Bounds bounds = bounds_of(memory, 1.02);
      const std::vector<double> bytes =
          on_ranks ? measured_on_ranks(mode, c, bounds) : measured_in_one_process(mode, c, bounds);
      REQUIRE(memory.size() == bytes.size());
      for (std::size_t d = 0; d < bytes.size(); ++d) {
        CAPTURE(c.name, mode, d, memory[d].items());
        CHECK(memory[d].total() == Approx(bytes[d]).epsilon(0.02));
      }
    }
  }
}
