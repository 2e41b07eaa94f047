// A pipeline over ranks whose stages are replicated, divided by ZeRO, or sharded trains as one process does.
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tests/pipeline/strategy_job.h"
#include "tests/support/files.h"

using namespace strategy_job;
using distributed_test::on_ranks, distributed_test::require;

namespace {

struct Mode {
  const char* text;
  bool tied = true;
};

// Two ranks for each of three stages.
constexpr Mode kModes[] = {{"pipeline=3,replicate=2"},
                           {"pipeline=3:schedule=zero-bubble,replicate=2:zero=1"},
                           {"pipeline=3:schedule=gpipe,replicate=2:zero=2"},
                           {"pipeline=3,replicate=2:zero=2", false},
                           {"pipeline=3,shard=2"},
                           {"pipeline=3:schedule=gpipe,shard=2:gather=part"},
                           {"pipeline=3:schedule=zero-bubble,shard=2"}};

// The elements that the optimizer's state of each rank has, if the ranks of a stage divide them evenly.
std::int64_t elements_of(const nn::Module& net) {
  std::int64_t sum = 0;
  for (const nn::Parameter& p : net.parameters()) sum += p->numel();
  return sum;
}

}  // namespace

TEST_CASE("stages that are replicated or sharded train a model, built on meta, as one process does") {
  for (const auto& [text, tied] : kModes)
    for (const bool freezes : {false, true}) {
      CAPTURE(text, freezes);
      const Options options{.tied = tied,
                            .freezes = freezes,
                            .recomputes = freezes,
                            .adds = 3,
                            .detaches = freezes ? 3 : 2};
      Options of_one = options;
      of_one.readers = 2;
      Job one("none", nullptr, of_one);
      const double before = one.evaluated();
      one.train(0, 5);
      const double after = one.evaluated();
      struct Seen {
        std::vector<double> losses, norms, scales;
        nn::StateDict whole;
        double before = 0, after = 0;
        std::int64_t elements = 0, sent = 0;
      };
      const auto ranks = on_ranks<Seen>(6, [&, text = text](const Group& world) {
        Job job(text, world, options);
        Seen seen;
        seen.before = job.evaluated();
        job.train(0, 5);
        require(job.strategy.report().size() >= 2, "two axes");
        seen.sent = job.strategy.report()[1].bytes_sent;
        seen.after = job.evaluated();
        seen.losses = job.losses, seen.norms = job.norms, seen.scales = job.scales;
        seen.whole = job.strategy.whole_state();
        seen.elements = elements_of(*job.net);
        require(!job.strategy.can_call_model(), "a stage is not the model");
        return seen;
      });
      std::int64_t elements = 0;
      for (const Seen& seen : ranks) {
        for (std::size_t i = 0; i < 5; ++i) {
          CHECK(seen.losses[i] == Approx(one.losses[i]).epsilon(kClose));
          CHECK((std::isinf(one.norms[i]) ? std::isinf(seen.norms[i])
                                          : seen.norms[i] == Approx(one.norms[i]).epsilon(kClose)));
        }
        CHECK(seen.scales == one.scales);
        CHECK(seen.before == Approx(before).epsilon(kClose));
        CHECK(seen.after == Approx(after).epsilon(kClose));
        elements += seen.elements;
      }
      CHECK(distance(ranks[0].whole, one.net->state_dict()) < kClose);
      // Over all ranks: shards store each element once, and a tied weight once in each of its two stages. Two
      // replicas store each of these twice.
      const std::int64_t all = elements_of(*one.net) + (tied ? kWords * 4 : 0);
      CHECK(elements == (std::string_view(text).find("shard") == std::string_view::npos ? 2 * all : all));
      // A step gathers the parameters of a stage once and reduces their gradients once: half of the bytes
      // each.
      constexpr std::int64_t kOfStage[] = {4 * 28, 4 * (24 + 12), 4 * (28 + 28)};
      for (std::size_t r = 0; r < 6 && std::string_view(text) == "pipeline=3,shard=2" && !freezes; ++r)
        CHECK(ranks[r].sent == kOfStage[r / 2]);
    }
}

