#pragma once
// Contracts of attention without a matrix of scores (Dao 2023, "FlashAttention-2"). For both slots:
//   Shapes: q (batch, heads, queries, width), k (batch, groups, keys, width), v (batch, groups, keys,
//   value_width), y and dy (batch, heads, queries, value_width). `groups` divides `heads`: consecutive heads
//   / groups heads of q share a head of k and v. Layout: the last dimension of each array is contiguous; the
//   others have strides. dq, dk and dv have the strides of q, k and v that the arguments give for them.
//   Dtypes: all arrays have the slot's dtype, but for the mask, which may be bool too, and log_sum_exp, which
//   is f32. Accumulation: f32. The scores are computed block by block and are never stored. Where matrix
//   instructions take operands of 16 bits only, the weights and the gradients of the scores are rounded to the
//   slot's dtype before they are multiplied by v, dy, q or k.
// The kernels of CPUs take any width and value_width, those of GPUs at most kMaxGpuAttentionWidth.
#include <cstdint>

#include "tapestry/core/generator.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

inline constexpr std::int64_t kMaxGpuAttentionWidth = 128;

struct AttentionShape {
  std::int64_t batch, heads, groups, queries, keys, width, value_width;
};

/// The distances between batches, heads and rows, in elements.
struct AttentionStrides {
  std::int64_t batch, head, row;
};

/// Which scores count. With `causal`, query i sees keys 0 to i + offset; the offset is not negative. A bool
/// `mask` is true where the query sees the key; a mask of the slot's dtype is added to the scores. Dimensions
/// along which the mask is broadcast have stride 0.
struct AttentionMask {
  bool causal = false;
  std::int64_t offset = 0;
  ConstArray mask;
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// Which weights remain after softmax. Weight e = ((batch * heads + head) * queries + query) * keys + key is
/// multiplied by `scale` if the top 24 bits of word e of `range` are at least `threshold`, and becomes 0
/// otherwise. These are the numbers that the slot `dropout` (random.h) gives a dense array of weights. With
/// the threshold 0 all weights remain as they are.
struct AttentionDropout {
  PhiloxRange range;
  std::uint32_t threshold = 0;
  double scale = 1;
};

/// Computes y = dropout(softmax(q k^T scale + mask)) v, and for each query the logarithm of its sum of
/// exponentials, a dense (batch, heads, queries) array. A query that a mask hides from all keys gives 0 and
/// -inf.
struct AttentionArgs {
  AttentionShape shape;
  double scale;
  AttentionMask mask;
  ConstArray q, k, v;
  AttentionStrides q_strides, k_strides, v_strides;
  MutableArray y;
  AttentionStrides y_strides;
  MutableArray log_sum_exp;
  AttentionDropout dropout = {};
};
inline constinit Slot<AttentionArgs> attention{"attention"};

/// Computes the gradients of q, k and v from the results of `attention` with the same dropout. The scores are
/// computed again. An output that is null is left out.
struct AttentionBackwardArgs {
  AttentionShape shape;
  double scale;
  AttentionMask mask;
  ConstArray q, k, v, y, dy;
  AttentionStrides q_strides, k_strides, v_strides, y_strides, dy_strides;
  ConstArray log_sum_exp;
  MutableArray dq, dk, dv;
  AttentionStrides dq_strides, dk_strides, dv_strides;
  AttentionDropout dropout = {};
};
inline constinit Slot<AttentionBackwardArgs> attention_backward{"attention_backward"};

}  // namespace tapestry::kernels
