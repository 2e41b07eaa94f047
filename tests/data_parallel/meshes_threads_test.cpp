// From any mesh to any other: a training that is saved on one mesh goes on on another as if nothing had
// happened.
#include <map>
#include <mutex>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using distributed_test::Group;
using distributed_test::on_ranks;
using distributed_test::require;
using Tensors = std::vector<Tensor>;

namespace {

constexpr std::int64_t kSamples = 13, kWords = 11, kWidth = 6;
constexpr int kSteps = 5;  // before a checkpoint, and after it

// A language model of one word, whose head has the weights of the embedding.
struct Net : nn::Module {
  nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = kWords, .embedding_dim = kWidth});
  nn::Linear& a = add<nn::Linear>("a", {.in_features = kWidth, .out_features = 9});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 9, .out_features = kWidth});
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {kWidth}});
  nn::Linear& head =
      add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false});
  Net() { head.weight = words.weight; }
  Tensor first(const Tensor& x) { return tanh(a(words(x))); }
  Tensor second(const Tensor& h) { return head(norm(b(h))); }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
};

std::unique_ptr<Net> make_net() {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  manual_seed(5);
  auto net = std::make_unique<Net>();
  net->to(DType::f64);
  return net;
}

Batch samples_of(std::int64_t step, const Samples& s) {
  std::vector<std::int64_t> x, y;
  for (std::int64_t i = s.first; i < s.first + s.count; ++i) {
    x.push_back((i * 5 + step * 3) % kWords);
    y.push_back((i * 7 + step) % kWords);
  }
  return {{tensor(x, {s.count})}, {tensor(y, {s.count})}};
}

ModelParts parts_of(Net& net) {
  return {.units = {&net.a, &net.b},
          .forward = [&net](const Tensors& in) { return Tensors{net(in[0])}; },
          .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
            return {cross_entropy(out[0], targets[0]), static_cast<double>(targets[0].numel())};
          },
          .stages =
              [&net](const std::vector<Device>& devices) {
                std::vector<Stage> stages;
                stages.emplace_back([&net](const Tensor& x) { return net.first(x); }, devices.at(0),
                                    Stage::Modules{net.words, net.a});
                stages.emplace_back([&net](const Tensor& h) { return net.second(h); }, devices.at(1),
                                    Stage::Modules{net.b, net.norm, net.head});
                return stages;
              }};
}

struct Result {
  nn::StateDict weights;  // on rank 0
  double loss = 0;        // of the last step
};

// Trains the steps from `first` on, after it has resumed from the folder `from` if there is one. Saves to the
// folder `to`.
Result train(const std::string& text, const Group& world, int first, int steps, const std::string& from,
             const std::string& to = "") {
  Strategy strategy(text, {.world = world, .parts = 2});
  const auto net = make_net();
  strategy.wrap(*net, parts_of(*net));
  const auto optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.02});
  ShardedTraining training(net.get(), optimizer.get());
  training.place = strategy.random_place();
  if (!from.empty()) {
    const auto progress = Checkpointer(from, world).resume(training);
    require(progress && progress->step == first, "the checkpoint's step");
  }
  Result result;
  for (int step = first; step < first + steps; ++step) {
    optimizer->zero_grad();
    const auto read = [&](const Part& part) { return samples_of(step, strategy.share(kSamples, part)); };
    result.loss = strategy.sum({strategy.gradients(read, kSamples).loss.item()})[0];
    strategy.clip_grad_norm_(0.5);
    optimizer->step();
  }
  if (!to.empty()) Checkpointer(to, world).save(training, {.step = first + steps});
  result.weights = strategy.whole_state();
  return result;
}

Result train(const std::string& text, int first, int steps, const std::string& from,
             const std::string& to = "") {
  const int ranks = plan_strategy(text, true).size;
  if (ranks == 1) return train(text, nullptr, first, steps, from, to);
  return on_ranks<Result>(ranks, [&](const Group& g) { return train(text, g, first, steps, from, to); })[0];
}

// The distance of all weights, relative to their norm.
double distance(const nn::StateDict& a, const nn::StateDict& b) {
  REQUIRE(a.size() == b.size());
  double off = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].first == b[i].first);
    off += (a[i].second - b[i].second).square().sum().item();
    norm += b[i].second.square().sum().item();
  }
  return std::sqrt(off / norm);
}

}  // namespace

TEST_CASE("a training goes on on any other mesh, and bit for bit on the same one") {
  const std::vector<std::string> meshes{"none",
                                        "replicate=2",
                                        "replicate=3:zero=1",
                                        "replicate=2:zero=2",
                                        "shard=3",
                                        "pipeline=2:schedule=zero-bubble",
                                        "pipeline=2,replicate=2"};
  const tests::TempDir dir;
  const Result expected = train("none", 0, 2 * kSteps, "");
  std::map<std::string, Result> straight;
  for (const std::string& text : meshes) {
    CAPTURE(text);
    straight[text] = train(text, 0, 2 * kSteps, "");
    CHECK(distance(straight[text].weights, expected.weights) < 1e-10);
    CHECK(straight[text].loss == Approx(expected.loss).epsilon(1e-10));
    train(text, 0, kSteps, "", dir / text);
  }
  for (const std::string& from : meshes)
    for (const std::string& to : meshes) {
      CAPTURE(from, to);
      const Result resumed = train(to, kSteps, kSteps, dir / from);
      CHECK(resumed.loss == Approx(expected.loss).epsilon(1e-10));
      const double off = distance(resumed.weights, straight[to].weights);
      CHECK(off <= (from == to ? 0 : 1e-10));
    }
}
