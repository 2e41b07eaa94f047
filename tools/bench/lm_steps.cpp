// Tapestry's side of tools/bench_lm: training steps of language models of published sizes, with random
// weights. The other sides (lm_steps.py, llmc_steps.c) take turns with this program.
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/cpu_roofs.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;

namespace {

// HuggingFaceTB/SmolLM2-135M.
nn::LlamaConfig smollm2() {
  nn::LlamaConfig config;
  config.vocab_size = 49152, config.hidden_size = 576, config.intermediate_size = 1536;
  config.num_hidden_layers = 30, config.num_attention_heads = 9, config.num_key_value_heads = 3;
  config.head_dim = 64, config.max_position_embeddings = 8192, config.rope_theta = 100000;
  config.rms_norm_eps = 1e-5, config.tie_word_embeddings = true;
  return config;
}

nn::Gpt2Config gpt2() {
  nn::Gpt2Config config;  // the defaults are those of the model of 124 M parameters
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  return config;
}

// zero_grad, forward, cross-entropy, backward, AdamW.
template <class Model>
struct Training {
  template <class Config>
  Training(const Config& config, std::int64_t batch, std::int64_t length)
      : model(config),
        optimizer(model.parameters(), optim::AdamW::Options{.lr = 1e-4}),
        ids(randint(0, config.vocab_size, {batch, length})),
        next(randint(0, config.vocab_size, {batch, length})) {}
  void step() {
    optimizer.zero_grad();
    model(ids, {.targets = next}).backward();
    optimizer.step();
  }
  Model model;
  optim::AdamW optimizer;
  Tensor ids, next;
};

// A training step whose model is made by the first call.
template <class Model, class Config>
std::function<void()> training_step(Config config, std::int64_t batch, std::int64_t length) {
  const auto training = std::make_shared<std::unique_ptr<Training<Model>>>();
  return [=] {
    if (!*training) *training = std::make_unique<Training<Model>>(config, batch, length);
    (*training)->step();
  };
}

constexpr double kOperations = 1e10;  // of each thread

// Runs kOperations floating-point operations on each thread, by the widest multiply-adds of the processor.
void multiply_adds(int threads) {
  const bool wide = __builtin_cpu_supports("avx512f");
  const auto run = wide ? bench::fma_512 : bench::fma_256;
  const auto steps = static_cast<long>(kOperations / (12 * (wide ? 32 : 16)));
  std::vector<std::thread> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) workers.emplace_back(run, steps);
  for (std::thread& w : workers) w.join();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  set_num_threads(threads);
  manual_seed(0);
  return bench::take_turns({{"smollm2", training_step<nn::Llama>(smollm2(), 4, 256)},
                            {"gpt2", training_step<nn::Gpt2>(gpt2(), 4, 64)},
                            {"roof", [=] { multiply_adds(threads); }}});
}
