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
  double dropout = 0;  ///< on the attention weights, in training
  bool bias = true;
  std::optional<std::int64_t> kdim = {}, vdim = {};  ///< features of keys and values; embed_dim when absent
  bool batch_first = false;
};

/// How one call attends. As in PyTorch, and unlike scaled_dot_product_attention, true in a bool mask means
/// "not allowed". Floating masks are added to the scores.
struct AttendOptions {
  Tensor key_padding_mask = {};  ///< (N, S): keys that are padding
  bool need_weights = true;      ///< costs the fused path; false returns undefined weights
  Tensor attn_mask = {};         ///< (L, S) or (N * num_heads, L, S)
  bool average_attn_weights = true;
  bool is_causal = false;  ///< query i sees keys 0 .. i; unlike PyTorch's it needs no attn_mask beside it
};

/// Attention of several heads (Vaswani et al. 2017) with projections in and out. query (L, N, E), key
/// (S, N, kdim), value (S, N, vdim), with batch_first (N, L, E) and so on, or without N; the result is like
/// query. Parameters: in_proj_weight (3 E, E) or q_, k_, v_proj_weight where kdim or vdim differ,
/// in_proj_bias, out_proj.weight, out_proj.bias.
class MultiheadAttention : public Module {
 public:
  using Options = MultiheadAttentionOptions;
  explicit MultiheadAttention(const Options& options);

  /// The result and the attention weights: (N, L, S), or (N, num_heads, L, S) when not averaged.
  std::pair<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttendOptions& how = {});
  /// Self-attention without weights.
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
