#pragma once
// Transformer layers (Vaswani et al. 2017).
#include <string>
#include <vector>

#include "tapestry/nn/layers/activation.h"
#include "tapestry/nn/layers/attention.h"
#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/norm.h"

namespace tapestry::nn {

struct TransformerEncoderLayerOptions {
  using Layer = class TransformerEncoderLayer;
  std::int64_t d_model = 0, nhead = 0, dim_feedforward = 2048;
  double dropout = 0.1;
  std::string activation = "relu";  ///< or "gelu"
  double layer_norm_eps = 1e-5;
  bool batch_first = false;
  bool norm_first = false;  ///< normalises the input of each block, not its result
  bool bias = true;
};
/// The same options for a decoder layer.
struct TransformerDecoderLayerOptions {
  using Layer = class TransformerDecoderLayer;
  std::int64_t d_model = 0, nhead = 0, dim_feedforward = 2048;
  double dropout = 0.1;
  std::string activation = "relu";  ///< or "gelu"
  double layer_norm_eps = 1e-5;
  bool batch_first = false;
  bool norm_first = false;  ///< normalises the input of each block, not its result
  bool bias = true;
};

/// Options of one call of an encoder layer. Masks have the meaning of AttendOptions: true means "not
/// allowed".
struct EncodeOptions {
  Tensor src_mask = {};              ///< (S, S) or (N * nhead, S, S)
  Tensor src_key_padding_mask = {};  ///< (N, S): true marks tokens that are padding
  bool is_causal = false;            ///< token i attends to tokens 0 .. i; src_mask is not needed
  KeyValueCache* cache = nullptr;    ///< for decoding: src has only the new tokens (AttendOptions::cache)
};

/// Self-attention and a feed-forward network with residual connections. Shapes: src and the result are
/// (S, N, d_model), or (N, S, d_model) with batch_first, or (S, d_model). Children: self_attn, linear1,
/// dropout, linear2, norm1, norm2, dropout1, dropout2.
class TransformerEncoderLayer : public Module {
 public:
  using Options = TransformerEncoderLayerOptions;
  explicit TransformerEncoderLayer(const Options& options);
  Tensor forward(const Tensor& src) override { return forward(src, EncodeOptions()); }
  Tensor forward(const Tensor& src, const EncodeOptions& how);
  using Module::operator();
  Tensor operator()(const Tensor& src, const EncodeOptions& how) const;

  const Options options;
  MultiheadAttention& self_attn;
  Linear& linear1;
  Dropout& dropout;
  Linear& linear2;
  LayerNorm& norm1;
  LayerNorm& norm2;
  Dropout& dropout1;
  Dropout& dropout2;
};

struct TransformerEncoderOptions {
  using Layer = class TransformerEncoder;
  TransformerEncoderLayerOptions layer = {};
  std::int64_t num_layers = 0;
  bool norm = false;  ///< adds a LayerNorm after the last layer
};
/// Options of one call of a TransformerEncoder.
struct EncodeStackOptions {
  Tensor mask = {}, src_key_padding_mask = {};
  bool is_causal = false;
  std::vector<KeyValueCache>* caches =
      nullptr;  ///< one for each layer; see TransformerEncoder::make_caches()
};

/// A stack of encoder layers. Children: layers.0, layers.1, ... and norm. The layers have their own random
/// initial weights; PyTorch begins with equal weights in all layers.
class TransformerEncoder : public Module {
 public:
  using Options = TransformerEncoderOptions;
  explicit TransformerEncoder(const Options& options);
  Tensor forward(const Tensor& src) override { return forward(src, EncodeStackOptions()); }
  /// Throws ValueError unless there is one cache for each layer.
  Tensor forward(const Tensor& src, const EncodeStackOptions& how);
  using Module::operator();
  Tensor operator()(const Tensor& src, const EncodeStackOptions& how) const;
  /// Empty caches for one batch of sequences of at most `capacity` tokens.
  std::vector<KeyValueCache> make_caches(std::int64_t capacity) const;

  const Options options;
  ModuleList& layers;
  LayerNorm* const norm;  ///< null if the options have none
};

/// Options of one call of a decoder layer or a decoder. The masks of `memory` restrict which of its tokens
/// the targets see.
struct DecodeOptions {
  Tensor tgt_mask = {}, memory_mask = {};                          ///< (T, T) and (T, S)
  Tensor tgt_key_padding_mask = {}, memory_key_padding_mask = {};  ///< (N, T) and (N, S)
  bool tgt_is_causal = false, memory_is_causal = false;
};

/// Self-attention, attention to the encoder's result `memory`, and a feed-forward network. Shapes: tgt and
/// the result are (T, N, d_model), memory is (S, N, d_model); batch_first exchanges the first two dimensions.
/// Children: self_attn, multihead_attn, linear1, dropout, linear2, norm1 to norm3, dropout1 to dropout3.
class TransformerDecoderLayer : public Module {
 public:
  using Options = TransformerDecoderLayerOptions;
  explicit TransformerDecoderLayer(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how);
  Tensor operator()(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how = {}) const;

  const Options options;
  MultiheadAttention& self_attn;
  MultiheadAttention& multihead_attn;
  Linear& linear1;
  Dropout& dropout;
  Linear& linear2;
  LayerNorm& norm1;
  LayerNorm& norm2;
  LayerNorm& norm3;
  Dropout& dropout1;
  Dropout& dropout2;
  Dropout& dropout3;
};

struct TransformerDecoderOptions {
  using Layer = class TransformerDecoder;
  TransformerDecoderLayerOptions layer = {};
  std::int64_t num_layers = 0;
  bool norm = false;  ///< adds a LayerNorm after the last layer
};

/// A stack of decoder layers. Children: layers.0, layers.1, ... and norm.
class TransformerDecoder : public Module {
 public:
  using Options = TransformerDecoderOptions;
  explicit TransformerDecoder(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how);
  Tensor operator()(const Tensor& tgt, const Tensor& memory, const DecodeOptions& how = {}) const;

  const Options options;
  ModuleList& layers;
  LayerNorm* const norm;  ///< null if the options have none
};

}  // namespace tapestry::nn
