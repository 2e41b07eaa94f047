#pragma once
#include <array>
#include <optional>
#include <utility>

#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct MultiheadAttentionOptions {
  using Layer = class MultiheadAttention;
  std::int64_t embed_dim = 0, num_heads = 0;
  double dropout = 0;  ///< probability of dropping an attention weight in training
  bool bias = true;
  std::optional<std::int64_t> kdim = {}, vdim = {};  ///< features of keys and values; embed_dim if not set
  bool batch_first = false;
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
};

/// Multi-head attention with input and output projections (Vaswani et al. 2017). Shapes: query (L, N, E), key
/// (S, N, kdim), value (S, N, vdim). With batch_first, N is the first dimension; N may also be absent. The
/// result has the shape of query. Parameters: in_proj_weight (3 E, E), or q_proj_weight, k_proj_weight and
/// v_proj_weight if kdim or vdim differ from E; in_proj_bias; out_proj.weight; out_proj.bias.
class MultiheadAttention : public Module {
 public:
  using Options = MultiheadAttentionOptions;
  explicit MultiheadAttention(const Options& options);

  /// Returns the result and the attention weights of shape (N, L, S), or (N, num_heads, L, S) if they are not
  /// averaged.
  std::pair<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttendOptions& how = {});
  /// Computes self-attention and returns no weights.
  Tensor forward(const Tensor& x) override;
  using Module::operator();
  std::pair<Tensor, Tensor> operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const AttendOptions& how = {}) {
    return call(*this, query, key, value, how);
  }
  std::string options_text() const override;

  const Options options;
  Parameter& in_proj_weight;
  Parameter& q_proj_weight;
  Parameter& k_proj_weight;
  Parameter& v_proj_weight;
  Parameter& in_proj_bias;
  Linear& out_proj;

 private:
  std::array<Tensor, 3> project(const Tensor& query, const Tensor& key, const Tensor& value) const;
};

}  // namespace tapestry::nn
