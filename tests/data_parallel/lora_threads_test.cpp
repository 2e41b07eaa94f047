// Adapters of a Llama under DataParallel must train like those of the model on one device.
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/lora.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr std::int64_t kWords = 13;

// 10 steps on 5 sequences, which two devices divide unevenly.
TrainResult train(std::optional<DataParallelMode> strategy, bool checkpoint) {
  nn::LlamaConfig c;
  c.vocab_size = kWords, c.hidden_size = 12, c.intermediate_size = 17, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 4, c.max_position_embeddings = 8;
  c.tie_word_embeddings = true;
  nn::Llama net(c);
  nn::add_lora(net, {.r = 2, .target_modules = {"all-linear"}});
  net.to(DType::f64);
  fill_by_formula(net);
  std::optional<DataParallel<nn::Llama>> dp;
  if (strategy)
    dp.emplace(net, std::vector<Device>{Device("cpu:0"), Device("cpu:1")},
               DataParallelOptions{.mode = *strategy});
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  const auto loss_of = [&](const Tensor& ids, const Tensor& targets) {
    return net(ids, {.targets = targets, .checkpoint = checkpoint});
  };
  TrainResult result;
  for (int step = 0; step < 10; ++step) {
    const Tensor words = labels_of(5 * 7, kWords, step).reshape({5, 7});
    const Tensor x = words.narrow(1, 0, 6).contiguous(), y = words.narrow(1, 1, 6).contiguous();
    optimizer.zero_grad();
    const Tensor loss = dp ? dp->loss(std::make_tuple(x, y), loss_of) : loss_of(x, y);
    loss.backward();
    result.losses.push_back(loss.item());
    optimizer.step();
  }
  result.weights = copy_state(net);
  return result;
}

}  // namespace

TEST_CASE("adapters under DataParallel train like those on one device") {
  const TrainResult expected = train({}, false);
  CHECK(expected.losses.back() < expected.losses.front());
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
    for (const bool checkpoint : {false, true}) {
      INFO((strategy == DataParallelMode::master ? "master" : "replicated")
           << (checkpoint ? ", recomputed" : ""));
      const TrainResult replicated = train(strategy, checkpoint);
      CHECK(distance_of_losses(replicated, expected) < 1e-10);
      CHECK(distance(replicated.weights, expected.weights) < 1e-10);
    }
}
