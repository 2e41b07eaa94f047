// Tests fully_shard of language models: blocks and the model, with tied embeddings, must train exactly as
// DistributedDataParallel does. And their files.
#include <filesystem>

#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

nn::LlamaConfig llama_config(bool tied) {
  nn::LlamaConfig c;
  c.vocab_size = TinyGpt::kWords, c.hidden_size = 12, c.intermediate_size = 17, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 4, c.max_position_embeddings = 8;
  c.tie_word_embeddings = tied, c.attention_bias = !tied;
  return c;
}
nn::Gpt2Config gpt2_config() {
  nn::Gpt2Config c;
  c.vocab_size = TinyGpt::kWords, c.n_positions = 8, c.n_embd = 6, c.n_layer = 2, c.n_head = 2,
  c.n_inner = 13;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  return c;
}

// DDP and fully_shard pass on a call with one tensor, so the loss is computed from the logits.
template <class Net, class Config>
Trained train(const Config& config, nn::ModuleList& (*blocks)(Net&), Parallel how, const Group& group,
              int parts, bool lora) {
  Net net(config);
  if (lora) nn::add_lora(net, {.r = 2, .target_modules = {"all-linear"}});
  fill_by_formula(net);
  std::vector<nn::Module*> units(blocks(net).begin(), blocks(net).end());
  units.push_back(&net);
  return train_net(net, units, how, group, parts, {.steps = 6},
                   [](const auto& forward, int batch, int first, int count) {
                     const auto [x, y] = formula_words(batch, first, count);
                     return cross_entropy(forward(x).reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
                   });
}

template <class Net, class Config>
void compare(const Config& config, nn::ModuleList& (*blocks)(Net&), bool lora = false) {
  const auto run = [&](Parallel how) {
    return on_ranks<Trained>(2, [&](const Group& g) { return train<Net>(config, blocks, how, g, 2, lora); });
  };
  const auto expected = run(Parallel::ddp), sharded = run(Parallel::fsdp);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(sharded[r].losses == expected[r].losses);
    CHECK(sharded[r].weights == expected[r].weights);
  }
  const Trained single = train<Net>(config, blocks, Parallel::single, {}, 2, lora);
  CHECK(std::abs((expected[0].losses.back() + expected[1].losses.back()) / 2 - single.losses.back()) < 1e-4);
  CHECK(single.losses.back() < single.losses.front());
}

}  // namespace

TEST_CASE("a sharded Llama trains as a replicated one does, bit for bit") {
  nn::ModuleList& (*const blocks)(nn::Llama&) = [](nn::Llama& net) -> nn::ModuleList& {
    return net.model.layers;
  };
  compare<nn::Llama>(llama_config(true), blocks);
  compare<nn::Llama>(llama_config(false), blocks);
}

TEST_CASE("a sharded GPT-2 trains as a replicated one does, bit for bit") {
  nn::ModuleList& (*const blocks)(nn::Gpt2&) = [](nn::Gpt2& net) -> nn::ModuleList& {
    return net.transformer.h;
  };
  compare<nn::Gpt2>(gpt2_config(), blocks);
}

TEST_CASE("adapters beside frozen, sharded layers train as replicated ones do, bit for bit") {
  nn::ModuleList& (*const blocks)(nn::Llama&) = [](nn::Llama& net) -> nn::ModuleList& {
    return net.model.layers;
  };
  compare<nn::Llama>(llama_config(true), blocks, /*lora=*/true);
}

TEST_CASE(
    "a sharded language model is saved whole under unshard(true), refused otherwise, and takes a file's "
    "rows") {
  const tests::TempDir dir;
  nn::Gpt2 reference(gpt2_config());
  fill_by_formula(reference);
  const StateDictCopy expected = copy_state(reference);
  on_ranks<int>(2, [&](const Group& group) {
    nn::Gpt2 net(gpt2_config());
    fill_by_formula(net);
    for (nn::Module* block : net.transformer.h.children()) distributed::fully_shard(*block, {.group = group});
    const auto sharded = distributed::fully_shard(net, {.group = group});
    const std::string own = dir / std::to_string(group->rank());
    std::string error;
    try {
      nn::save_language_model(own, net);
    } catch (const ValueError& e) {
      error = e.what();
    }
    distributed_test::require(error.find("[hf_sources] 'transformer.wte.weight' of shape") == 0 &&
                                  error.find("unshard(true)") != std::string::npos &&
                                  !std::filesystem::exists(own),
                              error);
    {
      const auto full = sharded.unshard(true);
      nn::save_language_model(own, net);
      nn::save_language_model_gguf(own + ".gguf", net);
    }
    for (const nn::Parameter& p : net.parameters()) p.tensor().detach().fill_(7);
    nn::load_weights(net, nn::ModelWeights(own));
    const auto full = sharded.unshard(true);
    distributed_test::require(copy_state(net) == expected, "load_weights()");
    return 0;
  });
  for (const char* const saved : {"0", "1", "0.gguf", "1.gguf"})
    CHECK(copy_state(*nn::load_language_model(dir / saved)) == expected);
}
