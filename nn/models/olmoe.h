#pragma once
// OLMoE (Muennighoff et al. 2024), whose feed-forward networks are mixtures of experts. Modules have the
// names of Hugging Face's OlmoeForCausalLM. The weights of a layer's experts are two parameters, as in
// transformers 5: mlp.experts.gate_up_proj and mlp.experts.down_proj. Files have a matrix per expert, such as
// mlp.experts.3.up_proj.weight; loading and saving translate.
//
//   nn::Olmoe model({.hidden_size = 256, .intermediate_size = 128, .num_hidden_layers = 4,
//                    .num_attention_heads = 4, .num_key_value_heads = 4, .output_router_logits = true});
//   Tensor loss = model(ids, {.targets = next_ids});
#include <memory>
#include <vector>

#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/moe.h"
#include "tapestry/nn/layers/norm.h"
#include "tapestry/nn/layers/rope.h"
#include "tapestry/nn/models/config.h"
#include "tapestry/nn/models/language_model.h"

namespace tapestry::nn {

/// What a block knows of the call. The default is a sequence from position 0, in which a token sees itself
/// and all earlier ones; then a block is a module of one tensor, which may be a stage of a pipeline.
struct OlmoeBlockContext {
  KeyValueCache* cache = nullptr;
  RotaryEmbedding::Angles angles = {};  ///< of the tokens' positions
  Tensor mask = {}, documents = {};     ///< as LanguageModel::resolved() gives them
  Routing* routing = nullptr;           ///< receives where the block's router sent the tokens
};

/// Grouped-query attention. Queries and keys of all heads together pass through a norm before they are
/// rotated.
class OlmoeAttention : public Callable<OlmoeAttention>, public SequenceModule {
 public:
  OlmoeAttention(const OlmoeConfig& config, std::shared_ptr<RotaryEmbedding> rotary);
  Tensor forward(const Tensor& x) override { return forward(x, OlmoeBlockContext()); }
  Tensor forward(const Tensor& x, const OlmoeBlockContext& how);
  Heads heads() const override {
    return {q_proj.options.out_features / head_dim_, k_proj.options.out_features / head_dim_, true};
  }
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  RMSNorm &q_norm, &k_norm;

 private:
  std::int64_t head_dim_;
  std::shared_ptr<RotaryEmbedding> rotary_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)).
class OlmoeDecoderLayer : public Callable<OlmoeDecoderLayer> {
 public:
  OlmoeDecoderLayer(const OlmoeConfig& config, std::shared_ptr<RotaryEmbedding> rotary);
  Tensor forward(const Tensor& x) override { return forward(x, OlmoeBlockContext()); }
  Tensor forward(const Tensor& x, const OlmoeBlockContext& how);
  OlmoeAttention& self_attn;
  MixtureOfExperts& mlp;
  RMSNorm &input_layernorm, &post_attention_layernorm;
};

/// The model without its head: ids (N, L) give features (N, L, hidden_size).
class OlmoeModel : public Callable<OlmoeModel> {
 public:
  explicit OlmoeModel(const OlmoeConfig& config);
  Tensor forward(const Tensor& ids) override { return forward(ids, TokenContext()); }
  /// `routings`, one for each layer, receives where the routers sent the tokens.
  Tensor forward(const Tensor& ids, const TokenContext& how, std::vector<Routing>* routings = nullptr);
  RotaryEmbedding& rotary_emb;  ///< the layers share it
  Embedding& embed_tokens;
  ModuleList& layers;  ///< of OlmoeDecoderLayer
  RMSNorm& norm;

 private:
  explicit OlmoeModel(const OlmoeConfig& config, const std::shared_ptr<RotaryEmbedding>& rotary);
};

/// In training mode with config.output_router_logits, a call with targets adds to the loss
/// router_aux_loss_coef times the balancing loss of all layers together, as OlmoeForCausalLM does. In
/// evaluation mode the loss is the cross-entropy alone, unlike there, so that losses can be compared.
class Olmoe : public LanguageModel {
 public:
  using Options = OlmoeConfig;
  /// Initialises as Hugging Face does: weights from a normal distribution of standard deviation 0.02, biases
  /// 0, norms 1. Throws ValueError for a configuration that OlmoeConfig::validate() refuses.
  explicit Olmoe(const OlmoeConfig& config);
  std::string type_name() const override { return "Olmoe"; }
  std::int64_t vocab_size() const override { return config.vocab_size; }
  std::int64_t num_layers() const override { return config.num_hidden_layers; }
  std::int64_t context_length() const override { return config.max_position_embeddings; }
  const Parameter& output_weight() const override {
    return lm_head ? lm_head->weight : model.embed_tokens.weight;
  }
  const PackedTensor& packed_output_weight() const override {
    return lm_head ? lm_head->packed_weight() : model.embed_tokens.packed_weight();
  }

  const OlmoeConfig config;
  OlmoeModel& model;
  Linear* const lm_head;  ///< null if tie_word_embeddings: the head's weight is the embedding's

 protected:
  Tensor features(const Tensor& ids, const TokenContext& how) override;
  Tensor auxiliary_loss() override;

 private:
  PerReplica<Tensor> auxiliary_loss_;
};

}  // namespace tapestry::nn
