#include "tapestry/nn/models/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <string_view>

#include "tapestry/nn/models/internal/config.h"

namespace tapestry::nn {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uintmax_t kMaxConfig = 16 << 20;

/// config.json, and the errors about it.
class Config {
 public:
  /// `has_rope`: whether the model has RoPE, whose numbers are then read.
  explicit Config(const std::string& path, bool has_rope = false) : path_(path) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (fs::is_directory(path_, error)) path_ = (fs::path(path_) / "config.json").string();
    const fs::file_status status = fs::status(path_, error);
    require(fs::exists(status), "does not exist");
    require(fs::is_regular_file(status), "is not a file");
    const std::uintmax_t size = fs::file_size(path_, error);
    require(!error && size <= kMaxConfig, "cannot be read, or is larger than ", std::int64_t{kMaxConfig},
            " bytes");
    std::ifstream in(path_, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    require(!in.bad() && in.is_open(), "cannot be read");
    root_ = Json::parse(text, nullptr, false);
    require(root_.is_object(), "is not a JSON object");
    if (has_rope) read_rope();
  }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    check<IoError>(ok, "[config] ", path_, ": ", parts...);
  }
  /// Throws if a member has another value than the only one that the models have.
  void expect(const char* name, const Json& only) const {
    const Json* const value = member(root_, name);
    require(!value || *value == only, name, " is ", value ? shown(*value) : "", ", which is not supported; ",
            only.dump(), " is");
  }
  /// Settings that turn a language model into something else.
  void expect_decoder() const {
    for (const char* const flag : {"add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"})
      expect(flag, false);
    for (const char* const part : {"quantization_config", "compression_config", "cross_attention_hidden_size",
                                   "per_layer_config", "sparsity_config"})
      expect(part, nullptr);
    expect("pruned_heads", Json::object());
    static_cast<void>(flag("is_decoder", false));  // either way the mask is causal
  }
  /// Checks the kind of each layer's attention.
  void expect_full_attention() const {
    const Json* const layers = member(root_, "layer_types");
    require(!layers || layers->is_array(), "layer_types is no list");
    if (!layers) return;
    for (const Json& layer : *layers)
      require(layer == "full_attention", "layer_types has ", shown(layer),
              ", which is not supported; \"full_attention\" is");
  }
  std::int64_t integer(const char* name, std::int64_t fallback) const {
    return integer(root_, name, fallback);
  }
  double number(const char* name, double fallback) const { return number(root_, name, fallback); }
  bool flag(const char* name, bool fallback) const {
    const Json* const value = member(root_, name);
    if (!value) return fallback;
    require(value->is_boolean(), name, " is ", shown(*value), ", which is not true or false");
    return value->get<bool>();
  }
  std::string text(const char* name) const { return text(root_, name); }
  /// An id, or the first of a list of ids.
  std::int64_t token(const char* name) const {
    const Json* value = member(root_, name);
    if (value && value->is_array() && !value->empty()) value = &(*value)[0];
    if (!value) return -1;
    require(value->is_number_integer(), name, " is ", shown(*value), ", which is no token id");
    return value->get<std::int64_t>();
  }
  double rope_theta() const { return theta_; }
  const RopeScaling& rope_scaling() const { return scaling_; }
  bool given(const char* name) const { return root_.contains(name); }
  /// Throws if there is a member that none of the calls before asked for. A member that is null, or is
  /// private to the program that wrote the file, asks for nothing.
  void expect_no_more(std::initializer_list<std::string_view> harmless) const {
    // What every model of transformers has: how the file came about, how text is generated, which classes a
    // classifier has, and what the Python objects return.
    static constexpr std::string_view kHarmless =
        " architectures auto_map transformers_version transformers.js_config torch_dtype dtype use_cache "
        " initializer_range pretraining_tp name_or_path tokenizer_class prefix pad_token_id unk_token_id "
        " sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id id2label label2id "
        " num_labels problem_type finetuning_task task_specific_params return_dict use_return_dict "
        " output_attentions output_hidden_states torchscript use_bfloat16 chunk_size_feed_forward "
        " gradient_checkpointing do_sample early_stopping max_length min_length num_beams num_beam_groups "
        " num_return_sequences length_penalty diversity_penalty repetition_penalty "
        " encoder_no_repeat_ngram_size no_repeat_ngram_size bad_words_ids begin_suppress_tokens "
        " suppress_tokens exponential_decay_length_penalty output_scores return_dict_in_generate "
        " remove_invalid_values temperature top_k top_p typical_p tf_legacy_loss is_llama_config "
        " unsloth_fixed unsloth_version attn_implementation max_sequence_length ";
    for (const auto& [name, value] : root_.items()) {
      const std::string_view known = name;
      if (value.is_null() || known.starts_with('_') || used_.contains(known)) continue;
      if (name.find(' ') == name.npos && kHarmless.find(" " + name + " ") != kHarmless.npos) continue;
      require(std::find(harmless.begin(), harmless.end(), known) != harmless.end(), name, " is ",
              shown(value),
              ", a setting that is not supported; remove it if the model computes the same without it");
    }
  }
  /// Calls validate() with errors that name the file.
  template <class C>
  C checked(C config) const {
    try {
      config.validate();
    } catch (const ValueError& error) {
      require(false, error.what());
    }
    return config;
  }

