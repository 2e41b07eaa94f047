// The configurations in the metadata of GGUF files: read and written.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>

#include "tapestry/nn/models/config.h"
#include "tapestry/nn/models/internal/config.h"

namespace tapestry::nn {
namespace {

/// The first size of a matrix.
std::int64_t rows_of(const GgufFile& file, const std::string& tensor) {
  const Shape& sizes = file.packed(tensor).sizes();
  if (sizes.size() != 2)
    file.metadata().broken("tensor \"", tensor, "\" has the shape ", sizes, ", but it must be a matrix");
  return sizes[0];
}

/// A number whose shortest decimal form is that of the stored f32: 1e-5, and not 9.99999975e-06, so that a
/// configuration that goes through GGUF stays the same.
double decimal(const GgufMetadata& metadata, const std::string& key, std::optional<double> fallback = {}) {
  const GgufValue* const value = metadata.find(key);
  if (!value && fallback) return *fallback;
  const float* const stored = value ? std::get_if<float>(value) : nullptr;
  if (!stored || !std::isfinite(*stored)) return metadata.number(key);
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof digits, *stored);
  double out = 0;
  std::from_chars(digits, written.ptr, out);
  return out;
}

/// Throws if a key of the architecture asks for what the models do not have. `read` are the keys that the
/// configuration is read from, without the prefix.
void check_keys(const GgufMetadata& m, const std::string& prefix,
                std::initializer_list<std::string_view> read) {
  // Models do not need these keys. The tensors themselves show the size of the vocabulary and their layout.
  // The keys of rope.scaling tell how a scaling came about, or belong to YaRN alone.
  constexpr std::string_view kHarmless[] = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned",
                                            "rope.scaling.original_context_length"};
  struct Only {
    std::string_view key;
    double value;
  };
  constexpr Only kOnly[] = {{"expert_count", 0},
                            {"expert_used_count", 0},
                            {"attention.sliding_window", 0},
                            {"attention.max_alibi_bias", 0},
                            {"attention.clamp_kqv", 0},
                            {"rope.scaling.attn_factor", 1}};
  for (const auto& [key, value] : m.entries()) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (std::find(read.begin(), read.end(), name) != read.end() ||
        std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless))
      continue;
    const auto* const only =
        std::find_if(std::begin(kOnly), std::end(kOnly), [&](const Only& o) { return o.key == name; });
    const bool fits = only != std::end(kOnly) ? m.number(key) == only->value
                                              : name == "attention.causal" && m.flag(key, true);
    if (!fits) m.broken("metadata \"", key, "\" asks for what is not supported");
  }
  if (m.string("general.type", "model") != "model")
    m.broken("general.type is \"", m.string("general.type"), "\"; only a whole model can be read");
  if (m.integer("split.count", 1) > 1)
    m.broken("is one of ", m.integer("split.count"),
             " parts (split.count); merge them with llama-gguf-split");
}

/// How RoPE is scaled: by llama.cpp's convention, a factor without a type is linear.
RopeScaling scaling_of_keys(const GgufMetadata& m, const std::string& prefix) {
  const std::string type = m.string(prefix + "rope.scaling.type", "linear");
  if (type != "none" && type != "linear")
    m.broken(prefix, "rope.scaling.type is \"", type, "\", which is not supported; linear is");
  if (type == "none") return {};
  const double older = decimal(m, prefix + "rope.scale_linear", 0.0),
               factor = decimal(m, prefix + "rope.scaling.factor", older);
  if (older != 0 && older != factor)
    m.broken(prefix, "rope.scaling.factor is ", factor, ", and ", prefix, "rope.scale_linear is ", older);
  if (factor == 0 || factor == 1) return {};
  return {RopeScalingType::linear, factor};
}

void put_tokens(GgufMetadata& metadata, std::int64_t begin, std::int64_t end) {
  if (begin >= 0) metadata.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(begin));
  if (end >= 0) metadata.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(end));
}

template <class C>
C checked(const GgufFile& file, C config) {
  try {
    config.validate();
  } catch (const ValueError& error) {
    file.metadata().broken(error.what());
  }
  return config;
}

/// The key of llama3's factor, low_freq_factor, high_freq_factor and original_max_position_embeddings, all
/// f64. llama.cpp needs only the factors of the frequencies, and ignores this key.
constexpr const char* kLlama3Key = "tapestry.rope_scaling.llama3";

