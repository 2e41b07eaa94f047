#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/layers/fused.h"

#include <tuple>
#include <utility>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/swiglu.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/models/internal/angles.h"

namespace tapestry::nn {

namespace {

LinearOptions llama_linear(std::int64_t in, std::int64_t out, bool bias) {
  return {.in_features = in, .out_features = out, .bias = bias};
}
RMSNormOptions norm_of(const LlamaConfig& c) {
  return {.normalized_shape = {c.hidden_size}, .eps = c.rms_norm_eps};
}
std::shared_ptr<RotaryEmbedding> rotary_of(const LlamaConfig& c) {
  return make<RotaryEmbedding>(RotaryEmbeddingOptions{.dim = c.head_dim,
                                                      .max_seq_len = c.max_position_embeddings,
                                                      .base = c.rope_theta,
                                                      .frequencies = c.rope_frequencies()});
}
const LlamaConfig& checked(const LlamaConfig& c) {
  c.validate();
  return c;
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& c, std::shared_ptr<RotaryEmbedding> rotary)
    : q_proj(add<Linear>("q_proj",
                         llama_linear(c.hidden_size, c.num_attention_heads * c.head_dim, c.attention_bias))),
      k_proj(add<Linear>("k_proj",
                         llama_linear(c.hidden_size, c.num_key_value_heads * c.head_dim, c.attention_bias))),
      v_proj(add<Linear>("v_proj",
                         llama_linear(c.hidden_size, c.num_key_value_heads * c.head_dim, c.attention_bias))),
      o_proj(add<Linear>("o_proj", llama_linear(c.num_attention_heads * c.head_dim, c.hidden_size,
                                                c.attention_output_bias))),
      head_dim_(c.head_dim),
      rotary_(std::move(rotary)) {}

Tensor LlamaAttention::forward(const Tensor& x, const LlamaBlockContext& how) {
  const auto heads = [&](Linear& projection) {  // (N, L, hidden) -> (N, heads, L, head_dim)
    return projection(x).unflatten(-1, {-1, head_dim_}).transpose(1, 2);
  };
  const DividedSequence* const sequence = divided(how.cache);
  const RotaryEmbedding::Angles angles =
      how.angles.cos.defined() ? how.angles : detail::angles_of(*rotary_, how.cache, sequence, x);
  const Tensor q = rotary_embedding(heads(q_proj), angles.cos, angles.sin);
  Tensor k = rotary_embedding(heads(k_proj), angles.cos, angles.sin), v = heads(v_proj);
  if (how.cache) std::tie(k, v) = how.cache->append(k, v);
  return o_proj(causal_attention(q, k, v, {how.mask, how.documents, sequence}).transpose(1, 2).flatten(2));
}

LlamaMlp::LlamaMlp(const LlamaConfig& c)
    : gate_proj(add<Linear>("gate_proj", llama_linear(c.hidden_size, c.intermediate_size, c.mlp_bias))),
      up_proj(add<Linear>("up_proj", llama_linear(c.hidden_size, c.intermediate_size, c.mlp_bias))),
      down_proj(add<Linear>("down_proj", llama_linear(c.intermediate_size, c.hidden_size, c.mlp_bias))) {}

Tensor LlamaMlp::forward(const Tensor& x) { return down_proj(swiglu(gate_proj(x), up_proj(x))); }

LlamaDecoderLayer::LlamaDecoderLayer(const LlamaConfig& c, std::shared_ptr<RotaryEmbedding> rotary)
    : self_attn(add<LlamaAttention>("self_attn", c, std::move(rotary))),
      mlp(add<LlamaMlp>("mlp", c)),
      input_layernorm(add<RMSNorm>("input_layernorm", norm_of(c))),
      post_attention_layernorm(add<RMSNorm>("post_attention_layernorm", norm_of(c))) {}

Tensor LlamaDecoderLayer::forward(const Tensor& x, const LlamaBlockContext& how) {
  const auto [h, normed] = add_norm(post_attention_layernorm, x, self_attn(input_layernorm(x), how));
  return h + mlp(normed);
}

LlamaModel::LlamaModel(const LlamaConfig& c) : LlamaModel(c, rotary_of(checked(c))) {}
LlamaModel::LlamaModel(const LlamaConfig& c, const std::shared_ptr<RotaryEmbedding>& rotary)
    : rotary_emb(*rotary),
      embed_tokens(
          add<Embedding>("embed_tokens", {.num_embeddings = c.vocab_size, .embedding_dim = c.hidden_size})),
      layers(add<ModuleList>("layers")),
      norm(add<RMSNorm>("norm", norm_of(c))) {
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers.append<LlamaDecoderLayer>(c, rotary);
  add("rotary_emb", rotary);
}

Tensor LlamaModel::forward(const Tensor& ids, const TokenContext& how) {
  Tensor x = embed_tokens(ids);
  LlamaBlockContext block{.mask = how.mask, .documents = how.documents};
  if (how.positions.defined()) block.angles = rotary_emb.angles(how.positions, x.dtype());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    block.cache = how.cache ? &how.cache->layer(index) : nullptr;
    LlamaDecoderLayer& layer = layers.get<LlamaDecoderLayer>(index);
    x = how.checkpoint ? checkpoint(layer, x, block) : layer(x, block);
  }
  return norm(x);
}

Llama::Llama(const LlamaConfig& c)
    : config(checked(c)),
      model(add<LlamaModel>("model", c)),
      lm_head(c.tie_word_embeddings
                  ? nullptr
                  : &add<Linear>("lm_head", llama_linear(c.hidden_size, c.vocab_size, /*bias=*/false))) {
  init_language_model(*this);
}

Tensor Llama::features(const Tensor& ids, const TokenContext& how) { return model(ids, how); }

}  // namespace tapestry::nn