 private:
  static std::string shown(const Json& value) {
    const std::string all = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return all.size() > 100 ? all.substr(0, 100) + "..." : all;
  }
  /// Null if the member is absent or null.
  const Json* member(const Json& object, const char* name) const {
    if (&object == &root_) used_.insert(name);
    const auto found = object.find(name);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* part(const Json& object, const char* name) const {
    const Json* const value = member(object, name);
    if (value) require(value->is_object(), name, " is ", shown(*value), ", which is no object");
    return value;
  }
  std::int64_t integer(const Json& object, const char* name, std::int64_t fallback) const {
    const Json* const value = member(object, name);
    if (!value) return fallback;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
    require(fits, name, " is ", shown(*value), ", which is not an integer");
    return value->get<std::int64_t>();
  }
  double number(const Json& object, const char* name, double fallback) const {
    const Json* const value = member(object, name);
    if (!value) return fallback;
    require(value->is_number(), name, " is ", shown(*value), ", which is not a number");
    return value->get<double>();
  }
  std::string text(const Json& object, const char* name) const {
    const Json* const value = member(object, name);
    if (!value) return {};
    require(value->is_string(), name, " is ", shown(*value), ", which is not a string");
    return value->get<std::string>();
  }

  // RoPE's numbers are members of the file (transformers 4) or of rope_parameters (5). rope_scaling has the
  // scaling alone, and takes the place of rope_parameters if a user adds it to a file of transformers 5.
  void read_rope() {
    const Json *const parameters = part(root_, "rope_parameters"), *scaling = part(root_, "rope_scaling");
    theta_ = number(root_, "rope_theta", 10000);
    if (parameters) scaling_ = scaling_of(*parameters, "rope_parameters");
    if (scaling && !scaling->empty()) {
      const RopeScaling added = scaling_of(*scaling, "rope_scaling");
      require(!parameters || scaling_.type == RopeScalingType::none || same(scaling_, added),
              "rope_parameters and rope_scaling have two scalings; remove one");
      scaling_ = added;
      if (member(*scaling, "rope_theta")) {
        theta_ = number(*scaling, "rope_theta", theta_);
      } else if (parameters) {
        const double theta = number(*parameters, "rope_theta", theta_);
        require(theta == theta_,
                "rope_scaling, which takes the place of rope_parameters, has no rope_theta, and ",
                "that of rope_parameters is ", theta,
                "; write it into rope_scaling too, or the scaling into ", "rope_parameters");
      }
    } else if (parameters) {
      theta_ = number(*parameters, "rope_theta", theta_);
    }
  }
  static bool same(const RopeScaling& a, const RopeScaling& b) {
    return a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
           a.high_freq_factor == b.high_freq_factor &&
           a.original_max_position_embeddings == b.original_max_position_embeddings;
  }
  RopeScaling scaling_of(const Json& rope, const char* where) const {
    RopeScaling scaling;
    const std::string named = text(rope, "rope_type"), older = text(rope, "type");
    require(named.empty() || older.empty() || named == older, where, " has the rope_type \"", named,
            "\" and the type \"", older, "\"; remove one");
    const std::string type = named.empty() ? older : named;
    require(type.empty() || type == "default" || type == "linear" || type == "llama3", "the type of ", where,
            " is \"", type, "\", which is not supported; default, linear and llama3 are");
    require(number(rope, "partial_rotary_factor", 1) == 1, "partial_rotary_factor of ", where,
            " is not 1, which is not supported");
    const bool llama3 = type == "llama3", scales = llama3 || type == "linear";
    constexpr const char* kNumbers[] = {"factor", "low_freq_factor", "high_freq_factor",
                                        "original_max_position_embeddings"};
    for (const auto& [name, value] : rope.items()) {
      if (value.is_null() || name == "rope_type" || name == "type" || name == "rope_theta" ||
          name == "partial_rotary_factor")
        continue;
      const auto* const known = std::find(std::begin(kNumbers), std::end(kNumbers), name);
      require(known != std::end(kNumbers) && (llama3 || (scales && known == kNumbers)), name, " of ", where,
              " is ", shown(value), ", which the type \"", type.empty() ? "default" : type,
              "\" does not have; remove it");
    }
    if (!scales) return scaling;
    for (const char* const name : kNumbers)
      require(member(rope, name) || (!llama3 && name != kNumbers[0]), where, " of the type \"", type,
              "\" has no ", name, "; add it");
    scaling.type = llama3 ? RopeScalingType::llama3 : RopeScalingType::linear;
    scaling.factor = number(rope, "factor", 1);
    if (!llama3) return scaling;
    scaling.low_freq_factor = number(rope, "low_freq_factor", 1);
    scaling.high_freq_factor = number(rope, "high_freq_factor", 1);
    scaling.original_max_position_embeddings = integer(rope, "original_max_position_embeddings", 1);
    return scaling;
  }

  std::string path_;
  Json root_;
  mutable std::set<std::string, std::less<>> used_;  // the members that were asked for
  double theta_ = 10000;
  RopeScaling scaling_;
};

void check_size(const char* name, std::int64_t value) {
  check(value >= 1 && value <= detail::kMostInConfig, "[config] ", name, " is ", value,
        "; it must be from 1 to ", detail::kMostInConfig);
}

void check_token(const char* name, std::int64_t id) {
  check(id >= -1 && id <= detail::kMostInConfig, "[config] ", name, " is ", id,
        "; it must be a token id, or -1 for none");
}

void check_positive(const char* name, double value) {
  check(value > 0 && std::isfinite(value), "[config] ", name, " is ", value, "; it must be above 0");
}

void put_dtype(Json& out, std::optional<DType> dtype) {
  if (!dtype) return;
  const bool known = *dtype == DType::f16 || *dtype == DType::bf16 || *dtype == DType::f64;
  out["torch_dtype"] = !known                  ? "float32"
                       : *dtype == DType::f16  ? "float16"
                       : *dtype == DType::bf16 ? "bfloat16"
                                               : "float64";
}

}  // namespace