/// The parameters of llama3 scaling. Files of llama.cpp's converter have only the factors that they give, so
/// parameters with these factors are sought: first those of published models.
RopeScaling scaling_of_factors(const GgufFile& file, LlamaConfig config) {
  const Tensor stored = file.packed("rope_freqs.weight").unpack();
  const float* const factors = stored.numel() > 0 ? stored.data<float>() : nullptr;
  if (stored.numel() != config.head_dim / 2)
    file.metadata().broken("tensor \"rope_freqs.weight\" has ", stored.numel(),
                           " elements, but half a head has ", config.head_dim / 2);
  const float greatest = *std::max_element(factors, factors + stored.numel());
  const auto fits = [&](const RopeScaling& scaling) {
    config.rope_scaling = scaling;
    const std::vector<double> expected = config.rope_factors();
    for (std::int64_t i = 0; i < stored.numel(); ++i) {
      const double e = expected[static_cast<std::size_t>(i)];
      if (!(std::fabs(static_cast<double>(factors[i]) - e) <= 1e-4 * e)) return false;
    }
    return true;
  };
  if (const GgufValue* const value = file.metadata().find(kLlama3Key)) {
    const auto* const array = std::get_if<GgufArray>(value);
    const auto* const p = array ? std::get_if<std::vector<double>>(array) : nullptr;
    if (!p || p->size() != 4 || !((*p)[3] >= 1 && (*p)[3] <= static_cast<double>(detail::kMostInConfig)))
      file.metadata().broken(kLlama3Key, " does not have the four parameters of Llama 3's scaling");
    const RopeScaling scaling{RopeScalingType::llama3, (*p)[0], (*p)[1], (*p)[2],
                              static_cast<std::int64_t>((*p)[3])};
    config.rope_scaling = scaling;
    checked(file, config);
    if (!fits(scaling))
      file.metadata().broken("tensor \"rope_freqs.weight\" is not what ", kLlama3Key, " gives");
    return scaling;
  }
  if (greatest == 1) return {};
  if (const RopeScaling published{RopeScalingType::llama3, static_cast<double>(greatest)}; fits(published))
    return published;
  for (std::int64_t original = 16; original <= (1 << 20); original *= 2) {
    const RopeScaling scaling{RopeScalingType::llama3, static_cast<double>(greatest), 1, 4, original};
    if (fits(scaling)) return scaling;
  }
  file.metadata().broken(
      "tensor \"rope_freqs.weight\" has other factors than Llama 3's scaling with low_freq_factor 1 "
      "and high_freq_factor 4; other scalings are not supported");
}

}  // namespace

// ---- Llama ----

LlamaConfig LlamaConfig::from_gguf(const GgufFile& file) {
  const GgufMetadata& m = file.metadata();
  LlamaConfig c;
  c.model_type = m.string("general.architecture");
  if (c.model_type != "llama" && c.model_type != "qwen2")
    m.broken("general.architecture is \"", c.model_type, "\"; LlamaConfig reads \"llama\" and \"qwen2\"");
  const std::string prefix = c.model_type + ".";
  if (m.integer(prefix + "expert_count", 0) != 0)
    m.broken("is a mixture of experts (", prefix, "expert_count), which is not supported");
  check_keys(m, prefix,
             {"embedding_length", "feed_forward_length", "block_count", "context_length",
              "attention.head_count", "attention.head_count_kv", "attention.key_length",
              "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
              "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"});
  c.vocab_size = rows_of(file, "token_embd.weight");
  c.hidden_size = m.integer(prefix + "embedding_length");
  c.intermediate_size = m.integer(prefix + "feed_forward_length");
  c.num_hidden_layers = m.integer(prefix + "block_count");
  c.num_attention_heads = m.integer(prefix + "attention.head_count");
  c.num_key_value_heads = m.integer(prefix + "attention.head_count_kv", c.num_attention_heads);
  if (c.num_attention_heads < 1) m.broken(prefix, "attention.head_count is ", c.num_attention_heads);
  c.head_dim = m.integer(prefix + "attention.key_length", c.hidden_size / c.num_attention_heads);
  const std::int64_t values = m.integer(prefix + "attention.value_length", c.head_dim);
  if (values != c.head_dim)
    m.broken(prefix, "attention.value_length is ", values, ", but keys have ", c.head_dim,
             " elements; heads of two sizes are not supported");
  const std::int64_t rotated = m.integer(prefix + "rope.dimension_count", c.head_dim);
  if (rotated != c.head_dim)
    m.broken(prefix, "rope.dimension_count is ", rotated, ", but heads have ", c.head_dim,
             " elements; RoPE of a part of a head is not supported");
  c.max_position_embeddings = m.integer(prefix + "context_length");
  c.rms_norm_eps = decimal(m, prefix + "attention.layer_norm_rms_epsilon");
  c.rope_theta = decimal(m, prefix + "rope.freq_base", 10000.0);
  c.tie_word_embeddings = !file.find("output.weight");
  c.attention_bias = file.find("blk.0.attn_q.bias");
  c.attention_output_bias = file.find("blk.0.attn_output.bias");
  c.mlp_bias = file.find("blk.0.ffn_gate.bias");
  c.bos_token_id = m.integer("tokenizer.ggml.bos_token_id", -1);
  c.eos_token_id = m.integer("tokenizer.ggml.eos_token_id", -1);
  c.rope_scaling = scaling_of_keys(m, prefix);
  c = checked(file, c);
  if (file.find("rope_freqs.weight")) {
    if (c.rope_scaling.type != RopeScalingType::none)
      m.broken("has two scalings of RoPE: rope_freqs.weight and ", prefix, "rope.scaling.type");
    c.rope_scaling = scaling_of_factors(file, c);
  }
  return c;
}

