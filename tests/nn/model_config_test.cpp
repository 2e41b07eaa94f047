#include "tapestry/nn/models/config.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <span>

#include "tapestry/autograd/ops/creation.h"
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

  CHECK(parsed<Gpt2Config>(replaced(kGpt2, "gelu_new", "gelu_pytorch_tanh")).n_inner == 3072);

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
  for (const RopeScaling& scaling :
       {RopeScaling{RopeScalingType::llama3, 8, 1, 4, 16}, RopeScaling{RopeScalingType::llama3, 32, 2.0},
        RopeScaling{RopeScalingType::llama3, 3.5, 0.5, 7.25, 1000}}) {
    c.rope_scaling = scaling;
    save_gguf(dir / "f", c, weights);
    CHECK(LlamaConfig::from_gguf(GgufFile(dir / "f")).to_hf_json() == c.to_hf_json());
  }
  // Files of llama.cpp's converter have the factors alone.
  const auto foreign = [&](const RopeScaling& scaling, const char* key, const GgufValue& value) {
    c.rope_scaling = scaling;
    save_gguf(dir / "f", c, weights);
    const GgufFile file(dir / "f");
    GgufMetadata metadata;
    for (const auto& [name, kept] : file.metadata().entries())
      if (name != "tapestry.rope_scaling.llama3") metadata.set(name, kept);
    metadata.set(key, value);
    std::vector<GgufWriter::Entry> entries;
    for (const auto& entry : file.entries())
      entries.push_back({entry.name, entry.tensor.type(), entry.tensor.sizes()});
    GgufWriter writer(dir / "g", entries, metadata);
    for (const auto& entry : file.entries()) writer.write(entry.tensor);
    writer.commit();
    return LlamaConfig::from_gguf(GgufFile(dir / "g")).rope_frequencies();
  };
  const RopeScaling short_context{RopeScalingType::llama3, 8, 1, 4, 16},
      odd{RopeScalingType::llama3, 32, 2.0};
  const std::vector<double> found = foreign(short_context, "general.name", std::string("x"));
  CHECK(found == c.rope_frequencies());
  CHECK_THROWS_WITH(foreign(odd, "general.name", std::string("x")), ContainsSubstring("not supported"));
  for (const std::vector<double>& bad : {std::vector<double>{8, 1, 4},
                                         {8, 1, 4, 32},
                                         {8, 1, 4, 1e300},
                                         {8, 4, 1, 16},
                                         {-8, 1, 4, 16},
                                         {NAN, 1, 4, 16}})
    CHECK_THROWS_AS(foreign(short_context, "tapestry.rope_scaling.llama3", GgufArray(bad)), IoError);
  c.model_type = "qwen2";
  CHECK_THROWS_WITH(save_gguf(dir / "none", c, weights), ContainsSubstring("save_hf() writes it"));
  CHECK_FALSE(std::filesystem::exists(dir / "none"));

  // The tokens of a padded vocabulary are as many as the rows of the embedding, which llama.cpp expects.
  c.model_type = "llama", c.rope_scaling = {};
  SaveGgufOptions options;
  options.metadata.set("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>{"a", "[PAD6]", "c"}));
  options.metadata.set("tokenizer.ggml.scores", GgufArray(std::vector<float>{1, 2, 3}));
  save_gguf(dir / "f", c, weights, options);
  const GgufMetadata padded = GgufFile(dir / "f").metadata();
  CHECK(padded.strings("tokenizer.ggml.tokens") ==
        std::vector<std::string>{"a", "[PAD6]", "c", "[PAD3]", "[PAD4]", "[PAD5]", "[PAD6]_", "[PAD7]"});
  CHECK(padded.integers("tokenizer.ggml.token_type") == std::vector<std::int64_t>{1, 1, 1, 5, 5, 5, 5, 5});
  options.metadata.set("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>(9, "a")));
  CHECK_THROWS_WITH(save_gguf(dir / "f", c, weights, options),
                    ContainsSubstring("9 tokens, but the model knows 8"));
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

TEST_CASE("each key of config.json is honoured, known to be harmless, or refused by name") {
  struct Setting {
    const char *key, *value;  // a value that differs from the file's and from the default
  };
  // The members of transformers' LlamaConfig, Qwen2Config, GPT2Config and PreTrainedConfig, those of older
  // versions and of related models, and an invented one.
  constexpr Setting kCommon[] = {{"vocab_size", "90"},
                                 {"bos_token_id", "7"},
                                 {"eos_token_id", "[8, 9]"},
                                 {"tie_word_embeddings", "false"},
                                 {"is_decoder", "7"},
                                 {"is_encoder_decoder", "true"},
                                 {"add_cross_attention", "true"},
                                 {"cross_attention_hidden_size", "64"},
                                 {"tie_encoder_decoder", "true"},
                                 {"pruned_heads", R"({"0": [1]})"},
                                 {"quantization_config", R"({"bits": 4})"},
                                 {"compression_config", "{}"},
                                 {"per_layer_config", R"({"0": {}})"},
                                 {"sliding_window_pattern", "2"},
                                 {"attention_multiplier", "0.5"},
                                 {"embedding_multiplier", "12"},
                                 {"residual_multiplier", "0.2"},
                                 {"logits_scaling", "8"},
                                 {"logit_scale", "0.06"},
                                 {"clip_qkv", "8"},
                                 {"final_logit_softcapping", "30"},
                                 {"attn_logit_softcapping", "50"},
                                 {"query_pre_attn_scalar", "256"},
                                 {"original_max_position_embeddings", "64"},
                                 {"num_local_experts", "8"},
                                 {"qk_norm", "true"},
                                 {"no_rope_layers", "[0]"},
                                 {"tie_last_hidden_states", "false"},
                                 {"a_made_up_setting", "1"}};
  constexpr Setting kLlama[] = {{"hidden_size", "1152"},
                                {"intermediate_size", "90"},
                                {"num_hidden_layers", "3"},
                                {"num_attention_heads", "18"},
                                {"num_key_value_heads", "9"},
                                {"head_dim", "32"},
                                {"hidden_act", R"("gelu")"},
                                {"rms_norm_eps", "1e-3"},
                                {"max_position_embeddings", "90"},
                                {"rope_theta", "90"},
                                {"attention_bias", "true"},
                                {"mlp_bias", "true"},
                                {"attention_dropout", "0.1"},
                                {"rope_interleaved", "true"},
                                {"partial_rotary_factor", "0.5"},
                                {"use_mrope", "true"},
                                {"use_sliding_window", "true"},
                                {"sliding_window", "64"},
                                {"max_window_layers", "3"},
                                {"layer_types", R"(["sliding_attention"])"},
                                {"rope_scaling", R"({"type": "linear", "factor": 2})"},
                                {"rope_parameters", R"({"rope_type": "default", "rope_theta": 77})"}};
  constexpr Setting kOfGpt2[] = {{"n_positions", "90"},
                                 {"n_ctx", "90"},
                                 {"n_embd", "1536"},
                                 {"n_layer", "3"},
                                 {"n_head", "6"},
                                 {"n_inner", "90"},
                                 {"activation_function", R"("relu")"},
                                 {"resid_pdrop", "0.3"},
                                 {"embd_pdrop", "0.3"},
                                 {"attn_pdrop", "0.3"},
                                 {"layer_norm_epsilon", "1e-3"},
                                 {"scale_attn_weights", "false"},
                                 {"scale_attn_by_inverse_layer_idx", "true"},
                                 {"hidden_size", "90"},
                                 {"num_hidden_layers", "3"},
                                 {"num_attention_heads", "3"},
                                 {"rope_theta", "7"},
                                 {"rope_scaling", R"({"type": "linear", "factor": 2})"}};
  constexpr const char* kHarmless[] = {"architectures",
                                       "auto_map",
                                       "transformers_version",
                                       "torch_dtype",
                                       "dtype",
                                       "use_cache",
                                       "initializer_range",
                                       "pretraining_tp",
                                       "pad_token_id",
                                       "id2label",
                                       "label2id",
                                       "num_labels",
                                       "problem_type",
                                       "task_specific_params",
                                       "return_dict",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "chunk_size_feed_forward",
                                       "max_length",
                                       "temperature",
                                       "top_k",
                                       "top_p",
                                       "do_sample",
                                       "_name_or_path",
                                       "_attn_implementation_autoset"};
  const auto with = [](const std::string& json, const char* key, const char* value) {
    const std::size_t end = json.rfind('}');  // of two members of one name the last one counts
    return json.substr(0, end) + ", \"" + key + "\": " + value + "}";
  };
  const auto check_settings = [&](auto parse, const char* json, std::span<const Setting> settings) {
    const std::string before = parse(json);
    for (const Setting& s : settings) {
      CAPTURE(s.key, s.value);
      std::string after;
      try {
        after = parse(with(json, s.key, s.value));
        CHECK(after != before);
      } catch (const IoError& error) {
        // A size that fits to nothing else is refused by the name of another one.
        CHECK_THAT(error.what(), ContainsSubstring(s.key));
      }
      if (std::string(json).find("\"" + std::string(s.key) + "\"") == std::string::npos)
        CHECK(parse(with(json, s.key, "null")) == before);
    }
    for (const char* const key : kHarmless)
      for (const char* const value : {"null", "1", R"("x")"}) CHECK(parse(with(json, key, value)) == before);
  };
  const auto llama = [](const std::string& json) {
    const LlamaConfig c = parsed<LlamaConfig>(json);
    return c.to_hf_json() + std::to_string(c.rope_frequencies()[1]);
  };
  const auto gpt2 = [](const std::string& json) { return parsed<Gpt2Config>(json).to_hf_json(); };
  constexpr const char* kPlain = R"({"model_type": "llama", "num_attention_heads": 9, "hidden_size": 576,
      "num_key_value_heads": 3, "tie_word_embeddings": true})";
  check_settings(llama, kPlain, kCommon);
  check_settings(llama, kPlain, kLlama);
  check_settings(gpt2, kGpt2, kCommon);
  check_settings(gpt2, kGpt2, kOfGpt2);
  // Qwen2's are in the file although they have no effect.
  CHECK(parsed<LlamaConfig>(with(kQwen2, "max_window_layers", "21")).to_hf_json() ==
        parsed<LlamaConfig>(kQwen2).to_hf_json());
  CHECK_THROWS_WITH(parsed<LlamaConfig>(with(kQwen2, "attention_bias", "false")),
                    ContainsSubstring("attention_bias"));
  CHECK(parsed<LlamaConfig>(with(kQwen2, "layer_types", R"(["full_attention"])")).num_hidden_layers == 24);
}

