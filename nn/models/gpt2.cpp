#include "tapestry/nn/models/gpt2.h"

#include <cmath>
#include <tuple>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/layers/fused.h"

namespace tapestry::nn {

namespace {

LinearOptions gpt2_linear(std::int64_t in, std::int64_t out, bool bias = true) {
  return {.in_features = in, .out_features = out, .bias = bias};
}
LayerNormOptions norm_of(const Gpt2Config& c) {
  return {.normalized_shape = {c.n_embd}, .eps = c.layer_norm_epsilon};
}
const Gpt2Config& checked(const Gpt2Config& c) {
  c.validate();
  return c;
}

}  // namespace

Gpt2Attention::Gpt2Attention(const Gpt2Config& c)
    : c_attn(add<Linear>("c_attn", gpt2_linear(c.n_embd, 3 * c.n_embd))),
      c_proj(add<Linear>("c_proj", gpt2_linear(c.n_embd, c.n_embd))),
      resid_dropout(add<Dropout>("resid_dropout", {.p = c.resid_pdrop})),
      head_dim_(c.n_embd / c.n_head),
      attn_pdrop_(c.attn_pdrop) {}

Tensor Gpt2Attention::forward(const Tensor& x, const Gpt2BlockContext& how) {
  const std::vector<Tensor> parts = c_attn(x).chunk(3, -1);
  const auto heads = [&](const Tensor& part) {  // (N, L, n_embd) -> (N, heads, L, head_dim)
    return part.unflatten(-1, {-1, head_dim_}).transpose(1, 2);
  };
  const Tensor q = heads(parts[0]);
  Tensor k = heads(parts[1]), v = heads(parts[2]);
  if (how.cache) std::tie(k, v) = how.cache->append(k, v);
  const Tensor y = causal_attention(q, k, v, {how.mask, how.documents, divided(how.cache)},
                                    is_training() ? attn_pdrop_ : 0);
  return resid_dropout(c_proj(y.transpose(1, 2).flatten(2)));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& c)
    : c_fc(add<Linear>("c_fc", gpt2_linear(c.n_embd, c.n_inner))),
      c_proj(add<Linear>("c_proj", gpt2_linear(c.n_inner, c.n_embd))),
      dropout(add<Dropout>("dropout", {.p = c.resid_pdrop})) {}

Tensor Gpt2Mlp::forward(const Tensor& x) {
  return dropout(feed_forward(c_fc, c_proj, x, Activation::gelu_tanh));
}

Gpt2Block::Gpt2Block(const Gpt2Config& c)
    : ln_1(add<LayerNorm>("ln_1", norm_of(c))),
      attn(add<Gpt2Attention>("attn", c)),
      ln_2(add<LayerNorm>("ln_2", norm_of(c))),
      mlp(add<Gpt2Mlp>("mlp", c)) {}

Tensor Gpt2Block::forward(const Tensor& x, const Gpt2BlockContext& how) {
  const auto [y, normed] = add_norm(ln_2, x, attn(ln_1(x), how));
  return y + mlp(normed);
}

Gpt2Model::Gpt2Model(const Gpt2Config& c)
    : wte(add<Embedding>("wte", {.num_embeddings = checked(c).vocab_size, .embedding_dim = c.n_embd})),
      wpe(add<Embedding>("wpe", {.num_embeddings = c.n_positions, .embedding_dim = c.n_embd})),
      drop(add<Dropout>("drop", {.p = c.embd_pdrop})),
      h(add<ModuleList>("h")),
      ln_f(add<LayerNorm>("ln_f", norm_of(c))) {
  for (std::int64_t i = 0; i < c.n_layer; ++i) h.append<Gpt2Block>(c);
}

Tensor Gpt2Model::embed(const Tensor& ids, Tensor positions, const KeyValueCache* cache) {
  const std::int64_t past = cache ? cache->length() : 0;
  if (!positions.defined())
    positions = divided(cache) ? divided_sequence->positions(ids.size(1), ids.device())
                               : arange(past, past + ids.size(1), 1, {DType::i64, ids.device()});
  return drop(wte(ids) + wpe(positions));
}

Tensor Gpt2Model::forward(const Tensor& ids, const TokenContext& how) {
  Tensor x = embed(ids, how.positions, how.cache ? &how.cache->layer(0) : nullptr);
  Gpt2BlockContext block{.mask = how.mask, .documents = how.documents};
  for (std::size_t i = 0; i < h.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    block.cache = how.cache ? &how.cache->layer(index) : nullptr;
    Gpt2Block& layer = h.get<Gpt2Block>(index);
    x = how.checkpoint ? checkpoint(layer, x, block) : layer(x, block);
  }
  return ln_f(x);
}

Gpt2::Gpt2(const Gpt2Config& c)
    : config(checked(c)),
      transformer(add<Gpt2Model>("transformer", c)),
      lm_head(c.tie_word_embeddings ? nullptr
                                    : &add<Linear>("lm_head", gpt2_linear(c.n_embd, c.vocab_size, false))) {
  init_language_model(*this);
  const double std = 0.02 / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    Gpt2Block& block = transformer.h.get<Gpt2Block>(i);
    init::normal_(block.attn.c_proj.weight, 0, std);
    init::normal_(block.mlp.c_proj.weight, 0, std);
  }
}

Tensor Gpt2::features(const Tensor& ids, const TokenContext& how) { return transformer(ids, how); }

}  // namespace tapestry::nn
