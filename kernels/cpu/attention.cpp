// Attention's forward pass, in f32 or, where the processor has AMX, in bf16.
#include "tapestry/kernels/cpu/attention.h"

#include <cmath>
#include <functional>

#include "tapestry/kernels/cpu/dot.h"
#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/matmul_amx.h"
#include "tapestry/kernels/cpu/rows.h"
#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {
namespace {

using namespace attention_parts;

// The queries of a task, which copies each block of keys once for all of them.
constexpr std::int64_t kTaskQueries = 2 * kQueries;

// The state of one query between blocks of keys: the largest score and the sum of the exponentials relative
// to it.
struct Query {
  float largest = -kInfinity, sum = 0;
};

float sum_of(const float* x, std::int64_t n) {
  return fold_lanes(
      n, 0.0f, [x](std::int64_t i) { return x[i]; }, std::plus<>());
}

// Replaces scores by exp(score - largest), and returns the factor for what was summed before. A score of +inf
// or NaN makes the sum NaN, as in softmax.
float exponentials(Query& query, float* s, std::int64_t n) {
  float factor = 0;
  with_wide_vectors([&query, &factor, s, n] {
    const float largest = std::max(query.largest, row_max(s, n));
    // A query that has seen no key yet subtracts 0, because -inf - (-inf) is NaN.
    const float shift = largest == -kInfinity ? 0.0f : largest;
    factor = exp_of_negative(query.largest - shift);
    for (std::int64_t j = 0; j < n; ++j) s[j] = exp_of_negative(s[j] - shift);
    query.sum = query.sum * factor + sum_of(s, n);
    query.largest = largest;
  });
  return factor;
}

// Writes y = sum / query.sum and the logarithm of the sum of exponentials.
template <class T>
void finish_query(const AttentionMask& m, const Query& query, float* sum, std::int64_t columns, T* y,
                  float* log_sum_exp) {
  // A query that sees no key has the result 0 if a mask hides the keys. Scores of -inf by themselves give
  // NaN.
  const float scale = query.sum == 0 && m.mask ? 0.0f : 1 / query.sum;
  for (std::int64_t j = 0; j < columns; ++j) sum[j] *= scale;
  narrow(sum, y, columns);
  *log_sum_exp = query.sum == 0 && m.mask ? -kInfinity : query.largest + std::log(query.sum);
}

template <class T>
class Forward {
 public:
  Forward(const AttentionArgs& args, bool tiles)
      : a_(args), s_(args.shape), out_(tiles ? in_panels(s_.value_width) : padded(s_.value_width)) {}

  std::int64_t scratch_size() const {
    return kTaskQueries * (s_.width + out_) + kKeys * (s_.width + 1 + out_) + kQueries * (kKeys + kKeys / 2);
  }

  // Computes `rows` queries from `begin` on, at most kTaskQueries.
  void run(std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t rows,
           float* scratch) const {
    const std::int64_t group = head / (s_.heads / s_.groups), width = s_.width;
    float* const q = scratch;                        // (rows, width), scaled
    float* const sums = q + kTaskQueries * width;    // (rows, out_)
    float* const keys = sums + kTaskQueries * out_;  // panels of k^T
    float* const values = keys + kKeys * width;      // (kKeys, out_)
    float* const scores = values + kKeys * out_;     // (kQueries, kKeys)
    Query queries[kTaskQueries];
    copy_rows(head_of<T>(a_.q, a_.q_strides, batch, head) + begin * a_.q_strides.row, a_.q_strides.row, rows,
              width, q, width, static_cast<float>(a_.scale));
    std::fill_n(sums, rows * out_, 0.0f);
    const T* const k = head_of<T>(a_.k, a_.k_strides, batch, group);
    const T* const v = head_of<T>(a_.v, a_.v_strides, batch, group);
    const std::int64_t seen = a_.mask.causal ? std::min(s_.keys, begin + rows + a_.mask.offset) : s_.keys;
    for (std::int64_t first = 0; first < seen; first += kKeys) {
      const std::int64_t n = std::min(kKeys, s_.keys - first);
      copy_transposed(k + first * a_.k_strides.row, a_.k_strides.row, n, width, keys);
      copy_rows(v + first * a_.v_strides.row, a_.v_strides.row, n, s_.value_width, values, out_);
      for (std::int64_t at = 0; at < rows; at += queries_of(a_.mask.causal)) {
        const std::int64_t m = std::min(queries_of(a_.mask.causal), rows - at);
        const std::int64_t visible = visible_to(a_.mask, begin + at + m, first, n);
        if (visible == 0) continue;
        multiply_tiles({.m = m,
                        .n = padded(visible),
                        .depth = width,
                        .a = q + at * width,
                        .a_row = width,
                        .a_step = 1,
                        .b = keys,
                        .b_panel = width * kTileColumns,
                        .b_row = kTileColumns,
                        .c = scores,
                        .c_row = kKeys,
                        .accumulate = false});
        for (std::int64_t i = 0; i < m; ++i)
          weigh(batch, head, begin + at + i, first, visible, scores + i * kKeys, queries[at + i],
                sums + (at + i) * out_);
        multiply_tiles({.m = m,
                        .n = out_,
                        .depth = visible,
                        .a = scores,
                        .a_row = kKeys,
                        .a_step = 1,
                        .b = values,
                        .b_panel = kTileColumns,
                        .b_row = out_,
                        .c = sums + at * out_,
                        .c_row = out_,
                        .accumulate = true});
      }
    }
    finish(batch, head, begin, rows, queries, sums, out_);
  }