// ---- Llama ----

LlamaConfig LlamaConfig::from_hf_json(const std::string& path) {
  const Config file(path, /*has_rope=*/true);
  LlamaConfig c;
  c.model_type = file.text("model_type");
  file.require(c.model_type == "llama" || c.model_type == "qwen2", "model_type is \"", c.model_type,
               "\"; LlamaConfig reads \"llama\" and \"qwen2\"");
  const bool qwen = c.model_type == "qwen2";
  file.expect("hidden_act", "silu");
  file.expect("use_sliding_window", false);
  file.expect("rope_interleaved", false);
  file.expect("use_mrope", false);
  file.expect("partial_rotary_factor", 1.0);
  file.expect("attention_dropout", 0.0);
  file.expect_decoder();
  // Files omit members that have the defaults of transformers.
  c.vocab_size = file.integer("vocab_size", qwen ? 151936 : 32000);
  c.hidden_size = file.integer("hidden_size", 4096);
  c.intermediate_size = file.integer("intermediate_size", qwen ? 22016 : 11008);
  c.num_hidden_layers = file.integer("num_hidden_layers", 32);
  c.num_attention_heads = file.integer("num_attention_heads", 32);
  c.num_key_value_heads = file.integer(
      "num_key_value_heads", qwen && !file.given("num_key_value_heads") ? 32 : c.num_attention_heads);
  file.require(c.num_attention_heads >= 1, "num_attention_heads is ", c.num_attention_heads);
  file.require(c.hidden_size % c.num_attention_heads == 0 || file.integer("head_dim", 0) > 0,
               "hidden_size is ", c.hidden_size, ", which is no multiple of num_attention_heads, ",
               c.num_attention_heads);
  c.head_dim = file.integer("head_dim", c.hidden_size / c.num_attention_heads);
  c.max_position_embeddings = file.integer("max_position_embeddings", qwen ? 32768 : 2048);
  c.rms_norm_eps = file.number("rms_norm_eps", 1e-6);
  c.rope_theta = file.rope_theta();
  c.rope_scaling = file.rope_scaling();
  c.tie_word_embeddings = file.flag("tie_word_embeddings", false);
  c.attention_bias = file.flag("attention_bias", qwen);
  c.attention_output_bias = !qwen && c.attention_bias;
  c.mlp_bias = file.flag("mlp_bias", false);
  file.require(!qwen || (c.attention_bias && !c.mlp_bias),
               "attention_bias is false or mlp_bias is true, and Qwen2 has biases of q, k and v alone");
  c.bos_token_id = file.token("bos_token_id");
  c.eos_token_id = file.token("eos_token_id");
  file.expect_full_attention();
  file.expect_no_more(qwen ? std::initializer_list<std::string_view>{"sliding_window", "max_window_layers"}
                           : std::initializer_list<std::string_view>{});
  return file.checked(c);
}

