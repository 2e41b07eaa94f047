#pragma once
// The kernels of attention_bias.h.
#include <algorithm>
#include <limits>

#include "tapestry/kernels/cuda/attention_bias.h"
#include "tapestry/kernels/cuda/launch_context.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kBiasThreads = 256;
inline constexpr float kFiniteLog = 0x1p101F;  // above every score and every bias

struct BiasPlan {
  std::int64_t rows;
  int heads, queries, keys, pitch;  // of the bias
  bool is_bool;
  const void* mask;
  std::int64_t mask_batch, mask_head, mask_query, mask_key;
  float hidden;
};

/// One warp per row. Writes zeros behind the last key.
template <class T>
__global__ void __launch_bounds__(kBiasThreads)
    attention_mask_bias(BiasPlan p, T* bias, std::int64_t* first_seen) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kBiasThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= p.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t query = row % p.queries, head = row / p.queries % p.heads,
                     batch = row / p.queries / p.heads;
  const std::int64_t from = batch * p.mask_batch + head * p.mask_head + query * p.mask_query;
  T* const to = bias + row * p.pitch;
  int seen = p.keys;
  for (int key = lane; key < p.pitch; key += 32) {
    float value = 0;
    if (key < p.keys) {
      const std::int64_t at = from + key * p.mask_key;
      if (p.is_bool) value = static_cast<const bool*>(p.mask)[at] ? 0 : p.hidden;
      else value = load(static_cast<const T*>(p.mask)[at]);
      const bool hides = p.is_bool ? value != 0 : value == -std::numeric_limits<float>::infinity();
      if (hides) value = p.hidden;
      else if (key < seen) seen = key;
    }
    to[key] = store<T>(value);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, seen, lanes);
    seen = other < seen ? other : seen;
  }
  if (lane == 0) first_seen[row] = seen;
}

struct BlindPlan {
  std::int64_t rows, offset, batch, head, row;  // the strides of y
  int heads, queries, keys, columns;
  std::int64_t bias_batch, bias_head, bias_query;  // from row to row of the bias; 0 where it is broadcast
  bool causal;
};

/// One thread per query, because few see no key.
template <class T>
__global__ void __launch_bounds__(kBiasThreads)
    attention_blind_rows(BlindPlan p, const std::int64_t* first_seen, T* y, float* log_sum_exp) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kBiasThreads + threadIdx.x;
  if (row >= p.rows) return;
  const std::int64_t query = row % p.queries, head = row / p.queries % p.heads,
                     batch = row / p.queries / p.heads;
  const std::int64_t first = first_seen[batch * p.bias_batch + head * p.bias_head + query * p.bias_query];
  if (first < p.keys && !(p.causal && first > query + p.offset)) return;
  T* const to = y + batch * p.batch + head * p.head + query * p.row;
  for (int c = 0; c < p.columns; ++c) to[c] = T();
  log_sum_exp[row] = -std::numeric_limits<float>::infinity();
}

template <class = void>
__global__ void __launch_bounds__(kBiasThreads)
    attention_finite_logs(std::int64_t count, const float* logs, float* finite) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBiasThreads + threadIdx.x;
  if (i >= count) return;
  const float value = logs[i];
  finite[i] = value == -std::numeric_limits<float>::infinity() ? kFiniteLog : value;
}

inline unsigned bias_blocks(std::int64_t n, int each) { return static_cast<unsigned>((n + each - 1) / each); }

template <class T>
void launch_attention_bias(const LaunchContext& context, const AttentionBiasArgs& a) {
  const AttentionBias& s = a.shape;
  const AttentionMask& m = a.mask;
  if (s.rows() == 0) return;
  const bool is_bool = m.mask.dtype() == DType::boolean;
  if (!is_bool) (void)m.mask.as<T>();  // throws unless the mask has the slot's dtype
  const BiasPlan plan{s.rows(),
                      static_cast<int>(s.heads),
                      static_cast<int>(s.queries),
                      static_cast<int>(s.keys),
                      static_cast<int>(s.pitch),
                      is_bool,
                      m.mask.address(),
                      m.batch,
                      m.head,
                      m.query,
                      m.key,
                      hidden_bias(dtype_of<T>)};
  launch(&attention_mask_bias<T>, bias_blocks(s.rows(), kBiasThreads / 32), kBiasThreads, 0,
         stream_of(context), plan, a.bias.as<T>(), a.first_seen);
}

template <class T>
void launch_attention_blind(const LaunchContext& context, const AttentionBlindArgs& a) {
  const AttentionShape& s = a.shape;
  const AttentionBias& b = a.bias;
  const std::int64_t rows = s.batch * s.heads * s.queries;
  if (rows == 0) return;
  const BlindPlan plan{rows,
                       std::min(a.mask.offset, s.keys),
                       a.y_strides.batch,
                       a.y_strides.head,
                       a.y_strides.row,
                       static_cast<int>(s.heads),
                       static_cast<int>(s.queries),
                       static_cast<int>(s.keys),
                       static_cast<int>(s.value_width),
                       b.batches > 1 ? b.heads * b.queries : 0,
                       b.heads > 1 ? b.queries : 0,
                       b.queries > 1 ? 1 : 0,
                       a.mask.causal};
  launch(&attention_blind_rows<T>, bias_blocks(rows, kBiasThreads), kBiasThreads, 0, stream_of(context), plan,
         a.first_seen, a.y.as<T>(), a.log_sum_exp.as<float>());
}

template <class = void>
void launch_attention_logs(const LaunchContext& context, const AttentionLogsArgs& a) {
  if (a.count == 0) return;
  launch(&attention_finite_logs<>, bias_blocks(a.count, kBiasThreads), kBiasThreads, 0, stream_of(context),
         a.count, a.log_sum_exp, a.finite);
}

}  // namespace tapestry::kernels::cuda