  // Computes the same queries in bf16 by AMX. The scores are products of bf16, and remain f32. The weights
  // are rounded to bf16 for the product with the values.
  void run_tiles(std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t rows, float* scratch,
                 AmxTiles& tiles) const {
    const std::int64_t group = head / (s_.heads / s_.groups), width = s_.width;
    const std::int64_t keys_panel = pair_panel(width), values_panel = kKeys * kPanelColumns;
    float* const sums = scratch;                                            // (rows, out_)
    float* const scores = sums + kTaskQueries * out_;                       // (kQueries, kKeys)
    auto* const weights = reinterpret_cast<T*>(scores + kQueries * kKeys);  // (kQueries, kKeys)
    T* const keys = weights + kQueries * kKeys;                             // panels of k^T
    T* const values = keys + kKeys / kPanelColumns * keys_panel;            // panels of v
    Query queries[kTaskQueries];
    std::fill_n(sums, rows * out_, 0.0f);
    const T* const q = head_of<T>(a_.q, a_.q_strides, batch, head) + begin * a_.q_strides.row;
    const T* const k = head_of<T>(a_.k, a_.k_strides, batch, group);
    const T* const v = head_of<T>(a_.v, a_.v_strides, batch, group);
    const auto scale = static_cast<float>(a_.scale);
    const std::int64_t seen = a_.mask.causal ? std::min(s_.keys, begin + rows + a_.mask.offset) : s_.keys;
    for (std::int64_t first = 0; first < seen; first += kKeys) {
      const std::int64_t n = std::min(kKeys, s_.keys - first);
      pack_panels(width, n, k + first * a_.k_strides.row, {1, a_.k_strides.row}, keys, keys_panel);
      pack_panels(n, s_.value_width, v + first * a_.v_strides.row, {a_.v_strides.row, 1}, values,
                  values_panel);
      for (std::int64_t at = 0; at < rows; at += queries_of(a_.mask.causal)) {
        const std::int64_t m = std::min(queries_of(a_.mask.causal), rows - at);
        const std::int64_t visible = visible_to(a_.mask, begin + at + m, first, n);
        if (visible == 0) continue;
        tiles.multiply({.m = m,
                        .n = in_panels(visible),
                        .depth = width,
                        .a = q + at * a_.q_strides.row,
                        .a_row = a_.q_strides.row,
                        .b = keys,
                        .b_panel = keys_panel,
                        .c = scores,
                        .c_row = kKeys,
                        .accumulate = false});
        for (std::int64_t i = 0; i < m; ++i) {
          float* const row = scores + i * kKeys;
          for (std::int64_t j = 0; j < visible; ++j) row[j] *= scale;
          weigh(batch, head, begin + at + i, first, visible, row, queries[at + i], sums + (at + i) * out_);
          from_float(row, weights + i * kKeys, visible);
        }
        tiles.multiply({.m = m,
                        .n = out_,
                        .depth = visible,
                        .a = weights,
                        .a_row = kKeys,
                        .b = values,
                        .b_panel = values_panel,
                        .c = sums + at * out_,
                        .c_row = out_,
                        .accumulate = true});
      }
    }
    finish(batch, head, begin, rows, queries, sums, out_);
  }