TEST_CASE("checkpoints of replicated and sharded stages resume bit for bit, and load into one process") {
  for (const auto& [text, tied] : kModes) {
    CAPTURE(text);
    const tests::TempDir dir;
    const Options options{.tied = tied};
    const auto save = [&](Job& job, const Group& world, int step) {
      save_sharded(dir / std::to_string(step), world, job.training(), {.step = step});
    };
    const auto load = [&](Job& job, const Group& world, int step) {
      require(load_checkpoint(dir / std::to_string(step), world, job.training()).step == step, "the step");
    };
    const auto whole = on_ranks<nn::StateDict>(6, [&, text = text](const Group& world) {
      Job first(text, world, options);
      first.train(0, 4);
      save(first, world, 4);
      first.train(4, 6);
      Job second(text, world, options);
      load(second, world, 4);
      second.train(4, 5);
      save(second, world, 5);
      second.train(5, 6);
      const nn::StateDict expected = first.strategy.whole_state(), resumed = second.strategy.whole_state();
      for (std::size_t i = 0; i < expected.size(); ++i)
        require(expected[i].second.equal(resumed[i].second), expected[i].first, " differs");
      return expected;
    });
    Job one("none", nullptr, {.tied = tied, .readers = 2});
    load(one, nullptr, 5);
    one.train(5, 6);
    CHECK(distance(one.net->state_dict(), whole[0]) < kClose);
    save(one, nullptr, 6);
    const auto back = on_ranks<nn::StateDict>(6, [&, text = text](const Group& world) {
      Job job(text, world, options);
      load(job, world, 6);
      return job.strategy.whole_state();
    });
    CHECK(distance(back[0], one.net->state_dict()) == 0);
  }
}

TEST_CASE("replicas of a stage that differ are found") {
  for (const std::string& error : on_ranks<std::string>(6, [](const Group& world) -> std::string {
         try {
           Job job("pipeline=3,replicate=2", world);
           job.train(0, 1);
           // Rank 3 is the second replica of the second stage.
           if (world->rank() == 3) job.net->fc1.weight.tensor().detach().mul_(2);
           job.train(2, 4);
         } catch (const std::exception& e) {
           return e.what();
         }
         return "";
       }))
    CHECK_THAT(error, ContainsSubstring("fc1.weight"));
}

TEST_CASE("each replica of each stage draws random numbers of its own") {
  const auto drawn = on_ranks<std::vector<double>>(4, [](const Group& world) {
    Strategy strategy("pipeline=2,replicate=2", {.world = world});
    nn::Module net;
    nn::Linear& in = net.add<nn::Linear>("in", {.in_features = 32, .out_features = 32});
    nn::Linear& out = net.add<nn::Linear>("out", {.in_features = 32, .out_features = 32});
    std::vector<double> mask;
    const auto stage = [&mask](nn::Linear& layer) {
      return [&](const Tensor& x) {
        mask = dropout(ones({32}), 0.5, true).to(DType::f64).to_vector<double>();
        return layer(x);
      };
    };
    strategy.wrap(net, {.forward = [](const Tensors& x) { return x; },
                        .loss = [](const Tensors& x, const Tensors&) -> Loss {
                          return {x[0].mean(), static_cast<double>(x[0].size(0))};
                        },
                        .stages =
                            [&](const std::vector<Device>& on) {
                              return std::vector<Stage>{{stage(in), on.at(0), {in}},
                                                        {stage(out), on.at(1), {out}}};
                            }});
    // The ranks are threads, which share the default generators.
    Generator generator(coordinate_seed(*strategy.mesh(), 7, world->rank()));
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    strategy.gradients([](const Part&) { return Batch{{ones({1, 32})}, {ones({1})}}; }, 2);
    return mask;
  });
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < a; ++b) CHECK(drawn[a] != drawn[b]);
}

