// A Llama whose blocks are stages of a pipeline must train like the unsplit model.
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/lora.h"
#include "tests/pipeline/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr std::int64_t kWords = 13;

nn::LlamaConfig config(bool tied) {
  nn::LlamaConfig c;
  c.vocab_size = kWords, c.hidden_size = 12, c.intermediate_size = 17, c.num_hidden_layers = 3;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 4, c.max_position_embeddings = 8;
  c.tie_word_embeddings = tied;
  return c;
}

Tensor loss_of(const Tensor& logits, const Tensor& words) {
  return cross_entropy(logits.flatten(0, 1), words.flatten());
}

// Two stages on two devices if `piped`: the embedding with one block, and two blocks with the head.
TrainResult train(bool tied, bool piped, Schedule schedule, bool lora = false) {
  nn::Llama net(config(tied));
  if (lora) nn::add_lora(net, {.r = 2, .target_modules = {"all-linear"}});
  net.to(DType::f64);
  fill_by_formula(net);
  nn::LlamaModel& m = net.model;
  std::optional<Pipeline> pipeline;
  if (piped) {
    Stage::Modules last{m.layers[1], m.layers[2], m.norm};
    if (tied) last.emplace_back(m.embed_tokens);
    else last.emplace_back(*net.lm_head);
    const auto head = [&](const Tensor& x) {
      return linear(m.norm(m.layers[2](m.layers[1](x))), net.output_weight());
    };
    pipeline.emplace(std::vector<Stage>{Stage({m.embed_tokens, m.layers[0]}, Device("cpu:0")),
                                        Stage(head, Device("cpu:1"), last)},
                     PipelineOptions{.schedule = schedule, .micro_batches = 2});
  }
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  TrainResult result;
  for (int step = 0; step < 10; ++step) {
    const Tensor words = labels_of(4 * 7, kWords, step).reshape({4, 7});
    const Tensor x = words.narrow(1, 0, 6), y = words.narrow(1, 1, 6);
    optimizer.zero_grad();
    if (pipeline) {
      result.losses.push_back(pipeline->forward_backward(x, y, loss_of).item());
    } else {
      const Tensor loss = loss_of(net(x), y);
      loss.backward();
      result.losses.push_back(loss.item());
    }
    optimizer.step();
  }
  result.weights = copy_state(net);
  return result;
}

}  // namespace

TEST_CASE("a Llama in stages trains like the unsplit model") {
  for (const bool tied : {false, true}) {
    const TrainResult expected = train(tied, false, Schedule::gpipe);
    CHECK(expected.losses.back() < expected.losses.front());
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
      INFO("tied " << tied << ", " << schedule_name(schedule));
      const TrainResult piped = train(tied, true, schedule);
      CHECK(distance_of_losses(piped, expected) < 1e-10);
      CHECK(distance(piped.weights, expected.weights) < 1e-10);
    }
  }
}

TEST_CASE("adapters of a Llama in stages train like those of the unsplit model") {
  const TrainResult expected = train(true, false, Schedule::gpipe, /*lora=*/true);
  CHECK(expected.losses.back() < expected.losses.front());
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zero_bubble}) {
    INFO(schedule_name(schedule));
    const TrainResult piped = train(true, true, schedule, /*lora=*/true);
    CHECK(distance_of_losses(piped, expected) < 1e-10);
    CHECK(distance(piped.weights, expected.weights) < 1e-10);
  }
}