std::string LlamaConfig::to_hf_json(std::optional<DType> dtype) const {
  validate();
  const bool qwen = model_type == "qwen2";
  check(
      qwen ? attention_bias && !attention_output_bias && !mlp_bias : attention_bias == attention_output_bias,
      "[config] config.json cannot express these biases for ", model_type);
  Json out;
  out["architectures"] = {qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"};
  out["model_type"] = model_type;
  out["vocab_size"] = vocab_size;
  out["hidden_size"] = hidden_size;
  out["intermediate_size"] = intermediate_size;
  out["num_hidden_layers"] = num_hidden_layers;
  out["num_attention_heads"] = num_attention_heads;
  out["num_key_value_heads"] = num_key_value_heads;
  out["head_dim"] = head_dim;
  out["max_position_embeddings"] = max_position_embeddings;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = rms_norm_eps;
  out["rope_theta"] = rope_theta;
  if (rope_scaling.type == RopeScalingType::none) out["rope_scaling"] = nullptr;
  else {
    Json& scaling = out["rope_scaling"];
    scaling["rope_type"] = rope_scaling.type == RopeScalingType::linear ? "linear" : "llama3";
    scaling["factor"] = rope_scaling.factor;
    if (rope_scaling.type == RopeScalingType::llama3) {
      scaling["low_freq_factor"] = rope_scaling.low_freq_factor;
      scaling["high_freq_factor"] = rope_scaling.high_freq_factor;
      scaling["original_max_position_embeddings"] = rope_scaling.original_max_position_embeddings;
    }
  }
  out["tie_word_embeddings"] = tie_word_embeddings;
  put_dtype(out, dtype);
  if (!qwen) {
    out["attention_bias"] = attention_bias;
    out["mlp_bias"] = mlp_bias;
  }
  if (bos_token_id >= 0) out["bos_token_id"] = bos_token_id;
  if (eos_token_id >= 0) out["eos_token_id"] = eos_token_id;
  return out.dump(2) + "\n";
}

void LlamaConfig::validate() const {
  check(model_type == "llama" || model_type == "qwen2", "[config] model_type is \"", model_type,
        "\"; it must be \"llama\" or \"qwen2\"");
  check_size("vocab_size", vocab_size);
  check_size("hidden_size", hidden_size);
  check_size("intermediate_size", intermediate_size);
  check_size("num_hidden_layers", num_hidden_layers);
  check_size("num_attention_heads", num_attention_heads);
  check_size("num_key_value_heads", num_key_value_heads);
  check_size("head_dim", head_dim);
  check_size("max_position_embeddings", max_position_embeddings);
  check(num_attention_heads % num_key_value_heads == 0, "[config] num_attention_heads is ",
        num_attention_heads, ", which is no multiple of num_key_value_heads, ", num_key_value_heads);
  check(head_dim % 2 == 0, "[config] head_dim is ", head_dim, "; RoPE needs an even one");
  check_token("bos_token_id", bos_token_id);
  check_token("eos_token_id", eos_token_id);
  check_positive("rms_norm_eps", rms_norm_eps);
  check_positive("rope_theta", rope_theta);
  check_positive("the factor of rope_scaling", rope_scaling.factor);
  if (rope_scaling.type == RopeScalingType::llama3) {
    check_positive("low_freq_factor", rope_scaling.low_freq_factor);
    check(rope_scaling.high_freq_factor > rope_scaling.low_freq_factor &&
              std::isfinite(rope_scaling.high_freq_factor),
          "[config] high_freq_factor is ", rope_scaling.high_freq_factor,
          "; it must be above low_freq_factor, ", rope_scaling.low_freq_factor);
    check_size("original_max_position_embeddings", rope_scaling.original_max_position_embeddings);
  }
}

std::vector<double> LlamaConfig::rope_factors() const {
  std::vector<double> factors(static_cast<std::size_t>(head_dim / 2), 1.0);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (rope_scaling.type == RopeScalingType::none) break;
    factors[i] = rope_scaling.factor;
    if (rope_scaling.type == RopeScalingType::linear) continue;
    const double frequency =
        std::pow(rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    // How often the pair turns within the context of pre-training.
    const double turns = static_cast<double>(rope_scaling.original_max_position_embeddings) * frequency /
                         (2 * std::numbers::pi);
    const double low = rope_scaling.low_freq_factor, high = rope_scaling.high_freq_factor;
    if (turns > high) factors[i] = 1;
    else if (turns >= low) {
      const double smooth = (turns - low) / (high - low);
      factors[i] = 1 / ((1 - smooth) / rope_scaling.factor + smooth);
    }
  }
  return factors;
}

std::vector<double> LlamaConfig::rope_frequencies() const {
  std::vector<double> frequencies = rope_factors();
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] =
        std::pow(rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)) / frequencies[i];
  return frequencies;
}