TEST_CASE("RoPE's numbers are found wherever a version of transformers writes them") {
  const auto file = [](const std::string& members) {
    return parsed<LlamaConfig>(
        R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1)" +
        members + "}");
  };
  const auto second = [](double theta, double factor = 1) { return std::pow(theta, -2.0 / 64) / factor; };
  const auto frequency = [&](const std::string& members) { return file(members).rope_frequencies()[1]; };
  const std::string linear = R"({"type": "linear", "factor": 4})", five = R"(, "rope_parameters": )";
  CHECK(frequency("") == second(1e4));
  CHECK(frequency(R"(, "rope_theta": 500)") == second(500));
  CHECK(frequency(R"(, "rope_theta": 500)" + five + R"({"rope_type": "default"})") == second(500));
  CHECK(frequency(R"(, "rope_theta": 500)" + five + R"({"rope_type": "default", "rope_theta": 700})") ==
        second(700));
  CHECK(frequency(five + R"({"rope_type": "linear", "factor": 4, "rope_theta": 700})") == second(700, 4));
  // A user adds rope_scaling to a file of transformers 5, which then reads that alone.
  const std::string both = five + R"({"rope_type": "default", "rope_theta": 700}, "rope_scaling": )";
  CHECK(frequency(both + R"({"type": "linear", "factor": 4, "rope_theta": 700})") == second(700, 4));
  CHECK(frequency(R"(, "rope_theta": 700)" + both + linear) == second(700, 4));
  CHECK(frequency(both + "{}") == second(700));
  CHECK(frequency(both + "null") == second(700));
  for (
      const auto& [members, why] : std::vector<std::pair<std::string, std::string>>{
          {both + linear, "rope_scaling, which takes the place of rope_parameters, has no rope_theta"},
          {both + R"({"type": "yarn", "factor": 4})", "\"yarn\""},
          {five + R"({"rope_type": "linear", "factor": 2}, "rope_scaling": )" + linear, "two scalings"},
          {R"(, "rope_scaling": {"factor": 4})", "factor of rope_scaling is 4"},
          {R"(, "rope_scaling": {"type": "linear"})", "has no factor"},
          {R"(, "rope_scaling": {"type": "linear", "factor": 4, "attention_factor": 2})", "attention_factor"},
          {R"(, "rope_scaling": {"type": "linear", "factor": 4, "low_freq_factor": 2})", "low_freq_factor"},
          {R"(, "rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 4})", "remove one"},
          {R"(, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4})",
           "has no original_max_position_embeddings"},
          {R"(, "rope_scaling": {"type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 64})",
           "has no factor"},
          {five + R"({"full_attention": {"rope_theta": 500}})", "full_attention"},
          {five + R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"}}) {
    CAPTURE(members);
    CHECK_THROWS_AS(file(members), IoError);
    CHECK_THROWS_WITH(file(members), ContainsSubstring(why));
  }
}

