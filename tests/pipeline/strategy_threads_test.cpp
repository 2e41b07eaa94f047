// A strategy that gives each rank one stage of a model trains as one process does, and keeps one stage on
// each rank.
#include <mutex>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;
using Tensors = std::vector<Tensor>;

namespace {

constexpr std::int64_t kWords = 7, kSamples = 10;

// The first and the last stage of three share a parameter, and the second has buffers. A bias before bn would
// have a gradient of rounding errors, which AdamW does not damp.
struct Net : nn::Module {
  nn::Embedding& embed = add<nn::Embedding>("embed", {.num_embeddings = kWords, .embedding_dim = 4});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 4, .out_features = 6, .bias = false});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 6});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 6, .out_features = 4});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = kWords, .bias = false});
  Net() { head.weight = embed.weight; }
  Tensor middle(const Tensor& x) { return bn(fc1(x)).tanh(); }
  Tensor end(const Tensor& x) { return head(fc2(x).tanh()); }
  Tensor forward(const Tensor& words) override { return end(middle(embed(words))); }

  std::vector<Stage> stages(const std::vector<Device>& on) {
    const auto second = [this](const Tensor& x) { return middle(x); };
    const auto third = [this](const Tensor& x) { return end(x); };
    return {{embed, on.at(0)}, {second, on.at(1), {fc1, bn}}, {third, on.at(2), {fc2, head}}};
  }
};

// Ranks are threads, and share the generator.
std::unique_ptr<Net> make_net(bool on_meta) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::optional<DeviceGuard> meta;
  if (on_meta) meta.emplace("meta");
  manual_seed(3);
  return std::make_unique<Net>();
}

struct Job {
  Strategy strategy;
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler{{.init_scale = 1024}};
  std::vector<double> losses, norms, scales;

  Job(const std::string& text, const Group& world)
      : strategy(text, {.world = world, .parts = 2}), net(make_net(strategy.builds_in_parts())) {
    strategy.wrap(*net,
                  {.forward = [this](const Tensors& in) { return Tensors{(*net)(in[0])}; },
                   .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
                     return {cross_entropy(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
                   },
                   .stages = [this](const std::vector<Device>& on) { return net->stages(on); }});
    optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.05});
  }
  nn::Training training() { return {net.get(), optimizer.get(), nullptr, &scaler}; }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      const Tensor words = (arange(kSamples) * (step + 2)).remainder(kWords),
                   next = (arange(kSamples) + step).remainder(kWords);
      const auto read = [&](const Part& part) {
        const Samples mine = strategy.share(kSamples, part);
        return Batch{{words.narrow(0, mine.first, mine.count)}, {next.narrow(0, mine.first, mine.count)}};
      };
      const Tensor loss = strategy.gradients(read, kSamples, &scaler).loss;
      losses.push_back(strategy.sum({loss.item()})[0]);
      // One stage has a gradient that all must notice.
      if (const Tensor g = net->fc1.weight->grad(); step == 1 && g.defined()) g.fill_(INFINITY);
      scaler.unscale_(*optimizer);
      norms.push_back(strategy.clip_grad_norm_(0.5).item());
      scaler.step(*optimizer);
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
  }
};

double distance(const nn::StateDict& a, const nn::StateDict& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].first == b[i].first);
    most = std::max(most, (a[i].second.to(DType::f64) - b[i].second.to(DType::f64)).abs().max().item());
  }
  return most;
}

constexpr double kClose = 1e-4;  // AdamW enlarges the rounding errors of f32

}  // namespace

