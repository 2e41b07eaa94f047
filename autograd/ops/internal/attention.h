#pragma once
// What all ways to compute attention share.
#include <cmath>
#include <utility>

#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/kernels/ops/attention.h"

namespace tapestry::autograd {

/// Throws what scaled_dot_product_attention() throws, with the name `op`.
void check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionParams& params);

/// Returns a bool mask (L, S) that is true where key j is not after query i + offset.
inline Tensor causal_mask(std::int64_t queries, std::int64_t keys, std::int64_t offset, Device device) {
  const TensorOptions options(DType::i64, device);
  return le(arange(keys, options), (arange(queries, options) + offset).unsqueeze(1));
}

inline double scale_of(const Tensor& q, const AttentionParams& params) {
  return params.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}

/// Divides the heads of q into (groups, heads / groups), so that k and v broadcast over the heads of a group
/// without a copy.
struct Grouped {
  Grouped(const Tensor& q_heads, const Tensor& k_heads, const Tensor& v_heads, AttentionParams p)
      : heads(q_heads.size(-3)), groups(k_heads.size(-3)), params(std::move(p)) {
    q = split(q_heads);
    k = k_heads.unsqueeze(-3);
    v = v_heads.unsqueeze(-3);
    Tensor& mask = params.attn_mask;
    if (mask.defined() && mask.dim() >= 3) mask = mask.size(-3) == heads ? split(mask) : mask.unsqueeze(-3);
    params.enable_gqa = false;
  }
  Tensor split(const Tensor& t) const { return t.unflatten(-3, {groups, heads / groups}); }

  std::int64_t heads, groups;
  AttentionParams params;
  Tensor q, k, v;
};

/// q, k, v or the result as (batch, heads, rows, columns): leading dimensions of size 1 are added.
inline Tensor in_heads(const Tensor& t) {
  return t.dim() == 4 ? t : t.dim() == 3 ? t.unsqueeze(0) : t.unsqueeze(0).unsqueeze(0);
}

/// A tensor whose rows are contiguous, for the kernel.
inline Tensor with_rows(const Tensor& t) {
  return t.stride(-1) == 1 || t.size(-1) == 1 ? t : raw_contiguous(t);
}

inline kernels::AttentionStrides strides_of(const Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2)};
}

/// What forward and backward tell the kernel. All tensors have four dimensions.
template <class Args>
Args kernel_args(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                 const Tensor& mask) {
  Args a;
  a.shape = {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), v.size(3)};
  a.scale = scale_of(q, params);
  a.mask.causal = params.is_causal;
  a.mask.offset = params.causal_offset;
  if (mask.defined()) {
    a.mask.mask = mask;
    a.mask.batch = mask.stride(0), a.mask.head = mask.stride(1), a.mask.query = mask.stride(2),
    a.mask.key = mask.stride(3);
  }
  a.q = q, a.k = k, a.v = v;
  a.q_strides = strides_of(q), a.k_strides = strides_of(k), a.v_strides = strides_of(v);
  return a;
}

}  // namespace tapestry::autograd
