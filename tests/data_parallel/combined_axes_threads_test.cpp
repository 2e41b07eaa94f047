// Axes over ranks combine: several axes train and evaluate as one process does, whatever samples a rank has.
#include "tests/data_parallel/strategy_net.h"
#include "tests/support/mesh_training.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::strategy_net;

TEST_CASE("axes that combine train and evaluate as one process does") {
  const Trained expected = expected_training();
  for (const bool mean : {false, true})
    for (const int parts : {1, 2})
      for (const char* text :
           {"pipeline=2,replicate=2", "pipeline=2:schedule=gpipe,replicate=-1:zero=1",
            "pipeline=2:schedule=zero-bubble,replicate=2:zero=2", "pipeline=2,shard=2",
            "pipeline=2:schedule=gpipe,shard=2", "pipeline=2:schedule=zero-bubble,shard=2:gather=part",
            "replicate=2,shard=2", "replicate=-1,shard=2:reduce=part"}) {
        CAPTURE(text, parts, mean);
        const auto ranks = on_ranks<Trained>(4, [&](const Group& g) { return train(text, g, parts, mean); });
        for (std::size_t r = 0; r < 4; ++r) check_same(ranks[r], expected, r == 0);
      }
  for (const char* text :
       {"pipeline=2,replicate=2,shard=2",
        "pipeline=2:schedule=zero-bubble,replicate=2,shard=-1:gather=part:reduce=part"}) {
    CAPTURE(text);
    const auto ranks = on_ranks<Trained>(8, [&](const Group& g) { return train(text, g, 2, true); });
    for (std::size_t r = 0; r < 8; ++r) check_same(ranks[r], expected, r == 0);
  }
}

TEST_CASE("a process without samples takes part in a step") {
  const double expected = norm("none", nullptr, 1);
  for (const char* text : {"none", "replicate=2:devices", "dp-master", "shard=2:devices"}) {
    CAPTURE(text);
    CHECK(norm(text, nullptr, 3) == Approx(expected).epsilon(1e-12));
  }
  for (const char* text : {"ddp", "replicate=3:zero=2", "fsdp", "replicate=3,shard=2"}) {
    CAPTURE(text);
    const int ranks = std::string_view(text).ends_with("shard=2") ? 6 : 3;
    for (const double got : on_ranks<double>(ranks, [&](const Group& g) { return norm(text, g, 1); }))
      CHECK(got == Approx(expected).epsilon(1e-12));
  }
  for (const char* text :
       {"pipeline=2,replicate=3:zero=2", "pipeline=2,shard=3",
        "pipeline=2:schedule=zero-bubble,shard=3:gather=part",
        "pipeline=2:schedule=zero-bubble,replicate=3"})
    for (const int parts : {1, 2}) {
      CAPTURE(text, parts);
      for (const double got : on_ranks<double>(6, [&](const Group& g) { return norm(text, g, parts); }))
        CHECK(got == Approx(expected).epsilon(1e-12));
    }
}

// Otherwise one rank would gather for a second micro-batch, and wait for the other one, which has none.
TEST_CASE("ranks of a stage make the same micro-batches, whatever their samples") {
  for (const char* text : {"pipeline=2,shard=2", "pipeline=2,shard=2:gather=part",
                           "pipeline=2,shard=2:reduce=part", "pipeline=2,replicate=2"}) {
    CAPTURE(text);
    const Batch all = whole_batch(1);
    const auto train = [&](const std::string& mode, const Group& world) {
      Strategy strategy(mode, {.world = world, .parts = 2});
      const auto net = make_mlp();
      strategy.wrap(*net, parts_of(*net, true));
      // One rank has two samples, and the other one has one.
      const double targets = valid(all.targets[0].narrow(0, 0, 3));
      strategy.gradients(
          [&](const Part& part) { return narrowed(all, strategy.share(3, part)); }, targets);
      const double norm = strategy.clip_grad_norm_(1e9).item();
      // Of the readers, one has four samples to evaluate, and the other one has one.
      const auto seen = strategy.evaluate(1, [&](std::int64_t) {
        return narrowed(all, strategy.data_size() == 1    ? Samples{0, 5}
                             : strategy.data_rank() == 0 ? Samples{0, 4}
                                                         : Samples{4, 1});
      });
      return std::pair(norm, seen->mean());
    };
    const auto expected = train("none", nullptr);
    for (const auto& got :
         on_ranks<std::pair<double, double>>(4, [&](const Group& g) { return train(text, g); })) {
      CHECK(got.first == Approx(expected.first).epsilon(1e-12));
      CHECK(got.second == Approx(expected.second).epsilon(1e-12));
    }
  }
}

TEST_CASE("what a failed step has left is not in the gradients of the next one") {
  const double expected = norm("none", nullptr, 2);
  for (const char* text : {"fsdp", "shard=4:gather=step", "replicate=2,shard=2:reduce=part",
                           "replicate=2,shard=2", "ddp", "pipeline=2,shard=2"}) {
    CAPTURE(text);
    for (const double got : on_ranks<double>(4, [&](const Group& world) {
           Strategy strategy(text, {.world = world, .parts = 2});
           const auto net = make_mlp();
           strategy.wrap(*net, parts_of(*net, true));
           const auto optimizer = make_optimizer<optim::SGD>(strategy, net->parameters(), {.lr = 0.1});
           const auto step = [&](bool fails) {
             const Batch all = narrowed(whole_batch(0), {1, 2});
             strategy.gradients(
                 [&](const Part& part) {
                   require(!fails || part.index + 1 < part.count, "no samples");
                   return narrowed(all, strategy.share(2, part));
                 },
                 2);
           };
           try {
             step(true);
           } catch (const std::exception&) {
           }
           optimizer->zero_grad();
           step(false);
           return strategy.clip_grad_norm_(1e9).item();
         }))
      CHECK(got == Approx(expected).epsilon(1e-12));
  }
}