TEST_CASE("each key of a GGUF file is honoured, known to be harmless, or refused by name") {
  const TempDir dir;
  LlamaConfig llama;
  llama.vocab_size = 8, llama.hidden_size = 64, llama.head_dim = llama.intermediate_size = 32;
  llama.num_attention_heads = llama.num_key_value_heads = 4, llama.num_hidden_layers = 1;
  Gpt2Config gpt2;
  gpt2.vocab_size = 8, gpt2.n_embd = 64, gpt2.n_head = 4, gpt2.n_layer = 1;
  const auto read = [&](const auto& config, const std::string& key, const std::optional<GgufValue>& value) {
    GgufMetadata metadata;
    config.put_gguf(metadata);
    if (value) metadata.set(key, *value);
    GgufWriter writer(dir / "f", {{"token_embd.weight", BlockType::f32, {8, 64}}}, metadata);
    writer.write(zeros({8, 64}));
    writer.commit();
    if constexpr (std::is_same_v<std::decay_t<decltype(config)>, LlamaConfig>) {
      const LlamaConfig c = LlamaConfig::from_gguf(GgufFile(dir / "f"));
      return c.to_hf_json() + std::to_string(c.rope_frequencies()[1]);
    } else {
      return Gpt2Config::from_gguf(GgufFile(dir / "f")).to_hf_json();
    }
  };
  struct Setting {
    const char* key;
    GgufValue value;
  };
  const auto n = [](std::uint32_t value) { return GgufValue(value); };
  // The keys {arch}.* of Python's gguf, and an invented one.
  const Setting settings[] = {{"context_length", n(99)},
                              {"embedding_length", n(128)},
                              {"block_count", n(9)},
                              {"feed_forward_length", n(99)},
                              {"attention.head_count", n(8)},
                              {"attention.layer_norm_rms_epsilon", 0.5f},
                              {"attention.layer_norm_epsilon", 0.5f},
                              {"attention.head_count_kv", n(2)},
                              {"attention.key_length", n(64)},
                              {"attention.value_length", n(64)},
                              {"attention.causal", false},
                              {"attention.max_alibi_bias", 8.0f},
                              {"attention.clamp_kqv", 8.0f},
                              {"attention.scale", 0.5f},
                              {"attention.output_scale", 0.5f},
                              {"attention.sliding_window", n(64)},
                              {"attention.sliding_window_pattern", n(2)},
                              {"attention.shared_kv_layers", n(1)},
                              {"attention.q_lora_rank", n(8)},
                              {"attention.kv_lora_rank", n(8)},
                              {"attention.temperature_length", n(8)},
                              {"attention.group_norm_groups", n(2)},
                              {"attention.key_length_swa", n(32)},
                              {"rope.dimension_count", n(16)},
                              {"rope.dimension_sections", n(2)},
                              {"rope.freq_base", 99.0f},
                              {"rope.freq_base_swa", 99.0f},
                              {"rope.scaling.type", std::string("yarn")},
                              {"rope.scaling.factor", 4.0f},
                              {"rope.scale_linear", 4.0f},
                              {"rope.scaling.attn_factor", 0.5f},
                              {"rope.scaling.alpha", 8.0f},
                              {"rope.scaling.yarn_log_multiplier", 0.1f},
                              {"rope.scaling.yarn_ext_factor", 0.1f},
                              {"rope.scaling.yarn_beta_fast", 16.0f},
                              {"expert_count", n(8)},
                              {"expert_used_count", n(2)},
                              {"expert_feed_forward_length", n(8)},
                              {"leading_dense_block_count", n(1)},
                              {"use_parallel_residual", true},
                              {"pooling_type", n(1)},
                              {"logit_scale", 0.5f},
                              {"residual_scale", 0.5f},
                              {"embedding_scale", 8.0f},
                              {"attn_logit_softcapping", 50.0f},
                              {"final_logit_softcapping", 30.0f},
                              {"nextn_predict_layers", n(1)},
                              {"interleave_moe_layer_step", n(2)},
                              {"decoder_block_count", n(1)},
                              {"a_made_up_setting", n(1)}};
  const auto check_settings = [&](const auto& config, const std::string& prefix) {
    const std::string before = read(config, "", {});
    for (const Setting& s : settings) {
      const std::string key = prefix + s.key;
      CAPTURE(key);
      std::string after;
      try {
        after = read(config, key, s.value);
        CHECK(after != before);
      } catch (const IoError& error) {
        // Keys of another length than values are refused by the name of the latter.
        CHECK_THAT(error.what(), ContainsSubstring(s.key) || ContainsSubstring("attention.value_length"));
      }
    }
    const Setting harmless[] = {{"rope.scaling.finetuned", true},
                                {"rope.scaling.original_context_length", n(64)},
                                {"tensor_data_layout", std::string("x")},
                                {"expert_count", n(0)},
                                {"attention.causal", true},
                                {"rope.scaling.attn_factor", 1.0f}};
    for (const Setting& s : harmless) CHECK(read(config, prefix + s.key, s.value) == before);
    CHECK(read(config, "general.name", std::string("x")) == before);
    CHECK(read(config, "another.program", n(1)) == before);
    CHECK_THROWS_WITH(read(config, "general.type", std::string("adapter")),
                      ContainsSubstring("general.type"));
    CHECK_THROWS_WITH(read(config, "split.count", n(2)), ContainsSubstring("split.count"));
  };
  check_settings(llama, "llama.");
  check_settings(gpt2, "gpt2.");
  llama.rope_scaling = {RopeScalingType::linear, 4};
  CHECK_THROWS_WITH(read(llama, "llama.rope.scale_linear", 2.0f), ContainsSubstring("scale_linear is 2"));
  CHECK(read(llama, "llama.rope.scale_linear", 4.0f) == read(llama, "", {}));
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
