#pragma once
// What own kernels do around cuDNN's attention, so that it has the results of attention's contract under a
// mask. cuDNN adds a dense array to the scores, the bias. It does not say what it computes for a query whose
// scores are all -inf, so the bias has kHiddenBias instead of -inf, and own kernels write the results of
// queries that see no key.
#include <cstdint>

#include "tapestry/kernels/ops/attention.h"

namespace tapestry::kernels::cuda {

/// What the bias adds to the score of a hidden key. It is finite, so that no difference of scores is NaN, and
/// so large that the exponential of a difference to any score that is not hidden is 0. f16 has no number as
/// large, so there a score below -65000 counts as hidden too.
constexpr float hidden_bias(DType dtype) { return dtype == DType::f16 ? -65504.0F : -0x1p100F; }

/// The bias that cuDNN adds to the scores. A size is 1 where the mask is broadcast along that dimension, so
/// the bias has one row for each distinct row of the mask.
struct AttentionBias {
  std::int64_t batches = 0, heads = 0, queries = 0, keys = 0;
  std::int64_t pitch = 0;  // elements from row to row: keys, rounded up to whole chunks of 16 bytes

  AttentionBias() = default;
  /// No rows if there is no mask.
  AttentionBias(const AttentionShape& s, const AttentionMask& m) {
    if (!m.mask) return;
    batches = m.batch ? s.batch : 1, heads = m.head ? s.heads : 1, queries = m.query ? s.queries : 1;
    keys = s.keys, pitch = (s.keys + 7) / 8 * 8;
  }
  std::int64_t rows() const { return batches * heads * queries; }
};

/// Computes from `mask` the bias, (batches, heads, queries, pitch) of the slot's dtype, and for each of its
/// rows the first key that is not hidden; `keys` if all are.
struct AttentionBiasArgs {
  AttentionBias shape;
  AttentionMask mask;
  MutableArray bias;
  std::int64_t* first_seen;
};

/// Sets y to 0 and log_sum_exp to -inf for the queries that see no key.
struct AttentionBlindArgs {
  AttentionShape shape;
  AttentionBias bias;
  AttentionMask mask;
  const std::int64_t* first_seen;
  MutableArray y;
  AttentionStrides y_strides;
  MutableArray log_sum_exp;
};

/// Copies `count` logarithms for cuDNN's gradients. -inf becomes a number so large that all weights are 0.
struct AttentionLogsArgs {
  std::int64_t count;
  const float* log_sum_exp;
  float* finite;
};

struct AttentionBiasKernels {
  void (*bias)(const LaunchContext&, const AttentionBiasArgs&) = nullptr;
  void (*blind)(const LaunchContext&, const AttentionBlindArgs&) = nullptr;
  void (*logs)(const LaunchContext&, const AttentionLogsArgs&) = nullptr;
};
/// The kernels for f16 and bf16; null for other dtypes, which cuDNN's attention does not have.
const AttentionBiasKernels& attention_bias_kernels(DType dtype);

}  // namespace tapestry::kernels::cuda