// ---- GPT-2 ----

Gpt2Config Gpt2Config::from_hf_json(const std::string& path) {
  const Config file(path);
  const std::string type = file.text("model_type");
  file.require(type == "gpt2", "model_type is \"", type, "\"; Gpt2Config reads \"gpt2\"");
  if (const std::string gelu = file.text("activation_function");
      gelu != "gelu_pytorch_tanh")  // the same function
    file.expect("activation_function", "gelu_new");
  file.expect("scale_attn_weights", true);
  file.expect("scale_attn_by_inverse_layer_idx", false);
  file.expect_decoder();
  Gpt2Config c;
  c.vocab_size = file.integer("vocab_size", c.vocab_size);
  c.n_positions = file.integer("n_positions", c.n_positions);
  c.n_embd = file.integer("n_embd", c.n_embd);
  c.n_layer = file.integer("n_layer", c.n_layer);
  c.n_head = file.integer("n_head", c.n_head);
  file.require(c.n_embd <= detail::kMostInConfig, "n_embd is ", c.n_embd);
  c.n_inner = file.integer("n_inner", 4 * c.n_embd);
  c.layer_norm_epsilon = file.number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  c.embd_pdrop = file.number("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = file.number("attn_pdrop", c.attn_pdrop);
  c.resid_pdrop = file.number("resid_pdrop", c.resid_pdrop);
  c.bos_token_id = file.token("bos_token_id");
  c.eos_token_id = file.token("eos_token_id");
  file.require(file.integer("n_ctx", c.n_positions) == c.n_positions, "n_ctx is not n_positions, ",
               c.n_positions, "; remove it");
  // reorder_and_upcast_attn changes the rounding in f16 alone, and the summary is that of a classifier.
  file.expect_no_more({"reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
                       "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  return file.checked(c);
}

std::string Gpt2Config::to_hf_json(std::optional<DType> dtype) const {
  validate();
  Json out;
  out["architectures"] = {"GPT2LMHeadModel"};
  out["model_type"] = "gpt2";
  out["vocab_size"] = vocab_size;
  out["n_positions"] = n_positions;
  out["n_embd"] = n_embd;
  out["n_layer"] = n_layer;
  out["n_head"] = n_head;
  out["n_inner"] = n_inner;
  out["activation_function"] = "gelu_new";
  out["layer_norm_epsilon"] = layer_norm_epsilon;
  out["tie_word_embeddings"] = tie_word_embeddings;
  put_dtype(out, dtype);
  out["embd_pdrop"] = embd_pdrop;
  out["attn_pdrop"] = attn_pdrop;
  out["resid_pdrop"] = resid_pdrop;
  if (bos_token_id >= 0) out["bos_token_id"] = bos_token_id;
  if (eos_token_id >= 0) out["eos_token_id"] = eos_token_id;
  return out.dump(2) + "\n";
}

void Gpt2Config::validate() const {
  check_size("vocab_size", vocab_size);
  check_size("n_positions", n_positions);
  check_size("n_embd", n_embd);
  check_size("n_layer", n_layer);
  check_size("n_head", n_head);
  check_size("n_inner", n_inner);
  check(n_embd % n_head == 0, "[config] n_embd is ", n_embd, ", which is no multiple of n_head, ", n_head);
  check_token("bos_token_id", bos_token_id);
  check_token("eos_token_id", eos_token_id);
  check_positive("layer_norm_epsilon", layer_norm_epsilon);
  for (const double p : {embd_pdrop, attn_pdrop, resid_pdrop})
    check(p >= 0 && p <= 1, "[config] a probability of dropout is ", p, "; it must be from 0 to 1");
}

// ---- OLMoE ----

OlmoeConfig OlmoeConfig::from_hf_json(const std::string& path) {
  const Config file(path, /*has_rope=*/true);
  const std::string type = file.text("model_type");
  file.require(type == "olmoe", "model_type is \"", type, "\"; OlmoeConfig reads \"olmoe\"");
  file.expect("hidden_act", "silu");
  file.expect("attention_dropout", 0.0);
  file.expect("clip_qkv", nullptr);
  file.expect_decoder();
  file.require(file.rope_scaling().type == RopeScalingType::none,
               "RoPE is scaled, which is not supported for this model");
  OlmoeConfig c;
  c.vocab_size = file.integer("vocab_size", c.vocab_size);
  c.hidden_size = file.integer("hidden_size", c.hidden_size);
  c.intermediate_size = file.integer("intermediate_size", 2048);  // the default of transformers
  c.num_hidden_layers = file.integer("num_hidden_layers", c.num_hidden_layers);
  c.num_attention_heads = file.integer("num_attention_heads", c.num_attention_heads);
  c.num_key_value_heads = file.integer("num_key_value_heads", c.num_attention_heads);
  file.require(c.num_attention_heads >= 1, "num_attention_heads is ", c.num_attention_heads);
  file.require(file.integer("head_dim", c.head_dim()) == c.head_dim(),
               "head_dim is not hidden_size / num_attention_heads, ", c.head_dim());
  c.max_position_embeddings = file.integer("max_position_embeddings", c.max_position_embeddings);
  c.rms_norm_eps = file.number("rms_norm_eps", c.rms_norm_eps);
  c.rope_theta = file.rope_theta();
  c.tie_word_embeddings = file.flag("tie_word_embeddings", false);
  c.attention_bias = file.flag("attention_bias", false);
  c.num_experts = file.integer("num_experts", c.num_experts);
  c.num_experts_per_tok = file.integer("num_experts_per_tok", c.num_experts_per_tok);
  c.norm_topk_prob = file.flag("norm_topk_prob", false);
  c.output_router_logits = file.flag("output_router_logits", false);
  c.router_aux_loss_coef = file.number("router_aux_loss_coef", c.router_aux_loss_coef);
  c.bos_token_id = file.token("bos_token_id");
  c.eos_token_id = file.given("eos_token_id") ? file.token("eos_token_id") : c.eos_token_id;
  file.expect_full_attention();
  file.expect_no_more({});
  return file.checked(c);
}

std::string OlmoeConfig::to_hf_json(std::optional<DType> dtype) const {
  validate();
  Json out;
  out["architectures"] = {"OlmoeForCausalLM"};
  out["model_type"] = "olmoe";
  out["vocab_size"] = vocab_size;
  out["hidden_size"] = hidden_size;
  out["intermediate_size"] = intermediate_size;
  out["num_hidden_layers"] = num_hidden_layers;
  out["num_attention_heads"] = num_attention_heads;
  out["num_key_value_heads"] = num_key_value_heads;
  out["max_position_embeddings"] = max_position_embeddings;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = rms_norm_eps;
  out["rope_theta"] = rope_theta;
  out["tie_word_embeddings"] = tie_word_embeddings;
  put_dtype(out, dtype);
  out["attention_bias"] = attention_bias;
  out["num_experts"] = num_experts;
  out["num_experts_per_tok"] = num_experts_per_tok;
  out["norm_topk_prob"] = norm_topk_prob;
  out["output_router_logits"] = output_router_logits;
  out["router_aux_loss_coef"] = router_aux_loss_coef;
  if (bos_token_id >= 0) out["bos_token_id"] = bos_token_id;
  out["eos_token_id"] = eos_token_id >= 0 ? Json(eos_token_id) : Json(nullptr);  // absent means the default
  return out.dump(2) + "\n";
}

void OlmoeConfig::validate() const {
  check_size("vocab_size", vocab_size);
  check_size("hidden_size", hidden_size);
  check_size("intermediate_size", intermediate_size);
  check_size("num_hidden_layers", num_hidden_layers);
  check_size("num_attention_heads", num_attention_heads);
  check_size("num_key_value_heads", num_key_value_heads);
  check_size("max_position_embeddings", max_position_embeddings);
  check_size("num_experts", num_experts);
  check_size("num_experts_per_tok", num_experts_per_tok);
  check(hidden_size % num_attention_heads == 0 && head_dim() % 2 == 0, "[config] hidden_size is ",
        hidden_size, " and num_attention_heads ", num_attention_heads,
        "; RoPE needs heads of an equal and even number of features");
  check(num_attention_heads % num_key_value_heads == 0, "[config] num_attention_heads is ",
        num_attention_heads, ", which is no multiple of num_key_value_heads, ", num_key_value_heads);
  check(num_experts_per_tok <= num_experts, "[config] num_experts_per_tok is ", num_experts_per_tok,
        "; there are ", num_experts, " experts");
  check(router_aux_loss_coef >= 0 && std::isfinite(router_aux_loss_coef), "[config] router_aux_loss_coef is ",
        router_aux_loss_coef, "; it must not be negative");
  check_token("bos_token_id", bos_token_id);
  check_token("eos_token_id", eos_token_id);
  check_positive("rms_norm_eps", rms_norm_eps);
  check_positive("rope_theta", rope_theta);
}

std::string model_type_of(const std::string& path) {
  char magic[4] = {};
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) std::ifstream(path, std::ios::binary).read(magic, 4);
  const bool gguf = std::string_view(magic, 4) == "GGUF";
  const std::string type =
      gguf ? GgufFile(path).metadata().string("general.architecture") : Config(path).text("model_type");
  check<IoError>(type == "llama" || type == "qwen2" || type == "gpt2" || (type == "olmoe" && !gguf),
                 "[config] ", path, ": the model is \"", type,
                 "\", which is not supported; llama, qwen2 and gpt2 are", gguf ? "" : ", and olmoe");
  return type;
}

}  // namespace tapestry::nn