TEST_CASE("a rank that fails in a step of several axes is named on all others") {
  for (const char* text : {"pipeline=2,replicate=2", "pipeline=2:schedule=gpipe,shard=2"})
    for (const int fails : {0, 3}) {
      CAPTURE(text, fails);
      const auto errors = on_ranks<std::string>(4, [&](const Group& world) -> std::string {
        Strategy strategy(text, {.world = world, .parts = 2});
        nn::Module net;
        nn::Linear& in = net.add<nn::Linear>("in", {.in_features = 3, .out_features = 4});
        nn::Linear& out = net.add<nn::Linear>("out", {.in_features = 4, .out_features = 2});
        int calls = 0;
        const auto stage = [&](nn::Linear& layer) {
          return [&](const Tensor& x) {
            check(world->rank() != fails || ++calls < 4, "the cat pulled the plug");
            return layer(x);
          };
        };
        strategy.wrap(net, {.forward = [](const Tensors& x) { return x; },
                            .loss = [](const Tensors& x, const Tensors&) -> Loss {
                              return {x[0].mean(), static_cast<double>(x[0].size(0))};
                            },
                            .stages =
                                [&](const std::vector<Device>& on) {
                                  return std::vector<Stage>{{stage(in), on.at(0), {in}},
                                                            {stage(out), on.at(1), {out}}};
                                }});
        try {
          for (int step = 0; step < 4; ++step)
            strategy.gradients([](const Part&) { return Batch{{ones({2, 3})}, {ones({2})}}; }, 4);
        } catch (const std::exception& e) {
          return e.what();
        }
        return "no error";
      });
      for (int r = 0; r < 4; ++r) {
        CAPTURE(r);
        const std::string& error = errors[static_cast<std::size_t>(r)];
        CHECK_THAT(error, ContainsSubstring("the cat pulled the plug (stage " + std::to_string(fails / 2)) &&
                              ContainsSubstring(concat({"=", fails % 2, ") on cpu:0"})) &&
                              ContainsSubstring(" of 2 along the axis pipeline)"));
        if (r != fails)
          CHECK_THAT(error, ContainsSubstring(concat({"rank ", fails, " aborted the group"})));
      }
    }
}

TEST_CASE("a stage whose last micro-batch reaches none of its parameters adds what earlier ones left") {
  // The second stage computes the identity for the second micro-batch.
  const auto norm_of = [](const std::string& text, const Group& world) {
    Strategy strategy(text, {.world = world, .parts = 2});
    struct Both : nn::Module {
      nn::Linear& in = add<nn::Linear>("in", {.in_features = 3, .out_features = 4});
      nn::Linear& out = add<nn::Linear>("out", {.in_features = 4, .out_features = 4});
    } net;
    net.to(DType::f64);
    double value = 0;
    for (const nn::Parameter& p : net.parameters())
      p->detach().copy_((arange(p->numel(), DType::f64) + ++value).sin().reshape(p->sizes()));
    int calls = 0;
    const auto second = [&](const Tensor& x) { return calls++ % 2 == 0 ? net.out(x) : x * 1; };
    strategy.wrap(net, {.forward = [&](const Tensors& x) { return Tensors{second(net.in(x[0]))}; },
                        .loss = [](const Tensors& x, const Tensors&) -> Loss {
                          return {x[0].pow(2).sum(), static_cast<double>(x[0].size(0)), LossKind::sum};
                        },
                        .stages =
                            [&](const std::vector<Device>& on) {
                              return std::vector<Stage>{{net.in, on.at(0)}, {second, on.at(1), {net.out}}};
                            }});
    // Each of two pipelines gets one sample for each micro-batch.
    const Tensor x = (arange(12, DType::f64) * 0.7).sin().reshape({4, 3});
    const auto read = [&](const Part& part) {
      if (world) {
        const Samples mine = strategy.share(4, part);
        return Batch{{x.narrow(0, mine.first, mine.count)}, {ones({mine.count})}};
      }
      return Batch{{cat({x.narrow(0, part.index, 1), x.narrow(0, part.index + 2, 1)})}, {ones({2})}};
    };
    strategy.gradients(read, 4);
    return strategy.clip_grad_norm_(1e9).item();
  };
  const double expected = norm_of("none", nullptr);
  for (const char* text : {"pipeline=2,replicate=2", "pipeline=2:schedule=zero-bubble,replicate=2:zero=2",
                           "pipeline=2:schedule=gpipe,shard=2", "pipeline=2:schedule=zero-bubble,shard=2"}) {
    CAPTURE(text);
    for (const double norm : on_ranks<double>(4, [&](const Group& world) { return norm_of(text, world); }))
      CHECK(norm == Approx(expected).epsilon(1e-12));
  }
}
