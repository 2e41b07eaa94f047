#pragma once
#include <array>
#include <optional>
#include <utility>

#include "tapestry/nn/layers/divided_sequence.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct MultiheadAttentionOptions {
  using Layer = class MultiheadAttention;
  std::int64_t embed_dim = 0, num_heads = 0;
  double dropout = 0;  ///< probability of dropping an attention weight in training
  bool bias = true;
  bool add_bias_kv = false;    ///< adds a trained key and value, bias_k and bias_v, which every query sees
  bool add_zero_attn = false;  ///< adds a key and a value of zeros
  std::optional<std::int64_t> kdim = {}, vdim = {};  ///< features of keys and values; embed_dim if not set
  bool batch_first = false;
};

/// The keys and values of the tokens that an attention layer has seen. Decoding with a cache computes each
/// token's keys and values once:
///
///   nn::KeyValueCache cache(max_tokens);
///   for (...) y = attention(x, x, x, {.need_weights = false, .is_causal = true, .cache = &cache}).first;
///
/// where x has only the new tokens. A cache belongs to one layer and one batch of sequences, and keeps no
/// gradients: use it under NoGradGuard.
class KeyValueCache {
 public:
  /// Throws ValueError unless `capacity`, in tokens, is positive. append() allocates memory as it is needed,
  /// up to the capacity; it doubles when it is full.
  explicit KeyValueCache(std::int64_t capacity);
  /// Appends keys (N, heads, L, E) and values (N, heads, L, V). Returns views of all keys and values so far.
  /// Later calls may write to the same memory or to a copy. Throws ValueError if they do not fit the earlier
  /// ones, if they exceed the capacity, or if they are recorded on the tape; nothing has changed then.
  std::pair<Tensor, Tensor> append(const Tensor& keys, const Tensor& values);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  /// Forgets all tokens but the first `length`. The memory stays allocated.
  void truncate(std::int64_t length);

 private:
  std::int64_t capacity_, length_ = 0;
  Tensor keys_, values_;  // (N, heads, tokens for which there is memory, E)
};

/// Options of one call. As in PyTorch, true in a bool mask means "not allowed"; in
/// scaled_dot_product_attention it means "allowed". Floating-point masks are added to the scores.
struct AttendOptions {
  Tensor key_padding_mask = {};  ///< (N, S): true marks keys that are padding
  /// If false, the weights are returned undefined, and scaled_dot_product_attention computes the result.
  bool need_weights = true;
  Tensor attn_mask = {};  ///< (L, S) or (N * num_heads, L, S)
  bool average_attn_weights = true;
  bool is_causal = false;  ///< query i attends to keys 0 .. i; attn_mask is not needed (PyTorch needs both)
  /// If set, `key` and `value` have only the new tokens: the layer appends their projections to the cache and
  /// attends to all tokens in it. S counts all of them, and is_causal counts queries after the earlier
  /// tokens.
  KeyValueCache* cache = nullptr;
};

/// Multi-head attention with input and output projections (Vaswani et al. 2017). Shapes: query (L, N, E), key
/// (S, N, kdim), value (S, N, vdim). With batch_first, N is the first dimension; N may also be absent. The
/// result has the shape of query. Parameters: in_proj_weight (3 E, E), or q_proj_weight, k_proj_weight and
/// v_proj_weight if kdim or vdim differ from E; in_proj_bias; bias_k and bias_v (1, 1, E) with add_bias_kv;
/// out_proj.weight; out_proj.bias.
class MultiheadAttention : public Module, public SequenceModule {
 public:
  using Options = MultiheadAttentionOptions;
  explicit MultiheadAttention(const Options& options);
  Heads heads() const override { return {options.num_heads, options.num_heads}; }

  /// Returns the result and the attention weights of shape (N, L, S), or (N, num_heads, L, S) if they are not
  /// averaged.
  std::pair<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttendOptions& how = {});
  /// Computes self-attention and returns no weights.
  Tensor forward(const Tensor& x) override;
  using Module::operator();
  std::pair<Tensor, Tensor> operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const AttendOptions& how = {}) const;
  std::string options_text() const override;

  const Options options;
  Parameter& in_proj_weight;
  Parameter& q_proj_weight;
  Parameter& k_proj_weight;
  Parameter& v_proj_weight;
  Parameter& in_proj_bias;
  Parameter& bias_k;
  Parameter& bias_v;
  Linear& out_proj;

  /// If ranks divide the heads (distributed::tensor_parallel()): which heads this one computes. Of queries,
  /// keys and values, in_proj_weight and in_proj_bias have their rows.
  struct DividedHeads {
    std::int64_t first = 0, count = 0;
  };
  std::optional<DividedHeads> divided_heads;

 private:
  std::array<Tensor, 3> project(const Tensor& query, const Tensor& key, const Tensor& value) const;
};

}  // namespace tapestry::nn
