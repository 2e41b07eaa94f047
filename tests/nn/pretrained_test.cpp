// Whole language models from files and to files.
#include "tapestry/nn/models/pretrained.h"

#include <filesystem>
#include <fstream>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::nn;

namespace {

Gpt2Config gpt2(bool tied) {
  Gpt2Config c;
  // Square projections are the ones that a wrong layout would not notice.
  c.vocab_size = 19, c.n_positions = 12, c.n_embd = 8, c.n_layer = 2, c.n_head = 2, c.n_inner = 8;
  c.tie_word_embeddings = tied;
  c.bos_token_id = c.eos_token_id = 3;
  return c;
}
LlamaConfig llama(bool tied) {
  LlamaConfig c;
  c.vocab_size = 19, c.hidden_size = 16, c.intermediate_size = 24, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 4, c.max_position_embeddings = 12;
  c.tie_word_embeddings = tied;
  return c;
}

void check_round_trip(LanguageModel& model) {
  const tests::TempDir folder;
  save_language_model(folder / "hf", model);
  save_language_model_gguf(folder / "model.gguf", model);
  model.eval();
  const Tensor ids = tensor({3, 1, 4, 1, 5, 9, 2}, kInt64).unsqueeze(0);
  const NoGradGuard no_grad;
  const Tensor expected = model(ids);
  for (const std::string& path : {folder / "hf", folder / "hf/config.json", folder / "model.gguf"}) {
    CAPTURE(path);
    const auto loaded = load_language_model(path);
    CHECK(loaded->type_name() == model.type_name());
    loaded->eval();
    CHECK(equal((*loaded)(ids), expected));
  }
}

}  // namespace

TEST_CASE("a language model is the same after it was written and read") {
  for (const bool tied : {true, false}) {
    Gpt2 first(gpt2(tied));
    check_round_trip(first);
    Llama second(llama(tied));
    check_round_trip(second);
  }
}

TEST_CASE("tied embeddings may be stored twice if they are equal") {
  const tests::TempDir folder;
  Llama model(llama(true));
  save_language_model(folder / "hf", model);
  const ModelWeights weights(folder / "hf");
  const auto stored = [&](double added) {
    std::vector<TensorSource> sources = weights.sources();
    const Tensor head = weights.read("model.embed_tokens.weight") + added;
    sources.push_back({"lm_head.weight", DType::f32, head.sizes(), [head] { return head; }});
    std::filesystem::create_directories(folder / "twice");
    save_safetensors_shards(folder / "twice", sources);
    std::ofstream(folder / "twice/config.json") << llama(true).to_hf_json();
    return folder / "twice";
  };
  const Tensor ids = tensor({3, 1, 4}, kInt64).unsqueeze(0);
  const NoGradGuard no_grad;
  for (const bool packed : {false, true}) {
    const auto loaded = load_language_model(stored(0), {.packed = packed});
    CHECK(allclose((*loaded)(ids), model(ids), 1e-5, 1e-6));
    CHECK_THROWS_WITH(load_language_model(stored(1), {.packed = packed}),
                      ContainsSubstring("lm_head.weight is unexpected"));
  }
}

TEST_CASE("GPT-2's linear layers are (in, out) in Hugging Face's files") {
  const tests::TempDir folder;
  const Gpt2 model(gpt2(true));
  save_language_model(folder / "hf", model);
  const ModelWeights weights(folder / "hf");
  const Tensor& ours = model.transformer.h.get<Gpt2Block>(1).attn.c_proj.weight.tensor();
  CHECK(equal(weights.read("transformer.h.1.attn.c_proj.weight"), ours.detach().t()));
  CHECK_FALSE(equal(weights.read("transformer.h.1.attn.c_proj.weight"), ours.detach()));
  CHECK(weights.find("transformer.h.0.attn.c_attn.weight")->sizes == Shape{8, 24});
}

TEST_CASE("a configuration that claims more than the file has builds nothing") {
  const tests::TempDir folder;
  const Llama model(llama(false));
  const auto refused = [&](const std::string& path) {
    CAPTURE(path);
    CHECK_THROWS_WITH(load_language_model(path), ContainsSubstring("do not fit to the configuration"));
    CHECK_THROWS_WITH(load_language_model(path, {.packed = true}),
                      ContainsSubstring("do not fit to the configuration"));
  };
  const auto claim = [&](auto config, std::int64_t decltype(config)::*member, std::int64_t value) {
    config.*member = value;
    return config;
  };
  std::vector<LlamaConfig> configs;
  for (const auto member :
       {&LlamaConfig::num_hidden_layers, &LlamaConfig::vocab_size, &LlamaConfig::hidden_size,
        &LlamaConfig::intermediate_size, &LlamaConfig::head_dim})
    configs.push_back(claim(llama(false), member, 2'000'000'000));
  configs.push_back(claim(llama(false), &LlamaConfig::num_hidden_layers, 1));
  save_language_model(folder / "hf", model);
  for (const LlamaConfig& c : configs) {
    std::ofstream(folder / "hf/config.json") << c.to_hf_json();
    refused(folder / "hf");
    // A GGUF file has the vocabulary's size in its tensors alone.
    if (c.vocab_size != 19) continue;
    GgufMetadata metadata;
    c.put_gguf(metadata);
    save_language_model_gguf(folder / "f.gguf", model);
    const GgufFile file(folder / "f.gguf");
    std::vector<GgufWriter::Entry> entries;
    for (const auto& entry : file.entries())
      entries.push_back({entry.name, entry.tensor.type(), entry.tensor.sizes()});
    GgufWriter writer(folder / "claims.gguf", entries, metadata);
    for (const auto& entry : file.entries()) writer.write(entry.tensor);
    writer.commit();
    refused(folder / "claims.gguf");
  }
  save_language_model(folder / "gpt2", Gpt2(gpt2(true)));
  for (const auto member : {&Gpt2Config::n_layer, &Gpt2Config::n_positions, &Gpt2Config::n_inner}) {
    std::ofstream(folder / "gpt2/config.json") << claim(gpt2(true), member, 2'000'000'000).to_hf_json();
    refused(folder / "gpt2");
  }
}

TEST_CASE("models that do not fit together are refused") {
  const tests::TempDir folder;
  save_language_model(folder / "gpt2", Gpt2(gpt2(true)));
  save_language_model(folder / "llama", Llama(llama(true)));
  std::filesystem::copy_file(folder / "llama/config.json", folder / "gpt2/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(load_language_model(folder / "gpt2"), ContainsSubstring("is missing"));
  CHECK_THROWS_AS(load_language_model(folder / "nothing"), IoError);
  struct Other : LanguageModel {
    Parameter& p = param("p", zeros({2, 2}));
    std::int64_t vocab_size() const override { return 2; }
    std::int64_t num_layers() const override { return 1; }
    std::int64_t context_length() const override { return 2; }
    const Parameter& output_weight() const override { return p; }
    PackedTensor none;
    const PackedTensor& packed_output_weight() const override { return none; }
    Tensor features(const Tensor& ids, const TokenContext&) override { return ids; }
  };
  CHECK_THROWS_WITH(hf_sources(Other()), ContainsSubstring("no file format"));
}
