// Trains drawn language models on drawn meshes, against one process in float64. TAPESTRY_FUZZ_SEED draws
// other cases, and TAPESTRY_FUZZ_CASES sets their number.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

struct Case {
  nn::LlamaConfig llama;
  nn::Gpt2Config gpt2;
  bool is_gpt2 = false, checkpoint = false, adamw = false;
  std::int64_t length = 1, rows = 1;
  int ranks = 1, parts = 1;
  std::string mesh;
  double clip = 0;

  std::string str() const {
    return concat({is_gpt2 ? "Gpt2 " : "Llama ",
                   mesh,
                   ", ",
                   is_gpt2 ? gpt2.n_head : llama.num_attention_heads,
                   " heads, ",
                   llama.num_key_value_heads,
                   " key heads, ",
                   llama.vocab_size,
                   " words, ",
                   llama.intermediate_size,
                   " inside, length ",
                   length,
                   ", ",
                   rows,
                   " rows in ",
                   parts,
                   " parts, tied ",
                   llama.tie_word_embeddings,
                   ", biases ",
                   llama.attention_bias,
                   llama.attention_output_bias,
                   llama.mlp_bias,
                   ", checkpoint ",
                   checkpoint,
                   ", clip ",
                   clip});
  }
};

Case drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  Case c;
  const int tensors = pick(2, 4);
  const int units = pick(1, 2), heads = tensors * units;
  // Key and value heads: one for two ranks, or one or more for each.
  const int keys = tensors % 2 == 0 && pick(0, 1) ? tensors / 2 : tensors * pick(1, units);
  c.is_gpt2 = pick(0, 3) == 0;
  c.llama = {.vocab_size = pick(2 * tensors, 30),
             .hidden_size = 2 * pick(2, 5),
             .intermediate_size = pick(0, 1) ? 2 * tensors : 4 * tensors + 1,
             .num_hidden_layers = pick(1, 2),
             .num_attention_heads = heads,
             .num_key_value_heads = keys,
             .head_dim = 2,
             .max_position_embeddings = 8,
             .tie_word_embeddings = pick(0, 1) == 1,
             .attention_bias = pick(0, 1) == 1,
             .attention_output_bias = pick(0, 1) == 1,
             .mlp_bias = pick(0, 1) == 1};
  // ceil(words / ranks) words of each rank but the last leave it some.
  while ((c.llama.vocab_size + tensors - 1) / tensors * (tensors - 1) >= c.llama.vocab_size)
    ++c.llama.vocab_size;
  c.gpt2 = {.vocab_size = c.llama.vocab_size,
            .n_positions = 8,
            .n_embd = heads * 2,
            .n_layer = c.llama.num_hidden_layers,
            .n_head = heads,
            .n_inner = c.llama.intermediate_size,
            .tie_word_embeddings = c.llama.tie_word_embeddings,
            .embd_pdrop = 0,
            .attn_pdrop = 0,
            .resid_pdrop = 0};
  c.length = pick(1, 7), c.parts = pick(1, 2);
  const char* const others[] = {"", "shard=2,", "replicate=2,", "replicate=2:zero=1,",
                                "shard=2:reduce=part,"};
  const std::string other = tensors == 3 ? "" : others[pick(0, 4)];
  c.mesh = concat({other, "tensor=", tensors, pick(0, 1) ? ":sequence=1" : ""});
  c.ranks = tensors * (other.empty() ? 1 : 2);
  c.rows = 2 * c.parts + pick(0, 1) * (other.empty() ? 1 : 0);
  c.checkpoint = pick(0, 1) == 1, c.adamw = pick(0, 1) == 1, c.clip = pick(0, 1) ? 0.3 : 0;
  return c;
}

std::unique_ptr<nn::LanguageModel> make(const Case& c) {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  std::unique_ptr<nn::LanguageModel> net;
  if (c.is_gpt2) net = std::make_unique<nn::Gpt2>(c.gpt2);
  else net = std::make_unique<nn::Llama>(c.llama);
  net->to(DType::f64);
  int k = 0;
  for (const nn::Parameter& p : net->parameters()) {
    const NoGradGuard no_grad;
    p.copy_(wave(p.sizes(), 0.37 + 0.01 * k, k) * 0.3 + (p.dim() == 1 ? 0.9 : 0));
    ++k;
  }
  return net;
}

struct Trace {
  std::vector<double> losses, norms;
  nn::StateDict weights;
};

Trace train(const Case& c, const std::string& mesh, const Group& world) {
  Strategy strategy(mesh, {.world = world, .parts = c.parts});
  const auto net = make(c);
  ModelParts parts;
  parts.forward_loss = [&](const std::vector<Tensor>& in, const std::vector<Tensor>& targets) -> Loss {
    return {(*net)(in[0], {.targets = targets[0], .checkpoint = c.checkpoint}),
            static_cast<double>(targets[0].numel())};
  };
  parts.units = c.is_gpt2 ? dynamic_cast<nn::Gpt2&>(*net).transformer.h.children()
                          : dynamic_cast<nn::Llama&>(*net).model.layers.children();
  strategy.wrap(*net, parts);
  const std::unique_ptr<optim::Optimizer> optimizer =
      c.adamw ? make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.01})
              : make_optimizer<optim::SGD>(strategy, net->parameters(), {.lr = 0.1, .momentum = 0.9});
  Trace trace;
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    std::vector<std::int64_t> words;
    for (std::int64_t i = 0; i < c.rows * (c.length + 1); ++i)
      words.push_back((i * i * 5 + i * 3 + step) % c.llama.vocab_size);
    const Tensor all = ints(words, {c.rows, c.length + 1});
    const auto read = [&](const Part& part) {
      const Samples s = strategy.share(c.rows, part);
      const Tensor own = all.narrow(0, s.first, s.count);
      return Batch{{own.narrow(1, 0, c.length)}, {own.narrow(1, 1, c.length)}};
    };
    const StepLoss loss = strategy.gradients(read, static_cast<double>(c.rows * c.length));
    trace.losses.push_back(strategy.sum({loss.loss.item()})[0]);
    trace.norms.push_back(strategy.clip_grad_norm_(c.clip > 0 ? c.clip : 1e9).item());
    optimizer->step();
  }
  trace.weights = strategy.whole_state();
  return trace;
}

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("drawn language models train on drawn meshes with a tensor axis as in one process") {
  const std::uint64_t seed = setting("TAPESTRY_FUZZ_SEED", 1), count = setting("TAPESTRY_FUZZ_CASES", 12);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Case c = drawn(seed * 1'000'000 + i);
    INFO(c.str());
    const Trace one = train(c, "single", nullptr);
    const auto all = on_ranks<Trace>(c.ranks, [&](const Group& world) { return train(c, c.mesh, world); });
    for (const Trace& t : all)
      for (std::size_t s = 0; s < one.losses.size(); ++s) {
        CHECK(std::abs(t.losses[s] - one.losses[s]) < 1e-10);
        CHECK(std::abs(t.norms[s] / one.norms[s] - 1) < 1e-9);
      }
    REQUIRE(all[0].weights.size() == one.weights.size());
    for (std::size_t p = 0; p < one.weights.size(); ++p) {
      INFO(one.weights[p].first);
      CHECK(all[0].weights[p].first == one.weights[p].first);
      CHECK(tensor_test::distance(all[0].weights[p].second, one.weights[p].second) < 1e-9);
    }
  }
}
