// The axis `expert` of strategies, alone and with other axes, against one process and against
// DistributedDataParallel in float64.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/nn/layers/moe.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/mesh_training.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using mesh_training::kSamples, mesh_training::kWidth, mesh_training::kWords, mesh_training::Tensors;

namespace {

struct Setting {
  bool auxiliary = false;   // losses and capacities, which each rank has for its own tokens
  bool bias = false;        // of the routers, which moves by the tokens of all ranks
  bool frozen = false;      // all but the experts
  bool are_unit = false;    // the experts of the first mixture, in place of the mixture
  bool recomputes = false;  // the first mixture, in backward
  bool skips = false;       // the first half of the ranks skip the mixtures in the last part of a step
  std::string optimizer = "adamw";
};

// A language model of one word with two mixtures, in two stages, with tied weights.
struct Net : nn::Module {
  explicit Net(const Setting& s)
      : words(add<nn::Embedding>("words", {.num_embeddings = kWords, .embedding_dim = kWidth})),
        a(add<nn::MixtureOfExperts>("a", options(s, 5))),
        b(add<nn::MixtureOfExperts>("b", options(s, 6))),
        head(add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false})) {
    head.weight = words.weight;
  }
  bool recomputes = false, skips = false;
  static nn::MixtureOfExperts::Options options(const Setting& s, std::int64_t experts) {
    nn::MixtureOfExperts::Options o{
        .embed_dim = kWidth, .hidden_dim = 4, .num_experts = experts, .top_k = 2, .shared_hidden_dim = 3};
    if (s.auxiliary)
      o.capacity_factor = 1.1, o.balance = nn::RouterBalance::auxiliary_loss, o.aux_loss_coef = 0.3;
    if (s.bias) o.balance = nn::RouterBalance::bias, o.bias_update_rate = 0.2;
    return o;
  }
  Tensor first(const Tensor& x) {
    const Tensor h = words(x) * 2;
    if (skips) return h;
    return h + (recomputes ? checkpoint([this](const Tensor& t) { return a(t); }, h) : a(h));
  }
  Tensor second(const Tensor& h) { return head(skips ? h : h + b(h)); }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
  nn::Embedding& words;
  nn::MixtureOfExperts &a, &b;
  nn::Linear& head;
};

std::unique_ptr<Net> make(const Setting& s) {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  manual_seed(5);
  auto net = std::make_unique<Net>(s);
  net->to(DType::f64);
  net->recomputes = s.recomputes;
  if (s.frozen)
    for (const auto& [name, p] : net->named_parameters())
      if (name.find("experts.") == std::string::npos) p.tensor().set_requires_grad(false);
  return net;
}

ModelParts parts_of(Net& net) {
  return {.units = {&net.a, &net.b},
          .forward = [&net](const Tensors& in) { return Tensors{net(in[0])}; },
          .loss = [&net](const Tensors& out, const Tensors& targets) -> Loss {
            const auto count = static_cast<double>(targets[0].numel());
            Tensor value = cross_entropy(out[0], targets[0]);
            if (net.a.options.balance == nn::RouterBalance::auxiliary_loss)
              value = value + net.a.auxiliary_loss() + net.b.auxiliary_loss();
            return {value, count};
          },
          .stages =
              [&net](const std::vector<Device>& devices) {
                std::vector<Stage> stages;
                stages.emplace_back([&net](const Tensor& x) { return net.first(x); }, devices.at(0),
                                    Stage::Modules{net.words, net.a});
                stages.emplace_back([&net](const Tensor& h) { return net.second(h); }, devices.at(1),
                                    Stage::Modules{net.b, net.head});
                return stages;
              },
          .tensor_plan = {{{"words", TensorStyle::vocabulary}, {"head", TensorStyle::gathered_column}}}};
}

struct Outcome {
  std::vector<double> losses, norms;
  double held_out = 0;
  nn::StateDict weights;
};

