// The axis `tensor` of strategies, alone and with other axes, against one process in float64.
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/mesh_training.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using namespace tapestry::mesh_training;
using Style = TensorStyle;

namespace {

// 11 words and 9 features do not divide.
const TensorPlan kPlan{{{"words", Style::vocabulary},
                        {"a", Style::column},
                        {"b", Style::row},
                        {"norm", Style::residual},
                        {"head", Style::gathered_column}}};

struct Outcome {
  std::vector<double> losses, norms;
  double held_out = 0, seen = 0;
  nn::StateDict weights;
};

Outcome train(const std::string& text, const Group& world, int parts) {
  Outcome outcome;
  Strategy strategy(text, {.world = world, .parts = parts});
  const auto net = make_net();
  ModelParts model = parts_of(*net);
  model.tensor_plan = kPlan;
  strategy.wrap(*net, model);
  const auto optimizer =
      make_optimizer<optim::AdamW>(strategy, net->parameters(), optim::AdamWOptions{.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    const auto read = [&](const Part& part) { return samples_of(step, strategy.share(kSamples, part)); };
    const StepLoss loss = strategy.gradients(read, kSamples);
    outcome.losses.push_back(strategy.sum({loss.loss.item()})[0]);
    outcome.norms.push_back(strategy.clip_grad_norm_(0.1).item());
    optimizer->step();
  }
  const auto result = strategy.evaluate(
      1, [&](std::int64_t) { return samples_of(7, strategy.share(kSamples, {})); }, {},
      [&](const Tensors&, const Batch& batch) {
        outcome.seen += static_cast<double>(batch.targets[0].numel());
      });
  outcome.held_out = result->mean();
  outcome.seen = strategy.sum({outcome.seen})[0];
  outcome.weights = strategy.whole_state();
  return outcome;
}

}  // namespace

TEST_CASE("tensor ranks train as one process does, alone and with other axes") {
  const Outcome one = train("single", nullptr, 2);
  const struct {
    const char* text;
    int ranks;
    bool sanitized = false;  // runs in builds with a sanitizer too
  } cases[] = {
      {"tensor=2", 2},
      {"tensor=3", 3, true},
      {"shard=2,tensor=2", 4, true},
      {"replicate=2,tensor=2", 4},
      {"replicate=2:zero=1,tensor=2", 4},
      {"replicate=2:zero=2,tensor=2", 4, true},
      {"pipeline=2,tensor=2", 4, true},
      {"replicate=2,shard=2,tensor=2", 8},
      {"pipeline=2,shard=2,tensor=2", 8},
  };
  for (const auto& c : cases) {
    if (kSanitized && !c.sanitized) continue;
    INFO(c.text);
    const auto all = on_ranks<Outcome>(c.ranks, [&](const Group& world) { return train(c.text, world, 2); });
    for (const Outcome& o : all) {
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        CHECK(std::abs(o.losses[i] - one.losses[i]) < 1e-12);
        CHECK(std::abs(o.norms[i] - one.norms[i]) < 1e-12);
      }
      CHECK(std::abs(o.held_out - one.held_out) < 1e-12);
      CHECK(o.seen == kSamples);
    }
    CHECK(mesh_training::distance(all[0].weights, one.weights) < 1e-10);
  }
}

TEST_CASE("state that ZeRO divides beside a tensor axis is saved whole, and loads on other meshes") {
  const tests::TempDir dir;
  const auto resumed = [&](const std::string& text, const Group& world, bool saves) {
    Strategy strategy(text, {.world = world});
    const auto net = make_net();
    ModelParts model = parts_of(*net);
    model.tensor_plan = kPlan;
    strategy.wrap(*net, model);
    const auto optimizer =
        make_optimizer<optim::AdamW>(strategy, net->parameters(), optim::AdamWOptions{.lr = 0.01});
    const auto step = [&](int number) {
      optimizer->zero_grad();
      const auto read = [&](const Part& part) { return samples_of(number, strategy.share(kSamples, part)); };
      const double loss = strategy.gradients(read, kSamples).loss.item();
      optimizer->step();
      return strategy.sum({loss})[0];
    };
    if (saves) {
      step(0);
      save_sharded(dir / "zero", world, {net.get(), optimizer.get()}, {.step = 1});
    } else {
      load_sharded(dir / "zero", {net.get(), optimizer.get()}, {.rank = world ? world->rank() : 0});
    }
    step(1);
    return step(2);
  };
  const auto on = [&](const char* text, bool saves) {
    return on_ranks<double>(4, [&](const Group& world) { return resumed(text, world, saves); })[0];
  };
  const double expected = on("replicate=2:zero=1,tensor=2", true);
  for (const char* const text :
       {"replicate=2:zero=1,tensor=2", "replicate=2:zero=2,tensor=2", "shard=2,tensor=2"})
    if (!kSanitized || text[0] == 's') CHECK(std::abs(on(text, false) - expected) < 1e-12);
  CHECK(std::abs(resumed("single", nullptr, false) - expected) < 1e-12);
}

