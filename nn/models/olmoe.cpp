#include "tapestry/nn/models/olmoe.h"

#include <tuple>
#include <utility>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/layers/fused.h"
#include "tapestry/nn/models/internal/angles.h"

namespace tapestry::nn {

namespace {

LinearOptions olmoe_linear(std::int64_t in, std::int64_t out, bool bias) {
  return {.in_features = in, .out_features = out, .bias = bias};
}
RMSNormOptions olmoe_norm(const OlmoeConfig& c, std::int64_t features) {
  return {.normalized_shape = {features}, .eps = c.rms_norm_eps};
}
std::shared_ptr<RotaryEmbedding> olmoe_rotary(const OlmoeConfig& c) {
  return make<RotaryEmbedding>(RotaryEmbeddingOptions{
      .dim = c.head_dim(), .max_seq_len = c.max_position_embeddings, .base = c.rope_theta});
}
MixtureOfExpertsOptions olmoe_experts(const OlmoeConfig& c) {
  return {.embed_dim = c.hidden_size,
          .hidden_dim = c.intermediate_size,
          .num_experts = c.num_experts,
          .top_k = c.num_experts_per_tok,
          .norm_topk_prob = c.norm_topk_prob};
}
const OlmoeConfig& olmoe_checked(const OlmoeConfig& c) {
  c.validate();
  return c;
}

}  // namespace

OlmoeAttention::OlmoeAttention(const OlmoeConfig& c, std::shared_ptr<RotaryEmbedding> rotary)
    : q_proj(add<Linear>("q_proj", olmoe_linear(c.hidden_size, c.hidden_size, c.attention_bias))),
      k_proj(add<Linear>(
          "k_proj", olmoe_linear(c.hidden_size, c.num_key_value_heads * c.head_dim(), c.attention_bias))),
      v_proj(add<Linear>(
          "v_proj", olmoe_linear(c.hidden_size, c.num_key_value_heads * c.head_dim(), c.attention_bias))),
      o_proj(add<Linear>("o_proj", olmoe_linear(c.hidden_size, c.hidden_size, c.attention_bias))),
      q_norm(add<RMSNorm>("q_norm", olmoe_norm(c, c.hidden_size))),
      k_norm(add<RMSNorm>("k_norm", olmoe_norm(c, c.num_key_value_heads * c.head_dim()))),
      head_dim_(c.head_dim()),
      rotary_(std::move(rotary)) {}

Tensor OlmoeAttention::forward(const Tensor& x, const OlmoeBlockContext& how) {
  const auto heads = [&](const Tensor& t) {  // (N, L, features) -> (N, heads, L, head_dim)
    return t.unflatten(-1, {-1, head_dim_}).transpose(1, 2);
  };
  const DividedSequence* const sequence = divided(how.cache);
  const RotaryEmbedding::Angles angles =
      how.angles.cos.defined() ? how.angles : detail::angles_of(*rotary_, how.cache, sequence, x);
  const Tensor q = rotary_embedding(heads(q_norm(q_proj(x))), angles.cos, angles.sin);
  Tensor k = rotary_embedding(heads(k_norm(k_proj(x))), angles.cos, angles.sin), v = heads(v_proj(x));
  if (how.cache) std::tie(k, v) = how.cache->append(k, v);
  return o_proj(causal_attention(q, k, v, {how.mask, how.documents, sequence}).transpose(1, 2).flatten(2));
}

OlmoeDecoderLayer::OlmoeDecoderLayer(const OlmoeConfig& c, std::shared_ptr<RotaryEmbedding> rotary)
    : self_attn(add<OlmoeAttention>("self_attn", c, std::move(rotary))),
      mlp(add<MixtureOfExperts>("mlp", olmoe_experts(c))),
      input_layernorm(add<RMSNorm>("input_layernorm", olmoe_norm(c, c.hidden_size))),
      post_attention_layernorm(add<RMSNorm>("post_attention_layernorm", olmoe_norm(c, c.hidden_size))) {}

Tensor OlmoeDecoderLayer::forward(const Tensor& x, const OlmoeBlockContext& how) {
  const auto [h, normed] = add_norm(post_attention_layernorm, x, self_attn(input_layernorm(x), how));
  return h + mlp(normed, how.routing);
}

OlmoeModel::OlmoeModel(const OlmoeConfig& c) : OlmoeModel(c, olmoe_rotary(olmoe_checked(c))) {}
OlmoeModel::OlmoeModel(const OlmoeConfig& c, const std::shared_ptr<RotaryEmbedding>& rotary)
    : rotary_emb(*rotary),
      embed_tokens(
          add<Embedding>("embed_tokens", {.num_embeddings = c.vocab_size, .embedding_dim = c.hidden_size})),
      layers(add<ModuleList>("layers")),
      norm(add<RMSNorm>("norm", olmoe_norm(c, c.hidden_size))) {
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers.append<OlmoeDecoderLayer>(c, rotary);
  add("rotary_emb", rotary);
}

Tensor OlmoeModel::forward(const Tensor& ids, const TokenContext& how, std::vector<Routing>* routings) {
  Tensor x = embed_tokens(ids);
  OlmoeBlockContext block{.mask = how.mask, .documents = how.documents};
  if (how.positions.defined()) block.angles = rotary_emb.angles(how.positions, x.dtype());
  if (routings) routings->resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    block.cache = how.cache ? &how.cache->layer(index) : nullptr;
    block.routing = routings ? &(*routings)[i] : nullptr;
    OlmoeDecoderLayer& layer = layers.get<OlmoeDecoderLayer>(index);
    x = how.checkpoint ? checkpoint(layer, x, block) : layer(x, block);
  }
  return norm(x);
}

Olmoe::Olmoe(const OlmoeConfig& c)
    : config(olmoe_checked(c)),
      model(add<OlmoeModel>("model", c)),
      lm_head(c.tie_word_embeddings
                  ? nullptr
                  : &add<Linear>("lm_head", olmoe_linear(c.hidden_size, c.vocab_size, /*bias=*/false))) {
  init_language_model(*this);
}

Tensor Olmoe::features(const Tensor& ids, const TokenContext& how) {
  const bool balances = how.targets.defined() && is_training() && config.output_router_logits;
  std::vector<Routing> routings;
  Tensor x = model(ids, how, balances ? &routings : nullptr);
  Tensor& loss = *auxiliary_loss_;
  loss = Tensor();
  if (!balances) return x;
  // As load_balancing_loss_func() of transformers: the means are over the tokens of all layers, and the parts
  // of an expert are not divided by top_k.
  std::vector<Tensor> scores;
  Tensor counts;
  for (const Routing& r : routings) {
    scores.push_back(r.scores);
    counts = counts.defined() ? counts + r.counts() : r.counts();
  }
  loss = load_balancing_loss(cat(scores, 0), counts) *
         (config.router_aux_loss_coef * static_cast<double>(config.num_experts_per_tok));
  return x;
}

Tensor Olmoe::auxiliary_loss() { return std::exchange(*auxiliary_loss_, Tensor()); }

}  // namespace tapestry::nn
