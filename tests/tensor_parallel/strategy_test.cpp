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
  // What a stage gets from another rank has no placement.
  const PlacementCheck checks(text.find("pipeline") == std::string::npos);
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
  } cases[] = {
      {"tensor=2", 2},
      {"tensor=3", 3},
      {"shard=2,tensor=2", 4},
      {"replicate=2,tensor=2", 4},
      {"replicate=2:zero=1,tensor=2", 4},
      {"replicate=2:zero=2,tensor=2", 4},
      {"pipeline=2,tensor=2", 4},
      {"replicate=2,shard=2,tensor=2", 8},
      {"pipeline=2,shard=2,tensor=2", 8},
  };
  for (const auto& c : cases) {
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
    CHECK(std::abs(on(text, false) - expected) < 1e-12);
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

TEST_CASE("stages of a pipeline do not divide the sequence") {
  CHECK_THROWS_WITH(plan_strategy("pipeline=2,tensor=2:sequence=1", true),
                    Catch::Matchers::Contains("pipeline and tensor:sequence cannot be combined"));
  CHECK_NOTHROW(plan_strategy("pipeline=2,tensor=2:sequence=0", true));
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
    require(strategy.data_size() == 1 && strategy.calls_are_collective() && strategy.can_call_model(),
            "facts");
    return 0;
  });
}
