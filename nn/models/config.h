#pragma once
// The configurations of language models, from the files of Hugging Face (config.json) and of llama.cpp
// (GGUF). The names of the members are those of config.json.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/gguf.h"

namespace tapestry::nn {

enum class RopeScalingType : std::uint8_t {
  none,
  linear,  ///< all frequencies are divided by `factor`
  llama3,  ///< low frequencies are divided by `factor`, high ones are not, with a transition between them
};

/// How RoPE's frequencies change for contexts longer than those of pre-training.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;      ///< of llama3
  std::int64_t original_max_position_embeddings = 8192;  ///< of llama3
};

/// Llama, SmolLM2, Llama 3 and Qwen2.
struct LlamaConfig {
  std::string model_type = "llama";  ///< "llama" or "qwen2"
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t max_position_embeddings = 2048;  ///< the context length
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool tie_word_embeddings = false;
  bool attention_bias = false;         ///< biases of q_proj, k_proj and v_proj
  bool attention_output_bias = false;  ///< bias of o_proj; Qwen2 has biases of the other three alone
  bool mlp_bias = false;               ///< biases of gate_proj, up_proj and down_proj
  std::int64_t bos_token_id = -1, eos_token_id = -1;  ///< -1 if there is none

  /// Reads config.json, or the folder that has it. Throws IoError if the file is missing or broken, or asks
  /// for what this struct does not have, such as another activation or a sliding window; the message names
  /// it.
  static LlamaConfig from_hf_json(const std::string& path);
  /// Reads the metadata of a GGUF file whose architecture is llama or qwen2, and finds in the names of its
  /// tensors which biases there are and whether the embeddings are tied. Throws IoError.
  static LlamaConfig from_gguf(const GgufFile& file);
  /// The text of config.json. `dtype` is that of the weights, which transformers then computes in.
  std::string to_hf_json(std::optional<DType> dtype = {}) const;
  /// Adds the metadata of the architecture to that of a GGUF file.
  void put_gguf(GgufMetadata& metadata) const;
  /// Throws ValueError if numbers are out of range or do not fit together.
  void validate() const;

  /// RoPE's frequencies, f64 [head_dim / 2]: pair i turns by frequency i times the position. The scaling is
  /// included. Source of llama3: modeling_rope_utils.py of transformers.
  std::vector<double> rope_frequencies() const;
  /// By what the scaling divides each frequency: the tensor rope_freqs.weight of a GGUF file.
  std::vector<double> rope_factors() const;
};

/// GPT-2.
struct Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;  ///< the context length
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_inner = 3072;  ///< the width of the MLP
  double layer_norm_epsilon = 1e-5;
  bool tie_word_embeddings = true;
  double embd_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1;
  std::int64_t bos_token_id = 50256, eos_token_id = 50256;  ///< -1 if there is none

  /// As LlamaConfig's. A GGUF file has no dropout: the probabilities are 0.
  static Gpt2Config from_hf_json(const std::string& path);
  static Gpt2Config from_gguf(const GgufFile& file);
  std::string to_hf_json(std::optional<DType> dtype = {}) const;
  void put_gguf(GgufMetadata& metadata) const;
  void validate() const;
};

/// OLMoE.
struct OlmoeConfig {
  std::int64_t vocab_size = 50304;
  std::int64_t hidden_size = 2048;
  std::int64_t intermediate_size = 1024;  ///< of an expert
  std::int64_t num_hidden_layers = 16;
  std::int64_t num_attention_heads = 16;
  std::int64_t num_key_value_heads = 16;
  std::int64_t max_position_embeddings = 4096;  ///< the context length
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< biases of q_proj, k_proj, v_proj and o_proj
  std::int64_t num_experts = 64;
  std::int64_t num_experts_per_tok = 8;
  bool norm_topk_prob = false;         ///< divides the weights of a token's experts by their sum
  bool output_router_logits = false;   ///< whether training adds the balancing loss; see Olmoe
  double router_aux_loss_coef = 0.01;  ///< the factor of that loss
  std::int64_t bos_token_id = -1, eos_token_id = 50279;  ///< -1 if there is none

  std::int64_t head_dim() const { return hidden_size / num_attention_heads; }
  /// As LlamaConfig's. Clipped queries, keys and values, and scaled RoPE are refused.
  static OlmoeConfig from_hf_json(const std::string& path);
  std::string to_hf_json(std::optional<DType> dtype = {}) const;
  void validate() const;
};

/// "llama", "qwen2", "gpt2" or "olmoe": the model_type of config.json, or the architecture of a GGUF file,
/// which cannot be "olmoe". `path` is a GGUF file, a config.json, or the folder that has it. Throws IoError
/// for another model.
std::string model_type_of(const std::string& path);

}  // namespace tapestry::nn