TEST_CASE("ZeRO over ranks that have different parts of a parameter is an error on all of them") {
  on_ranks<int>(4, [&](const Group& world) {
    Mesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
    nn::Linear layer({.in_features = 3, .out_features = 4});  // parts of equal shapes
    tensor_parallel(layer, mesh["tensor"], {{{"", Style::gathered_column}}});
    const auto error_on = [&](const Group& group) {
      try {
        ZeroRedundancyOptimizer<optim::AdamW> optimizer(layer.parameters(), {.process_group = group});
      } catch (const ValueError& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const std::string error = error_on(world);
    require(error.find("has [0:2, 0:3] of [4, 3]") != std::string::npos, error);
    require(error_on(mesh["replicate"].group()).empty(), "ranks with equal parts");
    return 0;
  });
}

TEST_CASE("a rank beside a tensor axis may restore a parameter, and may not change it alone") {
  for (const bool static_graph : {false, true})
    on_ranks<int>(4, [&](const Group& world) {
      Mesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
      nn::Linear layer({.in_features = 3, .out_features = 4});
      tensor_parallel(layer, mesh["tensor"], {{{"", Style::gathered_column}}});
      DistributedDataParallel<nn::Linear> ddp(
          layer,
          {.process_group = mesh["replicate"].group(), .static_graph = static_graph, .check_every = 1});
      const auto error_after = [&](double factor) {
        if (world->rank() == 0) layer.weight->detach().mul_(factor);
        try {
          ddp(ones({2, 3})).sum().backward();
        } catch (const Error& e) {
          return std::string(e.what());
        }
        return std::string();
      };
      require(error_after(1).empty() && error_after(1).empty(), "equal values");
      const std::string error = error_after(2);
      const bool has_part_of_rank_0 = mesh["tensor"].coordinate() == 0;
      require((error.find("the ranks train different weights") != std::string::npos) == has_part_of_rank_0,
              "rank ", world->rank(), ": ", error);
      return 0;
    });
}

TEST_CASE("a stage sends its part of a divided sequence, and the next one knows how it is placed") {
  // A Llama of one block in each of two stages. Two ranks cannot divide 5 tokens equally.
  const nn::LlamaConfig config{.vocab_size = 9,
                               .hidden_size = 4,
                               .intermediate_size = 6,
                               .num_hidden_layers = 2,
                               .num_attention_heads = 2,
                               .num_key_value_heads = 2,
                               .head_dim = 2,
                               .max_position_embeddings = 8};
  constexpr std::int64_t kRows = 2, kLength = 5;
  const auto sent = [&](const Group& world, bool sequence, bool faulty) -> std::int64_t {
    Strategy strategy(concat({"pipeline=2,tensor=2:sequence=", sequence}), {.world = world, .parts = 2});
    nn::Llama net(config);
    nn::LlamaModel& model = net.model;
    const Axis tensor = (*strategy.mesh())["tensor"];
    const auto block = [&](std::int64_t i, const Tensor& x) {
      return model.layers.get<nn::LlamaDecoderLayer>(i)(x, nn::LlamaBlockContext());
    };
    ModelParts parts;
    parts.loss = [&](const Tensors& out, const Tensors& targets) -> Loss {
      return {cross_entropy(out[0].flatten(0, 1), targets[0].flatten()), double(targets[0].numel())};
    };
    parts.forward = [&](const Tensors& in) -> Tensors { return {net(in[0])}; };
    parts.stages = [&](const std::vector<Device>& devices) {
      std::vector<Stage> stages;
      stages.emplace_back([&](const Tensor& ids) { return block(0, model.embed_tokens(ids)); }, devices[0],
                          Stage::Modules{model.embed_tokens, *model.layers.children()[0]});
      stages.emplace_back(
          [&](const Tensor& x) {
            require(placement_of(x, tensor) == (sequence ? Placement::sharded(1) : Placement::invariant()),
                    "the placement of what arrived");
            if (faulty) return net.head(model.norm(block(1, x * x.mean({1}, true))));
            return net.head(model.norm(block(1, x)));
          },
          devices[1], Stage::Modules{*model.layers.children()[1], model.norm, *net.lm_head});
      return stages;
    };
    strategy.wrap(net, parts);
    const Tensor ids = arange(kRows * kLength).reshape({kRows, kLength}).remainder(9);
    strategy.gradients(
        [&](const Part& part) {
          const Samples s = strategy.share(kRows, part);
          return Batch{{ids.narrow(0, s.first, s.count)}, {ids.narrow(0, s.first, s.count)}};
        },
        static_cast<double>(kRows * kLength));
    std::int64_t bytes = 0;
    for (const AxisReport& r : strategy.report())
      if (r.axis == "pipeline") bytes = r.bytes_sent;
    return bytes;
  };
  for (const bool sequence : {false, true}) {
    const auto bytes =
        on_ranks<std::int64_t>(4, [&](const Group& world) { return sent(world, sequence, false); });
    // The first of two ranks has 3 of 5 tokens. Rank 0 and 1 are the first stage.
    const std::int64_t token = kRows * config.hidden_size * 4;
    CHECK(bytes[0] == token * (sequence ? 3 : kLength));
    CHECK(bytes[1] == token * (sequence ? 2 : kLength));
  }
  CHECK_THROWS_WITH(on_ranks<std::int64_t>(4, [&](const Group& world) { return sent(world, true, true); }),
                    Catch::Matchers::Contains("the mean over its part is not a part of the whole mean"));
}

TEST_CASE("a strategy's tensor axis needs a plan, and has one for a Llama") {
  on_ranks<int>(2, [&](const Group& world) {
    Strategy strategy("tensor=2", {.world = world});
    const auto net = make_net();
    std::string error;
    try {
      strategy.wrap(*net, parts_of(*net));
    } catch (const ValueError& e) {
      error = e.what();
    }
    require(error.find("no ready plan") != std::string::npos, error);
    error.clear();
    try {
      const Strategy cut("tensor=2:chunks=4", {.world = world});
    } catch (const ValueError& e) {
      error = e.what();
    }
    require(error.find("[strategy] tensor=2:chunks=4: chunks are parts of a sequence") != std::string::npos &&
                error.find("write sequence=1 beside chunks") != std::string::npos,
            error);
    require(strategy.data_size() == 1 && strategy.calls_are_collective() && strategy.can_call_model(),
            "facts");
    return 0;
  });
}