  // Computes a few queries, for instance the newest token of a text. Reads keys and values where they are.
  void run_few(std::int64_t batch, std::int64_t head, float* scratch) const {
    const std::int64_t group = head / (s_.heads / s_.groups), width = s_.width, columns = s_.value_width;
    float* const q = scratch;
    float* const sums = q + kFewQueries * width;
    [[maybe_unused]] float* const line = sums + kFewQueries * out_;  // a converted key or value
    float* const scores = line + std::max(width, columns);
    Query queries[kFewQueries];
    copy_rows(head_of<T>(a_.q, a_.q_strides, batch, head), a_.q_strides.row, s_.queries, width, q, width,
              static_cast<float>(a_.scale));
    std::fill_n(sums, s_.queries * out_, 0.0f);
    const T* const k = head_of<T>(a_.k, a_.k_strides, batch, group);
    const T* const v = head_of<T>(a_.v, a_.v_strides, batch, group);
    const std::int64_t seen = a_.mask.causal ? std::min(s_.keys, s_.queries + a_.mask.offset) : s_.keys;
    for (std::int64_t first = 0; first < seen; first += kKeys) {
      const std::int64_t n = std::min(kKeys, s_.keys - first);
      if constexpr (std::is_same_v<T, float>) {
        for (std::int64_t i = 0; i < s_.queries; ++i)
          dot_all_rows(q + i * width, k + first * a_.k_strides.row, a_.k_strides.row, n, width,
                       scores + i * kKeys);
      } else {
        for (std::int64_t j = 0; j < n; ++j) {
          to_float(k + (first + j) * a_.k_strides.row, line, width);
          for (std::int64_t i = 0; i < s_.queries; ++i)
            dot_rows<1>(q + i * width, line, 0, width, scores + i * kKeys + j);
        }
      }
      for (std::int64_t i = 0; i < s_.queries; ++i) {
        mask_row<T>(a_.mask, batch, head, i, first, n, scores + i * kKeys);
        const float factor = exponentials(queries[i], scores + i * kKeys, padded(n));
        drop_row(a_.dropout, s_, batch, head, i, first, n, scores + i * kKeys);
        for (std::int64_t c = 0; c < columns; ++c) sums[i * out_ + c] *= factor;
      }
      if constexpr (std::is_same_v<T, float>) {
        for (std::int64_t i = 0; i < s_.queries; ++i)
          add_rows(scores + i * kKeys, v + first * a_.v_strides.row, a_.v_strides.row, n, columns,
                   sums + i * out_);
      } else {
        for (std::int64_t j = 0; j < n; ++j) {
          to_float(v + (first + j) * a_.v_strides.row, line, columns);
          for (std::int64_t i = 0; i < s_.queries; ++i)
            add_rows(scores + i * kKeys + j, line, 0, 1, columns, sums + i * out_);
        }
      }
    }
    finish(batch, head, 0, s_.queries, queries, sums, out_);
  }

 private:
  // Replaces the scores of query i and the keys that begin at `first` by their weights, and scales the sum of
  // the keys before them.
  void weigh(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t first, std::int64_t visible,
             float* row, Query& query, float* sum) const {
    mask_row<T>(a_.mask, batch, head, i, first, visible, row);
    const float factor = exponentials(query, row, padded(visible));
    drop_row(a_.dropout, s_, batch, head, i, first, visible, row);
    if (factor != 1)
      for (std::int64_t j = 0; j < out_; ++j) sum[j] *= factor;
  }

  void finish(std::int64_t batch, std::int64_t head, std::int64_t begin, std::int64_t rows,
              const Query* queries, float* sums, std::int64_t width) const {
    T* const y = head_of<T>(a_.y, a_.y_strides, batch, head);
    float* const logs = a_.log_sum_exp.as<float>() + (batch * s_.heads + head) * s_.queries;
    for (std::int64_t i = 0; i < rows; ++i)
      finish_query(a_.mask, queries[i], sums + i * width, s_.value_width, y + (begin + i) * a_.y_strides.row,
                   logs + begin + i);
  }

  const AttentionArgs& a_;
  const AttentionShape& s_;
  const std::int64_t out_;
};

template <class T>
void forward_kernel(const LaunchContext& context, const AttentionArgs& a) {
  const AttentionShape& s = a.shape;
  const bool few = s.queries <= kFewQueries;
  const bool tiles = std::is_same_v<T, BFloat16> && !few && amx_tiles();
  const Forward<T> forward(a, tiles);
  const std::int64_t per_head = few ? 1 : blocks(s.queries, kTaskQueries),
                     tasks = s.batch * s.heads * per_head;
  const std::int64_t work = std::min(s.queries, kTaskQueries) * s.keys * (s.width + s.value_width) / 8;
  parallel_for(tasks, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, forward.scratch_size());
    AmxTiles registers;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / per_head % s.heads, batch = task / per_head / s.heads;
      if (few) {
        forward.run_few(batch, head, scratch.data());
        continue;
      }
      const std::int64_t first = task % per_head * kTaskQueries;
      const std::int64_t rows = std::min(kTaskQueries, s.queries - first);
      if constexpr (std::is_same_v<T, BFloat16>)
        if (tiles) {
          forward.run_tiles(batch, head, first, rows, scratch.data(), registers);
          continue;
        }
      forward.run(batch, head, first, rows, scratch.data());
    }
  });
}

[[maybe_unused]] const bool filled = for_types<float, Half, BFloat16>(
    []<class T> { attention.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