TEST_CASE("stages on ranks train a model with a tied weight, built on meta, as one process does") {
  Job one("none", nullptr);
  one.train(0, 5);
  for (const char* text : {"pipeline=3", "pipeline=3:schedule=zero-bubble"}) {
    CAPTURE(text);
    struct Seen {
      std::vector<double> losses, norms, scales;
      std::int64_t elements = 0, bytes = 0;
      nn::StateDict whole;
      double evaluated = 0;
    };
    const auto ranks = on_ranks<Seen>(3, [&](const Group& world) {
      Job job(text, world);
      job.train(0, 5);
      Seen seen{job.losses, job.norms, job.scales};
      for (const nn::Parameter& p : job.net->parameters()) seen.elements += p->numel();
      require(job.strategy.report().size() == 1, "one axis");
      seen.bytes = job.strategy.report()[0].bytes_sent;
      seen.whole = job.strategy.whole_state();
      seen.evaluated =
          job.strategy.evaluate(1,
                                [](std::int64_t) {
                                  return Batch{{arange(kWords)}, {arange(kWords)}};
                                })
              ->mean();
      return seen;
    });
    one.net->eval();
    const double evaluated = cross_entropy((*one.net)(arange(kWords)), arange(kWords)).item();
    for (const Seen& seen : ranks) {
      for (std::size_t i = 0; i < 5; ++i) {
        CHECK(seen.losses[i] == Approx(one.losses[i]).epsilon(kClose));
        CHECK((i == 1 ? std::isinf(seen.norms[i]) : seen.norms[i] == Approx(one.norms[i]).epsilon(kClose)));
      }
      CHECK(seen.scales == std::vector<double>{1024, 512, 512, 512, 512});
      CHECK(seen.evaluated == Approx(evaluated).epsilon(kClose));
    }
    CHECK(distance(ranks[0].whole, one.net->state_dict()) < kClose);
    // embed; fc1 and bn; fc2 and the tied weight again
    CHECK(ranks[0].elements == kWords * 4);
    CHECK(ranks[1].elements == 4 * 6 + 2 * 6);
    CHECK(ranks[2].elements == 6 * 4 + 4 + kWords * 4);
    // Features of 4 and 6 numbers of 4 bytes, their gradients, and the loss beside the last gradients.
    CHECK(ranks[0].bytes == kSamples * 4 * 4);
    CHECK(ranks[1].bytes == kSamples * (6 + 4) * 4 + 4);
    CHECK(ranks[2].bytes == kSamples * 6 * 4 + 4);
  }
}

TEST_CASE("checkpoints of stages on ranks resume bit for bit, and load into one process and back") {
  const tests::TempDir dir;
  const auto save = [&](Job& job, const Group& world, int step) {
    save_sharded(dir / std::to_string(step), world, job.training(), {.step = step});
  };
  const auto load = [&](Job& job, const Group& world, int step) {
    require(load_checkpoint(dir / std::to_string(step), world, job.training()).step == step, "the step");
  };
  const auto job_of = [&](const Group& world) { return Job(world ? "pipeline=3" : "none", world); };
  const auto whole = on_ranks<nn::StateDict>(3, [&](const Group& world) {
    Job first = job_of(world);
    first.train(0, 3);
    save(first, world, 3);
    first.train(3, 6);
    // The second save of a run that was resumed counts the steps of all parameters.
    Job second = job_of(world);
    load(second, world, 3);
    second.train(3, 4);
    save(second, world, 4);
    Job third = job_of(world);
    load(third, world, 4);
    third.train(4, 6);
    const nn::StateDict expected = first.strategy.whole_state(), resumed = third.strategy.whole_state();
    for (std::size_t i = 0; i < expected.size(); ++i)
      require(expected[i].second.equal(resumed[i].second), expected[i].first, " differs");
    return expected;
  });
  Job one = job_of(nullptr);
  load(one, nullptr, 4);
  one.train(4, 5);
  save(one, nullptr, 5);
  one.train(5, 6);
  CHECK(distance(one.net->state_dict(), whole[0]) < kClose);
  const auto back = on_ranks<nn::StateDict>(3, [&](const Group& world) {
    Job job = job_of(world);
    load(job, world, 5);
    job.train(5, 6);
    return job.strategy.whole_state();
  });
  CHECK(distance(back[0], whole[0]) < kClose);
}

TEST_CASE("stages that cannot be ranks are refused on all ranks") {
  const auto error = [](const std::function<std::vector<Stage>(Net&, const std::vector<Device>&)>& stages) {
    const auto errors = on_ranks<std::string>(2, [&](const Group& world) -> std::string {
      Strategy strategy("pipeline=2", {.world = world});
      const auto net = make_net(false);
      const auto mine = [&](const std::vector<Device>& on) { return stages(*net, on); };
      try {
        strategy.wrap(*net, {.forward = [](const Tensors& in) { return in; },
                             .loss = [](const Tensors& out, const Tensors&) -> Loss {
                               return {out[0], 1};
                             },
                             .stages = mine});
      } catch (const ValueError& e) {
        return e.what();
      }
      return "";
    });
    CHECK(errors[0] == errors[1]);
    return errors[0];
  };
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.embed, on[0]}};
             }),
             ContainsSubstring("returned 1 stages for 2 ranks"));
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.bn, on[0]}, {net.bn, on[1]}};
             }),
             ContainsSubstring("the buffer 'bn.running_mean' is in the stages of ranks 0 and 1"));
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.embed, on[0]}, {net.bn, on[1]}};
             }),
             ContainsSubstring("the parameter 'fc1.weight' is in no stage"));
}