void LlamaConfig::put_gguf(GgufMetadata& metadata) const {
  validate();
  const std::string prefix = model_type + ".";
  const auto put = [&](const char* key, std::int64_t value) {
    metadata.set(prefix + key, static_cast<std::uint32_t>(value));
  };
  metadata.set("general.architecture", model_type);
  put("block_count", num_hidden_layers);
  put("context_length", max_position_embeddings);
  put("embedding_length", hidden_size);
  put("feed_forward_length", intermediate_size);
  put("attention.head_count", num_attention_heads);
  put("attention.head_count_kv", num_key_value_heads);
  if (head_dim * num_attention_heads != hidden_size) {
    put("attention.key_length", head_dim);
    put("attention.value_length", head_dim);
  }
  metadata.set(prefix + "rope.freq_base", static_cast<float>(rope_theta));
  metadata.set(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(rms_norm_eps));
  put("vocab_size", vocab_size);
  put("rope.dimension_count", head_dim);
  if (rope_scaling.type == RopeScalingType::linear) {
    metadata.set(prefix + "rope.scaling.type", std::string("linear"));
    metadata.set(prefix + "rope.scaling.factor", static_cast<float>(rope_scaling.factor));
  }
  if (rope_scaling.type == RopeScalingType::llama3)
    metadata.set(kLlama3Key,
                 GgufArray(std::vector<double>{
                     rope_scaling.factor, rope_scaling.low_freq_factor, rope_scaling.high_freq_factor,
                     static_cast<double>(rope_scaling.original_max_position_embeddings)}));
  put_tokens(metadata, bos_token_id, eos_token_id);
}

// ---- GPT-2 ----

Gpt2Config Gpt2Config::from_gguf(const GgufFile& file) {
  const GgufMetadata& m = file.metadata();
  const std::string& type = m.string("general.architecture");
  if (type != "gpt2") m.broken("general.architecture is \"", type, "\"; Gpt2Config reads \"gpt2\"");
  Gpt2Config c;
  check_keys(m, "gpt2.",
             {"context_length", "embedding_length", "block_count", "attention.head_count",
              "attention.head_count_kv", "feed_forward_length", "attention.layer_norm_epsilon"});
  c.vocab_size = rows_of(file, "token_embd.weight");
  c.n_positions = m.integer("gpt2.context_length");
  c.n_embd = m.integer("gpt2.embedding_length");
  c.n_layer = m.integer("gpt2.block_count");
  c.n_head = m.integer("gpt2.attention.head_count");
  if (m.integer("gpt2.attention.head_count_kv", c.n_head) != c.n_head)
    m.broken("gpt2.attention.head_count_kv is not gpt2.attention.head_count, ", c.n_head);
  c.n_inner = m.integer("gpt2.feed_forward_length");
  c.layer_norm_epsilon = decimal(m, "gpt2.attention.layer_norm_epsilon");
  c.tie_word_embeddings = !file.find("output.weight");
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  c.bos_token_id = m.integer("tokenizer.ggml.bos_token_id", -1);
  c.eos_token_id = m.integer("tokenizer.ggml.eos_token_id", -1);
  return checked(file, c);
}

void Gpt2Config::put_gguf(GgufMetadata& metadata) const {
  validate();
  const auto put = [&](const char* key, std::int64_t value) {
    metadata.set(key, static_cast<std::uint32_t>(value));
  };
  metadata.set("general.architecture", std::string("gpt2"));
  put("gpt2.block_count", n_layer);
  put("gpt2.context_length", n_positions);
  put("gpt2.embedding_length", n_embd);
  put("gpt2.feed_forward_length", n_inner);
  put("gpt2.attention.head_count", n_head);
  metadata.set("gpt2.attention.layer_norm_epsilon", static_cast<float>(layer_norm_epsilon));
  put_tokens(metadata, bos_token_id, eos_token_id);
}

}  // namespace tapestry::nn