Outcome train(const std::string& text, const Group& world, const Setting& s, int parts = 2) {
  Outcome outcome;
  Strategy strategy(text, {.world = world, .parts = parts});
  const auto net = make(s);
  ModelParts model_parts = parts_of(*net);
  if (s.are_unit) model_parts.units = {&net->a.experts, &net->b};
  strategy.wrap(*net, model_parts);
  const std::unique_ptr<optim::Optimizer> optimizer =
      s.optimizer == "adamw"
          ? make_optimizer<optim::AdamW>(strategy, net->parameters(), optim::AdamWOptions{.lr = 0.01})
          : make_optimizer<optim::SGD>(strategy, net->parameters(), optim::SGDOptions{.lr = 0.3});
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    const auto read = [&](const Part& part) {
      net->skips = s.skips && part.last && 2 * strategy.data_rank() < strategy.data_size();
      return mesh_training::samples_of(step, strategy.share(kSamples, part));
    };
    const StepLoss loss = strategy.gradients(read, kSamples);
    net->skips = false;
    outcome.losses.push_back(strategy.sum({loss.loss.item()})[0]);
    outcome.norms.push_back(strategy.clip_grad_norm_(0.1).item());
    optimizer->step();
  }
  const auto result = strategy.evaluate(
      1, [&](std::int64_t) { return mesh_training::samples_of(7, strategy.share(kSamples, {})); }, {}, {});
  outcome.held_out = result->mean();
  outcome.weights = strategy.whole_state();
  return outcome;
}

void check_equal(const Outcome& one, const std::string& text, int ranks, const Setting& s, int parts = 2) {
  INFO(text);
  const auto all = on_ranks<Outcome>(ranks, [&](const Group& world) { return train(text, world, s, parts); });
  for (const Outcome& o : all) {
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(std::abs(o.losses[i] - one.losses[i]) < 1e-12);
      CHECK(std::abs(o.norms[i] - one.norms[i]) < 1e-12);
    }
    CHECK(std::abs(o.held_out - one.held_out) < 1e-12);
  }
  CHECK(mesh_training::distance(all[0].weights, one.weights) < 1e-10);
}

}  // namespace

TEST_CASE("ranks that divide experts train as one process does, alone and with other axes") {
  // A factor of all gradients changes weights under SGD, and not under AdamW, whose state is divided too.
  const Setting sgd{.optimizer = "sgd"}, adamw;
  const Outcome with_sgd = train("single", nullptr, sgd), with_adamw = train("single", nullptr, adamw);
  const struct {
    const char* text;
    int ranks;
    bool sanitized = false;  // runs in builds with a sanitizer too; the test of biases has other axes
  } cases[] = {
      {"expert=2", 2},
      {"expert=3", 3, true},
      {"replicate=2,expert=2", 4},
      {"replicate=2:zero=1,expert=2", 4},
      {"replicate=2:zero=2,expert=2", 4, true},
      {"shard=2,expert=2", 4},
      {"shard=2:gather=step,expert=2", 4, true},
      {"shard=2:reduce=part,expert=2", 4},
      {"replicate=2,shard=2,expert=2", 8},
      {"replicate=2,shard=2:reduce=part,expert=2", 8, true},
      {"expert=2,tensor=2", 4, true},
      {"shard=2,expert=2,tensor=2", 8},
      {"replicate=2:zero=1,expert=2,tensor=2", 8},
      {"replicate=2:zero=2,expert=2,tensor=2", 8},
      {"pipeline=2,expert=2", 4},
      {"pipeline=2:schedule=zero-bubble,replicate=2:zero=2,expert=2", 8},
      {"pipeline=2,shard=2,expert=2", 8},
  };
  for (const auto& c : cases) {
    if (kSanitized && !c.sanitized) continue;
    if (c.ranks <= 4 && std::string(c.text).find("zero") == std::string::npos)
      check_equal(with_sgd, c.text, c.ranks, sgd);
    else check_equal(with_adamw, c.text, c.ranks, adamw);
  }
}

