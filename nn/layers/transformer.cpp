#include "tapestry/nn/layers/transformer.h"

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/nn/layers/fused.h"

namespace tapestry::nn {

namespace {

template <class Options>
const Options& checked_layer(const char* name, const Options& o) {
  check(o.d_model > 0 && o.nhead > 0 && o.d_model % o.nhead == 0, "[", name,
        "] nhead must divide d_model, both positive, but they are ", o.nhead, " and ", o.d_model,
        "; set both");
  check(o.dim_feedforward > 0, "[", name, "] dim_feedforward must be positive but is ", o.dim_feedforward);
  check(o.dropout >= 0 && o.dropout <= 1, "[", name, "] dropout must lie in [0, 1] but is ", o.dropout);
  check(o.activation == "relu" || o.activation == "gelu", "[", name,
        "] activation must be \"relu\" or \"gelu\" but is \"", o.activation, "\"");
  return o;
}

template <class Options>
MultiheadAttentionOptions attention_of(const Options& o) {
  return {.embed_dim = o.d_model,
          .num_heads = o.nhead,
          .dropout = o.dropout,
          .bias = o.bias,
          .batch_first = o.batch_first};
}
template <class Options>
LinearOptions up_of(const Options& o) {
  return {.in_features = o.d_model, .out_features = o.dim_feedforward, .bias = o.bias};
}
template <class Options>
LinearOptions down_of(const Options& o) {
  return {.in_features = o.dim_feedforward, .out_features = o.d_model, .bias = o.bias};
}
template <class Options>
LayerNormOptions norm_of(const Options& o) {
  return {.normalized_shape = o.d_model, .eps = o.layer_norm_eps, .bias = o.bias};
}
// The feed-forward network between two linear layers, with a dropout of the hidden features.
Tensor fed_forward(const std::string& activation, Linear& up, Dropout& dropout, Linear& down,
                   const Tensor& x) {
  const bool is_gelu = activation == "gelu";
  const bool drops = dropout.has_hooks() || (dropout.is_training() && dropout.options.p > 0);
  if (!drops) return feed_forward(up, down, x, is_gelu ? Activation::gelu : Activation::relu);
  return down(dropout(is_gelu ? linear_gelu(up, x) : linear_relu(up, x)));
}

// x + block(norm(x)), or norm(x + block(x)).
template <class Block>
Tensor residual(const Tensor& x, LayerNorm& norm, bool norm_first, const Block& block) {
  return norm_first ? x + block(norm(x)) : norm(x + block(x));
}

template <class T>
void add_layers(ModuleList& layers, const char* name, std::int64_t count,
                const typename T::Options& options) {
  check(count > 0, "[", name, "] num_layers must be positive but is ", count);
  for (std::int64_t i = 0; i < count; ++i) layers.append<T>(options);
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(const Options& o)
    : options(checked_layer("TransformerEncoderLayer", o)),
      self_attn(add<MultiheadAttention>("self_attn", attention_of(o))),
      linear1(add<Linear>("linear1", up_of(o))),
      dropout(add<Dropout>("dropout", {.p = o.dropout})),
      linear2(add<Linear>("linear2", down_of(o))),
      norm1(add<LayerNorm>("norm1", norm_of(o))),
      norm2(add<LayerNorm>("norm2", norm_of(o))),
      dropout1(add<Dropout>("dropout1", {.p = o.dropout})),
      dropout2(add<Dropout>("dropout2", {.p = o.dropout})) {}

Tensor TransformerEncoderLayer::forward(const Tensor& src, const EncodeOptions& how) {
  const auto attend = [&](const Tensor& x) {
    return dropout1(self_attn(x, x, x,
                              {.key_padding_mask = how.src_key_padding_mask,
                               .need_weights = false,
                               .attn_mask = how.src_mask,
                               .is_causal = how.is_causal,
                               .cache = how.cache})
                        .first);
  };
  const auto feed = [&](const Tensor& x) {
    return dropout2(fed_forward(options.activation, linear1, dropout, linear2, x));
  };
  return residual(residual(src, norm1, options.norm_first, attend), norm2, options.norm_first, feed);
}
Tensor TransformerEncoderLayer::operator()(const Tensor& src, const EncodeOptions& how) const {
  return call(*this, src, how);
}

TransformerEncoder::TransformerEncoder(const Options& o)
    : options(o),
      layers(add<ModuleList>("layers")),
      norm(o.norm ? &add<LayerNorm>("norm", norm_of(o.layer)) : nullptr) {
  add_layers<TransformerEncoderLayer>(layers, "TransformerEncoder", o.num_layers, o.layer);
}

Tensor TransformerEncoder::forward(const Tensor& src, const EncodeStackOptions& how) {
  check(!how.caches || how.caches->size() == layers.size(), "[TransformerEncoder] got ",
        how.caches ? how.caches->size() : 0, " caches for ", layers.size(),
        " layers; make them with make_caches()");
  Tensor x = src;
  for (std::int64_t i = 0; i < options.num_layers; ++i)
    x = layers.get<TransformerEncoderLayer>(i)(
        x, {.src_mask = how.mask,
            .src_key_padding_mask = how.src_key_padding_mask,
            .is_causal = how.is_causal,
            .cache = how.caches ? &(*how.caches)[static_cast<std::size_t>(i)] : nullptr});
  return norm ? (*norm)(x) : x;
}
Tensor TransformerEncoder::operator()(const Tensor& src, const EncodeStackOptions& how) const {
  return call(*this, src, how);
}

std::vector<KeyValueCache> TransformerEncoder::make_caches(std::int64_t capacity) const {
  return std::vector<KeyValueCache>(layers.size(), KeyValueCache(capacity));
}

TransformerDecoderLayer::TransformerDecoderLayer(const Options& o)
    : options(checked_layer("TransformerDecoderLayer", o)),
      self_attn(add<MultiheadAttention>("self_attn", attention_of(o))),
      multihead_attn(add<MultiheadAttention>("multihead_attn", attention_of(o))),
      linear1(add<Linear>("linear1", up_of(o))),
      dropout(add<Dropout>("dropout", {.p = o.dropout})),
      linear2(add<Linear>("linear2", down_of(o))),
      norm1(add<LayerNorm>("norm1", norm_of(o))),
      norm2(add<LayerNorm>("norm2", norm_of(o))),
      norm3(add<LayerNorm>("norm3", norm_of(o))),
      dropout1(add<Dropout>("dropout1", {.p = o.dropout})),
      dropout2(add<Dropout>("dropout2", {.p = o.dropout})),
      dropout3(add<Dropout>("dropout3", {.p = o.dropout})) {}

Tensor TransformerDecoderLayer::forward(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how) {
  const auto attend = [&](const Tensor& x) {
    return dropout1(self_attn(x, x, x,
                              {.key_padding_mask = how.tgt_key_padding_mask,
                               .need_weights = false,
                               .attn_mask = how.tgt_mask,
                               .is_causal = how.tgt_is_causal})
                        .first);
  };
  const auto look = [&](const Tensor& x) {
    return dropout2(multihead_attn(x, memory, memory,
                                   {.key_padding_mask = how.memory_key_padding_mask,
                                    .need_weights = false,
                                    .attn_mask = how.memory_mask,
                                    .is_causal = how.memory_is_causal})
                        .first);
  };
  const auto feed = [&](const Tensor& x) {
    return dropout3(fed_forward(options.activation, linear1, dropout, linear2, x));
  };
  const bool first = options.norm_first;
  return residual(residual(residual(tgt, norm1, first, attend), norm2, first, look), norm3, first, feed);
}
Tensor TransformerDecoderLayer::operator()(const Tensor& tgt, const Tensor& memory,
                                           const DecodeOptions& how) const {
  return call(*this, tgt, memory, how);
}

TransformerDecoder::TransformerDecoder(const Options& o)
    : options(o),
      layers(add<ModuleList>("layers")),
      norm(o.norm ? &add<LayerNorm>("norm", norm_of(o.layer)) : nullptr) {
  add_layers<TransformerDecoderLayer>(layers, "TransformerDecoder", o.num_layers, o.layer);
}

Tensor TransformerDecoder::forward(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how) {
  Tensor x = tgt;
  for (std::int64_t i = 0; i < options.num_layers; ++i)
    x = layers.get<TransformerDecoderLayer>(i)(x, memory, how);
  return norm ? (*norm)(x) : x;
}
Tensor TransformerDecoder::operator()(const Tensor& tgt, const Tensor& memory,
                                      const DecodeOptions& how) const {
  return call(*this, tgt, memory, how);
}

}  // namespace tapestry::nn
