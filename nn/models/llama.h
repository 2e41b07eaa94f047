#pragma once
// Llama (Touvron et al. 2023) and the models that share its architecture: SmolLM2, Llama 2 and 3, Qwen2.
// Modules and parameters have the names of Hugging Face's LlamaForCausalLM, so its safetensors load by name.
//
//   nn::Llama model(nn::LlamaConfig::from_hf_json("SmolLM2-135M"));
//   nn::load_model("SmolLM2-135M/model.safetensors", model);
//   Tensor logits = model(ids);                              // (N, L) -> (N, L, vocab_size)
//   Tensor loss = model(ids, {.targets = next_ids});
#include <memory>

#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/norm.h"
#include "tapestry/nn/layers/rope.h"
#include "tapestry/nn/models/config.h"
#include "tapestry/nn/models/language_model.h"

namespace tapestry::nn {

/// What a block knows of the call. The default is a sequence from position 0, in which a token sees itself
/// and all earlier ones; then a block is a module of one tensor, which may be a stage of a pipeline.
struct LlamaBlockContext {
  KeyValueCache* cache = nullptr;
  RotaryEmbedding::Angles angles = {};  ///< of the tokens' positions
  Tensor mask = {}, documents = {};     ///< as LanguageModel::resolved() gives them
};

/// Grouped-query attention (Ainslie et al. 2023): num_key_value_heads keys and values serve
/// num_attention_heads queries. Queries and keys are rotated by their positions.
class LlamaAttention : public Callable<LlamaAttention>, public SequenceModule {
 public:
  LlamaAttention(const LlamaConfig& config, std::shared_ptr<RotaryEmbedding> rotary);
  Tensor forward(const Tensor& x) override { return forward(x, LlamaBlockContext()); }
  Tensor forward(const Tensor& x, const LlamaBlockContext& how);
  std::int64_t head_dim() const { return head_dim_; }
  Heads heads() const override {
    return {q_proj.options.out_features / head_dim_, k_proj.options.out_features / head_dim_, true};
  }
  Linear &q_proj, &k_proj, &v_proj, &o_proj;

 private:
  std::int64_t head_dim_;
  std::shared_ptr<RotaryEmbedding> rotary_;
};

/// SwiGLU (Shazeer 2020): down_proj(silu(gate_proj(x)) up_proj(x)).
class LlamaMlp : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config);
  Tensor forward(const Tensor& x) override;
  Linear &gate_proj, &up_proj, &down_proj;
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaDecoderLayer : public Callable<LlamaDecoderLayer> {
 public:
  LlamaDecoderLayer(const LlamaConfig& config, std::shared_ptr<RotaryEmbedding> rotary);
  Tensor forward(const Tensor& x) override { return forward(x, LlamaBlockContext()); }
  Tensor forward(const Tensor& x, const LlamaBlockContext& how);
  LlamaAttention& self_attn;
  LlamaMlp& mlp;
  RMSNorm &input_layernorm, &post_attention_layernorm;
};

/// The model without its head: ids (N, L) give features (N, L, hidden_size).
class LlamaModel : public Callable<LlamaModel> {
 public:
  explicit LlamaModel(const LlamaConfig& config);
  Tensor forward(const Tensor& ids) override { return forward(ids, TokenContext()); }
  Tensor forward(const Tensor& ids, const TokenContext& how);
  RotaryEmbedding& rotary_emb;  ///< the layers share it
  Embedding& embed_tokens;
  ModuleList& layers;  ///< of LlamaDecoderLayer
  RMSNorm& norm;

 private:
  explicit LlamaModel(const LlamaConfig& config, const std::shared_ptr<RotaryEmbedding>& rotary);
};

class Llama : public LanguageModel {
 public:
  using Options = LlamaConfig;
  /// Initialises as Hugging Face does: weights from a normal distribution of standard deviation 0.02, biases
  /// 0, norms 1. Throws ValueError for a configuration that LlamaConfig::validate() refuses.
  explicit Llama(const LlamaConfig& config);
  std::string type_name() const override { return "Llama"; }
  std::int64_t vocab_size() const override { return config.vocab_size; }
  std::int64_t num_layers() const override { return config.num_hidden_layers; }
  std::int64_t context_length() const override { return config.max_position_embeddings; }
  const Parameter& output_weight() const override {
    return lm_head ? lm_head->weight : model.embed_tokens.weight;
  }
  const PackedTensor& packed_output_weight() const override {
    return lm_head ? lm_head->packed_weight() : model.embed_tokens.packed_weight();
  }

  const LlamaConfig config;
  LlamaModel& model;
  Linear* const lm_head;  ///< null if tie_word_embeddings: the head's weight is the embedding's

 protected:
  Tensor features(const Tensor& ids, const TokenContext& how) override;
};

}  // namespace tapestry::nn