TEST_CASE("losses and capacities of each rank's tokens are those of DistributedDataParallel") {
  const Setting s{.auxiliary = true, .optimizer = "sgd"};
  const auto copies =
      on_ranks<Outcome>(4, [&](const Group& world) { return train("replicate=4", world, s, 1); });
  for (const char* const text : {"replicate=2,expert=2", "shard=2,expert=2"})
    check_equal(copies[0], text, 4, s, 1);
}

TEST_CASE("frozen parameters and units of experts train as in one process") {
  for (const Setting& s : {Setting{.frozen = true}, Setting{.are_unit = true}}) {
    INFO("unit " << s.are_unit);
    const Outcome one = train("single", nullptr, s);
    for (const char* const text : {"expert=2", "replicate=2:zero=2,expert=2", "shard=2,expert=2"})
      if (!kSanitized || text[0] == (s.frozen ? 'r' : 's')) check_equal(one, text, text[0] == 'e' ? 2 : 4, s);
  }
}

TEST_CASE("biases of routers move once a step by the tokens of all ranks and parts") {
  const Setting s{.bias = true}, again{.bias = true, .recomputes = true};
  // One process moves the biases by hand, as Megatron does: once in each step, before the optimizer's step.
  Outcome by_hand;
  const auto net = make(s);
  optim::AdamW optimizer(net->parameters(), optim::AdamWOptions{.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Batch batch = mesh_training::samples_of(step, {0, kSamples});
    const Tensor loss = cross_entropy((*net)(batch.inputs[0]), batch.targets[0]);
    loss.backward();
    by_hand.losses.push_back(loss.item());
    by_hand.norms.push_back(nn::clip_grad_norm_(net->parameters(), 0.1).item());
    for (nn::MixtureOfExperts* const m : {&net->a, &net->b}) m->update_router_bias();
    optimizer.step();
  }
  net->eval();
  const Batch held_out = mesh_training::samples_of(7, {0, kSamples});
  by_hand.held_out = cross_entropy((*net)(held_out.inputs[0]), held_out.targets[0]).item();
  for (const auto& [name, slot] : net->named_state()) by_hand.weights.emplace_back(name, slot.tensor());
  REQUIRE(net->a.gate.expert_bias->abs().max().item() > 0.1);

  const Outcome alone = train("single", nullptr, s, 3);
  CHECK(mesh_training::distance(alone.weights, by_hand.weights) < 1e-10);
  check_equal(by_hand, "replicate=2:zero=1,expert=2", 4, again);
  check_equal(by_hand, "shard=2,expert=2", 4, s, 3);
  check_equal(by_hand, "pipeline=2,expert=2", 4, again, 3);
  if (kSanitized) return;
  check_equal(by_hand, "replicate=2", 2, again);
  check_equal(by_hand, "expert=2", 2, s);
  check_equal(by_hand, "expert=2,tensor=2", 4, s);
  check_equal(by_hand, "pipeline=2,tensor=2", 4, s);
}

TEST_CASE("a parameter of mixtures with a bias in several stages is an error on all stages") {
  on_ranks<int>(3, [&](const Group& world) {
    const auto net = make({.bias = true});
    net->b.shared_expert->down_proj.weight = net->a.shared_expert->down_proj.weight;
    ModelParts parts = parts_of(*net);
    parts.stages = [&](const std::vector<Device>& devices) {  // the first one has no mixture
      std::vector<Stage> stages;
      stages.emplace_back([&](const Tensor& x) { return net->words(x) * 2; }, devices.at(0),
                          Stage::Modules{net->words});
      stages.emplace_back([&](const Tensor& h) { return h + net->a(h); }, devices.at(1),
                          Stage::Modules{net->a});
      stages.emplace_back([&](const Tensor& h) { return net->second(h); }, devices.at(2),
                          Stage::Modules{net->b, net->head});
      return stages;
    };
    Strategy strategy("pipeline=3", {.world = world});
    std::string error;
    try {
      strategy.wrap(*net, parts);
    } catch (const ValueError& e) {
      error = e.what();
    }
    require(error.find("MixtureOfExperts a has parameters that several stages") != std::string::npos, error);
    return 0;
  });
}

TEST_CASE("ranks that skip their mixtures in the last part of a step add the gradients of earlier ones") {
  // On ranks that skip the experts, backward never reaches them. On the others, it reaches them before other
  // parameters.
  const Setting s{.skips = true};
  const auto copies =
      on_ranks<Outcome>(4, [&](const Group& world) { return train("replicate=4", world, s); });
  for (const char* const text : {"replicate=2,expert=2", "replicate=2:zero=2,expert=2"})
    check_equal(copies[0], text, 4, s);
}

TEST_CASE("checkpoints of divided experts are whole, and load on other meshes") {
  const tests::TempDir dir;
  const auto resumed = [&](const std::string& text, const Group& world, bool saves) {
    Strategy strategy(text, {.world = world});
    const auto net = make({});
    strategy.wrap(*net, parts_of(*net));
    const auto optimizer =
        make_optimizer<optim::AdamW>(strategy, net->parameters(), optim::AdamWOptions{.lr = 0.01});
    const auto step = [&](int number) {
      optimizer->zero_grad();
      const auto read = [&](const Part& part) {
        return mesh_training::samples_of(number, strategy.share(kSamples, part));
      };
      const double loss = strategy.gradients(read, kSamples).loss.item();
      optimizer->step();
      return strategy.sum({loss})[0];
    };
    if (saves) {
      step(0);
      save_sharded(dir / "experts", world, {net.get(), optimizer.get()}, {.step = 1});
    } else {
      load_sharded(dir / "experts", {net.get(), optimizer.get()}, {.rank = world ? world->rank() : 0});
    }
    step(1);
    return step(2);
  };
  const auto on = [&](const char* text, int ranks, bool saves) {
    return on_ranks<double>(ranks, [&](const Group& world) { return resumed(text, world, saves); })[0];
  };
  const double expected = on("replicate=2,expert=2", 4, true);
  for (const char* const text :
       {"shard=2,expert=2", "shard=4", "replicate=2,expert=2", "replicate=2:zero=1,expert=2"})
    if (!kSanitized || text[6] == '4') CHECK(std::abs(on(text, 4, false) - expected) < 1e-12);
  CHECK(std::abs(on("expert=3", 3, false) - expected) < 1e-12);
  CHECK(std::abs(resumed("single", nullptr, false) - expected) < 1e-12);
  for (const char* const text :
       {"shard=2,expert=2", "replicate=2:zero=1,expert=2", "replicate=2:zero=2,expert=2"}) {
    if (kSanitized && text[0] == 'r') continue;
    INFO(text);
    CHECK(std::abs(on(text, 4, true) - expected) < 1e-12);
    CHECK(std::abs(resumed("single", nullptr, false) - expected) < 1e-12);
    CHECK(std::abs(on("replicate=2:zero=2,expert=2", 4, false) - expected) < 1e-12);
    if (!kSanitized) CHECK(std::abs(on("expert=3", 3, false) - expected) < 1e-12);
  }
}

TEST_CASE("a strategy with experts says what it cannot do and what it sends") {
  on_ranks<int>(4, [&](const Group& world) {
    const auto error_of = [&](const char* text, nn::Module& module) -> std::string {
      try {
        Strategy strategy(text, {.world = world});
        ModelParts parts;
        parts.forward_loss = [](const Tensors& in, const Tensors&) -> Loss { return {in[0].sum(), 1}; };
        strategy.wrap(module, parts);
      } catch (const ValueError& e) {
        return e.what();
      }
      return {};
    };
    const auto net = make({});
    nn::Linear linear({.in_features = 2, .out_features = 2});
    std::string error = error_of("replicate=2,expert=2", linear);
    require(error.find("has no MixtureOfExperts") != std::string::npos, error);

    Strategy strategy("replicate=2,expert=2", {.world = world});
    strategy.wrap(*net, parts_of(*net));
    strategy.gradients(
        [&](const Part& part) { return mesh_training::samples_of(0, strategy.share(kSamples, part)); },
        kSamples);
    std::vector<std::string> axes;
    for (const AxisReport& r : strategy.report()) {
      axes.push_back(r.axis);
      require(r.bytes_sent > 0, r.axis, " sends nothing");
    }
    require(axes == std::vector<std::string>{"expert", "replicate_expert", "replicate"},
            "axes of the report");
    // Experts are all-reduced between the two ranks that have the same ones, and other parameters in a ring
    // of all ranks.
    for (const Transfer& t : strategy.transfers()) {
      if (t.axis == "replicate") require(std::abs(t.from - t.to) == 2, "copies of experts");
      if (t.axis == "replicate_expert") require((t.from + 1) % 4 == t.to, "copies of others");
      if (t.axis == "expert") require(t.from / 2 == t.to / 2, "tokens");
    }

    // ZeRO divides the state of the experts among the ranks that have the same ones.
    Strategy divided("replicate=2:zero=1,expert=2", {.world = world});
    const auto other = make({});
    divided.wrap(*other, parts_of(*other));
    const auto of_other = make_optimizer<optim::AdamW>(divided, other->parameters(), {.lr = 0.01});
    divided.gradients(
        [&](const Part& part) { return mesh_training::samples_of(0, divided.share(kSamples, part)); },
        kSamples);
    of_other->step();
    const auto& zero = dynamic_cast<const ZeroRedundancyOptimizer<optim::AdamW>&>(*of_other);
    const std::vector<std::int64_t> elements = zero.local_elements();
    std::vector<double> sums(3);  // updated experts, updated others, experts of this rank
    std::int64_t all_experts = 0, all_others = 0;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const nn::Parameter p = of_other->parameters()[i];
      const bool is_expert = p.dim() == 3;
      sums[is_expert ? 0 : 1] += static_cast<double>(elements[i]);
      (is_expert ? all_experts : all_others) += p.numel();
    }
    sums[2] = static_cast<double>(all_experts);
    require(sums[0] < sums[2] && sums[1] < static_cast<double>(all_others) / 2, "a part of them");
    sums = divided.sum(sums);
    require(2 * sums[0] == sums[2], "the two ranks with the same experts divide their state");
    require(sums[1] == static_cast<double>(all_others), "and all four that of the others");
    std::int64_t updates = 0;
    for (const Transfer& t : divided.transfers())
      if (std::string_view(t.phase) == "update") updates += t.bytes;
    require(updates == 6 * all_others + 4 * all_experts, "bytes of the updated parameters");
    dynamic_cast<ZeroBase&>(*of_other).consolidate_state_dict(0);
    if (world->rank() == 0) {
      std::string refused;
      try {
        of_other->state_dict();
      } catch (const ValueError& e) {
        refused = e.what();
      }
      require(refused.find("is divided among ranks, and so is its state") != std::string::npos, refused);
    }

    // The first rank's buffers are those of all in each step, also if only experts train.
    const auto frozen = make({.bias = true, .frozen = true});
    Strategy experts("replicate=2,expert=2", {.world = world});
    experts.wrap(*frozen, parts_of(*frozen));
    frozen->a.gate.expert_bias->fill_(world->rank());
    experts.gradients(
        [&](const Part& part) { return mesh_training::samples_of(0, experts.share(kSamples, part)); },
        kSamples);
    // The step begins at the first rank's 0 and moves the bias by less than 0.4.
    require(frozen->a.gate.expert_bias->abs().max().item() < 0.5, "a buffer of the first rank");
    return 0;
  });
}
