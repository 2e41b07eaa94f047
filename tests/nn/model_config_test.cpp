#include "tapestry/nn/models/config.h"

#include <cmath>

#include "tapestry/nn/models/weights.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::nn;
using tests::TempDir;
using tests::write_file;

namespace {

// The configuration files of the published models, without members that say nothing about the model.
constexpr const char* kSmolLm2 = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
  "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
  "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
  "vocab_size": 49152})";
constexpr const char* kLlama31 = R"({"attention_bias": false, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})";
constexpr const char* kQwen2 = R"({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kGpt2 = R"({"activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256,
  "embd_pdrop": 0.1, "eos_token_id": 50256, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
  "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})";

template <class C>
C parsed(const std::string& json) {
  const TempDir dir;
  write_file(dir / "config.json", json);
  return C::from_hf_json(dir.path().string());
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("the configurations of published models") {
  const LlamaConfig smol = parsed<LlamaConfig>(kSmolLm2);
  CHECK(smol.hidden_size == 576);
  CHECK(smol.head_dim == 64);
  CHECK(smol.num_key_value_heads == 3);
  CHECK(smol.rope_theta == 100000);
  CHECK(smol.rms_norm_eps == 1e-5);
  CHECK(smol.tie_word_embeddings);
  CHECK_FALSE(smol.attention_bias);
  CHECK(smol.eos_token_id == 2);
  CHECK(smol.rope_frequencies()[0] == 1);
  CHECK(std::fabs(smol.rope_frequencies()[31] - std::pow(1e5, -62.0 / 64)) < 1e-18);

  const LlamaConfig llama = parsed<LlamaConfig>(kLlama31);
  CHECK(llama.rope_scaling.type == RopeScalingType::llama3);
  CHECK(llama.eos_token_id == 128001);
  const auto golden = load_safetensors(tests::source_path("tests/golden/core_gguf.safetensors")).tensors;
  const double* const expected = golden.at("llama3_frequencies").data<double>();
  const std::vector<double> frequencies = llama.rope_frequencies();
  REQUIRE(frequencies.size() == 64);
  for (std::size_t i = 0; i < 64; ++i) CHECK(std::fabs(frequencies[i] / expected[i] - 1) < 1e-12);

  const LlamaConfig qwen = parsed<LlamaConfig>(kQwen2);
  CHECK(qwen.attention_bias);
  CHECK_FALSE(qwen.attention_output_bias);
  CHECK(qwen.head_dim == 64);

  const Gpt2Config gpt2 = parsed<Gpt2Config>(kGpt2);
  CHECK(gpt2.n_inner == 3072);
  CHECK(gpt2.tie_word_embeddings);
  CHECK(gpt2.embd_pdrop == 0.1);

  // transformers 5 writes rope_parameters instead.
  const std::string five =
      replaced(replaced(kLlama31, "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0, "),
               "\"rope_theta\": 500000.0, \"tie", "\"tie");
  CHECK(parsed<LlamaConfig>(five).rope_frequencies() == frequencies);
}

TEST_CASE("a configuration that is written is read again") {
  for (const char* const json : {kSmolLm2, kLlama31, kQwen2}) {
    const LlamaConfig c = parsed<LlamaConfig>(json), again = parsed<LlamaConfig>(c.to_hf_json());
    CHECK(again.to_hf_json() == c.to_hf_json());
    CHECK(again.rope_frequencies() == c.rope_frequencies());
    CHECK(again.attention_bias == c.attention_bias);
    CHECK(again.eos_token_id == c.eos_token_id);
    CHECK(again.model_type == c.model_type);
  }
  const LlamaConfig linear = parsed<LlamaConfig>(
      replaced(kSmolLm2, "\"rope_scaling\": null", R"("rope_scaling": {"type": "linear", "factor": 4})"));
  CHECK(parsed<LlamaConfig>(linear.to_hf_json()).rope_frequencies()[0] == 0.25);
  CHECK(parsed<Gpt2Config>(parsed<Gpt2Config>(kGpt2).to_hf_json()).to_hf_json() ==
        parsed<Gpt2Config>(kGpt2).to_hf_json());
}

TEST_CASE("scaled frequencies survive GGUF, which has them as a tensor or as a factor") {
  const TempDir dir;
  LlamaConfig c;
  c.vocab_size = 8;
  c.hidden_size = 64;
  c.intermediate_size = 32;
  c.num_hidden_layers = 1;
  c.num_attention_heads = c.num_key_value_heads = 1;
  c.head_dim = 64;
  c.tie_word_embeddings = true;
  c.rope_theta = 500000;
  std::vector<TensorSource> weights;
  const std::pair<const char*, Shape> shapes[] = {{"model.embed_tokens.weight", {8, 64}},
                                                  {"model.norm.weight", {64}},
                                                  {"model.layers.0.input_layernorm.weight", {64}},
                                                  {"model.layers.0.post_attention_layernorm.weight", {64}},
                                                  {"model.layers.0.self_attn.q_proj.weight", {64, 64}},
                                                  {"model.layers.0.self_attn.k_proj.weight", {64, 64}},
                                                  {"model.layers.0.self_attn.v_proj.weight", {64, 64}},
                                                  {"model.layers.0.self_attn.o_proj.weight", {64, 64}},
                                                  {"model.layers.0.mlp.gate_proj.weight", {32, 64}},
                                                  {"model.layers.0.mlp.up_proj.weight", {32, 64}},
                                                  {"model.layers.0.mlp.down_proj.weight", {64, 32}}};
  for (const auto& [name, sizes] : shapes)
    weights.push_back({name, DType::f32, sizes, [sizes = sizes] {
                         Tensor t = empty(sizes);
                         for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = 1;
                         return t;
                       }});
  for (const RopeScaling& scaling :
       {RopeScaling{}, RopeScaling{RopeScalingType::linear, 4}, RopeScaling{RopeScalingType::llama3, 32}}) {
    c.rope_scaling = scaling;
    save_gguf(dir / "f", c, weights);
    const LlamaConfig back = LlamaConfig::from_gguf(GgufFile(dir / "f"));
    CHECK(back.rope_scaling.type == scaling.type);
    CHECK(back.rope_frequencies() == c.rope_frequencies());
    CHECK(ModelWeights(dir / "f").entries().size() == weights.size());
  }
  c.rope_scaling = {RopeScalingType::llama3, 32, 2.0};
  save_gguf(dir / "f", c, weights);
  CHECK_THROWS_WITH(LlamaConfig::from_gguf(GgufFile(dir / "f")),
                    ContainsSubstring("other scalings are not supported"));
}

TEST_CASE("configurations that are broken or of another model are refused by name") {
  const auto refused = [](const std::string& json, const std::string& why) {
    CAPTURE(why);
    CHECK_THROWS_AS(parsed<LlamaConfig>(json), IoError);
    CHECK_THROWS_WITH(parsed<LlamaConfig>(json),
                      ContainsSubstring("config.json: ") && ContainsSubstring(why));
  };
  const auto with = [](const std::string& from, const std::string& to) {
    return replaced(kSmolLm2, from, to);
  };
  refused("", "is not a JSON object");
  refused("[]", "is not a JSON object");
  refused(std::string(100'000, '['), "is not a JSON object");
  refused("{}", "model_type is \"\"");
  refused(with("\"llama\"", "\"mamba\""), "model_type is \"mamba\"");
  refused(with("\"silu\"", "\"gelu\""), "hidden_act is \"gelu\", which is not supported");
  refused(with("576", "\"576\""), "hidden_size is \"576\", which is not an integer");
  refused(with("576", "577"), "577, which is no multiple of num_attention_heads, 9");
  refused(with("576", "-9"), "hidden_size is -9");
  refused(with("576", "99999999999999999999"), "hidden_size is");
  refused(with("\"num_attention_heads\": 9", "\"num_attention_heads\": 0"), "num_attention_heads is 0");
  refused(with("\"num_key_value_heads\": 3", "\"num_key_value_heads\": 2"),
          "no multiple of num_key_value_heads, 2");
  refused(with("\"num_key_value_heads\": 3", "\"num_key_value_heads\": 0"), "num_key_value_heads is 0");
  refused(with("1e-05", "0"), "rms_norm_eps is 0");
  refused(with("1e-05", "true"), "rms_norm_eps is true, which is not a number");
  refused(with("100000", "-1"), "rope_theta is -1");
  refused(with("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1"), "is not true or false");
  refused(with("\"rope_interleaved\": false", "\"rope_interleaved\": true"), "rope_interleaved is true");
  refused(with("\"rope_scaling\": null", R"("rope_scaling": {"type": "yarn"})"),
          "\"yarn\", which is not supported");
  refused(with("\"rope_scaling\": null", R"("rope_scaling": [])"), "which is no object");
  refused(with("\"rope_scaling\": null", R"("rope_scaling": {"type": "linear", "factor": 0})"), "factor");
  refused(with("\"vocab_size\": 49152", "\"vocab_size\": 0"), "vocab_size is 0");
  refused(with("\"vocab_size\": 49152", R"("quantization_config": {"bits": 4})"), "quantization_config");
  CHECK_THROWS_WITH(LlamaConfig::from_hf_json("/nonexistent"), ContainsSubstring("does not exist"));
  CHECK_THROWS_WITH(parsed<Gpt2Config>(kSmolLm2), ContainsSubstring("Gpt2Config reads \"gpt2\""));
  CHECK_THROWS_WITH(parsed<Gpt2Config>(replaced(kGpt2, "\"n_head\": 12", "\"n_head\": 7")),
                    ContainsSubstring("no multiple of n_head, 7"));
  CHECK_THROWS_WITH(parsed<Gpt2Config>(replaced(kGpt2, "\"n_embd\": 768", "\"n_embd\": 9223372036854775807")),
                    ContainsSubstring("n_embd is"));
}

TEST_CASE("mutated config.json files give a configuration or an IoError") {
  const TempDir dir;
  for (const char* const json : {kLlama31, kQwen2}) {
    const int calls = tests::for_mutations<IoError>(json, [&](const std::string& mutated) {
      write_file(dir / "config.json", mutated);
      const LlamaConfig c = LlamaConfig::from_hf_json(dir / "config.json");
      if (c.head_dim < 10'000) static_cast<void>(c.rope_frequencies());
      static_cast<void>(c.to_hf_json());
    });
    CHECK(calls > 100);
  }
}