namespace {

struct Averaged {
  nn::StateDict weights, averages;  // of rank 0
  std::vector<double> losses, scales;
  double average_loss = 0;  // of the averaged weights
};

// Trains 4 steps with blocks that backward recomputes, a scaler that skips a step, and an average of the
// weights. With `adapters`, all else is frozen.
Averaged train_averaged(const std::string& text, const Group& world, bool adapters) {
  namespace model = mesh_training;
  static std::mutex mutex;  // ranks are threads, and share the generator
  Strategy strategy(text, {.world = world, .parts = 2});
  std::unique_ptr<model::Net> net;
  nn::Parameter overflows;
  {
    const std::lock_guard lock(mutex);
    net = model::make_net();
    overflows = net->b.weight;
    const NoGradGuard no_grad;
    if (adapters) {
      nn::add_lora(*net, {.r = 2, .lora_alpha = 4, .target_modules = {"a", "b"}});
      double k = 0;
      for (const auto& [path, adapter] : nn::lora_adapters(*net))
        for (const nn::Parameter& p : {adapter->A, adapter->B}) {
          p->copy_((arange(p.numel()) * 0.7 + ++k).sin().reshape(p->sizes()) * 0.3);
          overflows = p;
        }
    }
  }
  net->recomputes = true;
  if (strategy.data_rank() > 0) {  // the values of the first copy count
    const NoGradGuard no_grad;
    net->a.bias->fill_(9);
  }
  strategy.wrap(*net, model::parts_of(*net));
  const auto optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.02});
  optim::AveragedModel averages(*net, {.avg_fn = optim::get_ema_avg(0.6)});
  optim::GradScaler scaler({.init_scale = 64});
  bool overflow = false;
  // The gradient of one shard of one stage is infinite, which all ranks must notice. Copies have equal ones.
  bool here = true;
  for (const char* const axis : {"pipeline", "shard"})
    if (strategy.mesh() && strategy.mesh()->has(axis))
      here = here && (*strategy.mesh())[axis].coordinate() + 1 == (*strategy.mesh())[axis].size();
  if (const Tensor t = overflows.tensor(); here)
    t.register_hook([&](const Tensor& g) { return overflow ? full_like(g, INFINITY) : Tensor(); });
  // In one process, the whole state is the model's memory.
  const auto whole_state = [&] {
    nn::StateDict all = strategy.whole_state();
    for (auto& [name, t] : all) t = t.clone();
    return all;
  };
  Averaged result;
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    overflow = step == 1;
    const auto read = [&](const Part& part) {
      return model::samples_of(step, strategy.share(model::kSamples, part));
    };
    result.losses.push_back(
        strategy.sum({strategy.gradients(read, model::kSamples, &scaler).loss.item()})[0]);
    scaler.unscale_(*optimizer);
    strategy.clip_grad_norm_(0.5);
    scaler.step(*optimizer);
    scaler.update();
    averages.update_parameters();
    result.scales.push_back(scaler.get_scale());
  }
  {
    const auto scope = averages.use();
    result.averages = whole_state();
    result.average_loss =
        strategy.evaluate(1,
                          [](std::int64_t) {
                            return model::samples_of(9, {0, model::kSamples});
                          })
            ->mean();
  }
  result.weights = whole_state();
  return result;
}

}  // namespace

TEST_CASE("averages, adapters, recomputation and a scaler work under axes that combine") {
  for (const bool adapters : {false, true}) {
    const Averaged expected = train_averaged("none", nullptr, adapters);
    CHECK(mesh_training::distance(expected.weights, expected.averages) > 1e-3);
    CHECK(expected.scales == std::vector<double>{64, 32, 32, 32});
    for (const char* text :
         {"replicate=2,shard=2", "pipeline=2,shard=2",
          "pipeline=2:schedule=zero-bubble,shard=2:gather=part:offload=host", "pipeline=2,replicate=2:zero=1",
          "pipeline=2:schedule=gpipe,replicate=2:zero=2"}) {
      CAPTURE(text, adapters);
      const auto ranks =
          on_ranks<Averaged>(4, [&](const Group& g) { return train_averaged(text, g, adapters); });
      CHECK(mesh_training::distance(ranks[0].weights, expected.weights) < 1e-10);
      CHECK(mesh_training::distance(ranks[0].averages, expected.averages) < 1e-10);
      for (const Averaged& rank : ranks) {
        CHECK(rank.scales == expected.scales);
        CHECK(rank.average_loss == Approx(expected.average_loss).epsilon(1e-10));
        for (std::size_t i = 0; i < expected.losses.size(); ++i)
          CHECK(rank.losses[i] == Approx(expected.losses[i]).epsilon(1e-10));
      }
    }
  }
}
