// From any mesh to any other: a training that is saved on one mesh goes on on another as if nothing had
// happened.
#include <map>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/mesh_training.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::mesh_training;
using distributed_test::Group;
using distributed_test::on_ranks;
using distributed_test::require;

namespace {

constexpr int kSteps = 5;  // before a checkpoint, and after it

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

}  // namespace

TEST_CASE("a training goes on on any other mesh, and bit for bit on the same one") {
  const std::vector<std::string> meshes{"none",
                                        "replicate=2",
                                        "replicate=3:zero=1",
                                        "replicate=2:zero=2",
                                        "shard=3",
                                        "pipeline=2:schedule=zero-bubble",
                                        "replicate=2,shard=2",
                                        "pipeline=2,replicate=2:zero=2",
                                        "pipeline=2,shard=2",
                                        "pipeline=2,replicate=2,shard=2"};
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
