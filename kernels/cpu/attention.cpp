// Attention block by block (Dao 2023, "FlashAttention-2", algorithms 1 and 2), in f32. A block is kQueries
// queries by kKeys keys. Its scores, 48 KiB, stay in the L2 cache between the two products, and so are never
// written to memory. What the inner loops of a product read again and again, one or two panels of 16 keys or
// 16 features of the values, takes at most 16 KiB with up to 128 features, and stays in the L1 cache. The
// number of keys of a block must not depend on the processor: it decides the order of sums, and ranks of a job
// would differ.
#include "tapestry/kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tapestry/core/philox.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/dot.h"
#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/rows.h"
#include "tapestry/kernels/cpu/tile.h"
#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kKeys = 128;
constexpr std::int64_t kQueries = 96;  // a multiple of kTileRows
// Queries with a causal mask are computed in smaller blocks, which reach less far into what the mask hides.
constexpr std::int64_t kCausalQueries = 48;
// A task of the forward pass copies each block of keys once for so many queries.
constexpr std::int64_t kTaskQueries = 2 * kQueries;
// With fewer queries, copying the keys into panels would take longer than the products.
constexpr std::int64_t kFewQueries = 4;
// The backward pass divides the keys until there are about so many tasks. The number is fixed, so that the
// order of the sums does not depend on the number of threads.
constexpr std::int64_t kBackwardTasks = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::int64_t padded(std::int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
}
constexpr std::int64_t queries_of(bool causal) { return causal ? kCausalQueries : kQueries; }
constexpr std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

template <class T>
void widen(const T* from, float* to, std::int64_t n) {
  if constexpr (is_half<T>) to_float(from, to, n);
  else std::copy_n(from, n, to);
}
template <class T>
void narrow(const float* from, T* to, std::int64_t n) {
  if constexpr (is_half<T>) from_float(from, to, n);
  else std::copy_n(from, n, to);
}

// Copies rows to an array whose rows have `width` elements, a multiple of kTileColumns. The rest of a row
// becomes 0.
template <class T>
void copy_rows(const T* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t width, float factor = 1) {
  for (std::int64_t i = 0; i < rows; ++i, from += from_row, to += width) {
    widen(from, to, columns);
    if (factor != 1)
      for (std::int64_t j = 0; j < columns; ++j) to[j] *= factor;
    std::fill(to + columns, to + width, 0.0f);
  }
}

// Writes the transposed matrix of 8 rows and 8 columns.
inline void transpose_square(const float* from, std::int64_t from_row, float* to, std::int64_t to_row) {
  TileVector r[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i) detail::load_tile(r[i], from + i * from_row);
  for (int i = 0; i < 8; i += 2) {  // pairs[i] has columns 0, 1, 4 and 5 of rows i and i + 1
    pairs[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int c = 0; c < 2; ++c) {  // fours[i + j] has columns j and j + 4 of rows i to i + 3
      const TileVector &low = pairs[i + c], &high = pairs[i + 2 + c];
      fours[i + 2 * c] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * c + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int c = 0; c < 4; ++c) {
    detail::store_tile(to + c * to_row,
                       __builtin_shufflevector(fours[c], fours[4 + c], 0, 1, 2, 3, 8, 9, 10, 11));
    detail::store_tile(to + (c + 4) * to_row,
                       __builtin_shufflevector(fours[c], fours[4 + c], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// Copies rows to panels of the transposed matrix: panel j has kTileColumns rows as its columns. Missing rows
// of the last panel become 0.
template <class T>
void copy_transposed(const T* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns,
                     float* to) {
  float line[64];
  for (std::int64_t i = 0; i < padded(rows); ++i) {
    float* const column = to + i / kTileColumns * columns * kTileColumns + i % kTileColumns;
    std::int64_t begin = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (i / 8 * 8 + 8 <= rows) {
        if (i % 8 == 0)
          for (std::int64_t c = 0; c + 8 <= columns; c += 8)
            transpose_square(from + i * from_row + c, from_row, column + c * kTileColumns, kTileColumns);
        begin = columns / 8 * 8;  // the squares have the columns before
      }
    }
    for (std::int64_t c = begin; c < columns; c += 64) {
      const std::int64_t n = std::min<std::int64_t>(64, columns - c);
      if (i < rows) widen(from + i * from_row + c, line, n);
      else std::fill_n(line, n, 0.0f);
      for (std::int64_t e = 0; e < n; ++e) column[(c + e) * kTileColumns] = line[e];
    }
  }
}

// The rows of one head.
template <class T>
const T* head_of(const ConstArray& x, const AttentionStrides& s, std::int64_t batch, std::int64_t head) {
  return x.as<T>() + batch * s.batch + head * s.head;
}
template <class T>
T* head_of(const MutableArray& x, const AttentionStrides& s, std::int64_t batch, std::int64_t head) {
  return x.as<T>() + batch * s.batch + head * s.head;
}

// Applies the mask to the scores of query i and the keys that begin at `first`. s has padded(n) scores of n
// keys.
template <class T>
void mask_row(const AttentionMask& m, std::int64_t batch, std::int64_t head, std::int64_t i,
              std::int64_t first, std::int64_t n, float* s) {
  if (m.mask) {
    const std::int64_t at = batch * m.batch + head * m.head + i * m.query + first * m.key;
    if (m.mask.dtype() == DType::boolean) {
      const bool* const seen = m.mask.as<bool>() + at;
      for (std::int64_t j = 0; j < n; ++j) s[j] = seen[j * m.key] ? s[j] : -kInfinity;
    } else {
      const T* const added = m.mask.as<T>() + at;
      for (std::int64_t j = 0; j < n; ++j) s[j] += load(added[j * m.key]);
    }
  }
  const std::int64_t visible = m.causal ? std::clamp<std::int64_t>(i + 1 + m.offset - first, 0, n) : n;
  std::fill(s + visible, s + padded(n), -kInfinity);
}

// The number of the n keys from `first` on that some query before `end` may see.
std::int64_t visible_to(const AttentionMask& m, std::int64_t end, std::int64_t first, std::int64_t n) {
  return m.causal ? std::clamp<std::int64_t>(end + m.offset - first, 0, n) : n;
}

// Applies dropout to what belongs to the weights of query i and the keys that begin at `first`.
void drop_row(const AttentionDropout& d, const AttentionShape& s, std::int64_t batch, std::int64_t head,
              std::int64_t i, std::int64_t first, std::int64_t n, float* x) {
  if (d.threshold == 0) return;
  const auto scale = static_cast<float>(d.scale);
  const auto begin = static_cast<std::uint64_t>(((batch * s.heads + head) * s.queries + i) * s.keys + first);
  Philox4 four = philox(d.range.seed, d.range.offset + begin / 4);
  for (std::int64_t j = 0; j < n; ++j) {
    const std::uint64_t e = begin + static_cast<std::uint64_t>(j);
    if (j > 0 && e % 4 == 0) four = philox(d.range.seed, d.range.offset + e / 4);
    x[j] = four.v[e % 4] >> 8 >= d.threshold ? x[j] * scale : 0.0f;
  }
}

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
  explicit Forward(const AttentionArgs& args) : a_(args), s_(args.shape), out_(padded(s_.value_width)) {}

  static std::int64_t scratch_size(const AttentionShape& s) {
    return kTaskQueries * (s.width + padded(s.value_width)) + kKeys * (s.width + padded(s.value_width)) +
           kQueries * kKeys;
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
        for (std::int64_t i = 0; i < m; ++i) {
          float* const row = scores + i * kKeys;
          mask_row<T>(a_.mask, batch, head, begin + at + i, first, visible, row);
          const float factor = exponentials(queries[at + i], row, padded(visible));
          drop_row(a_.dropout, s_, batch, head, begin + at + i, first, visible, row);
          float* const sum = sums + (at + i) * out_;
          if (factor != 1)
            for (std::int64_t j = 0; j < out_; ++j) sum[j] *= factor;
        }
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
  const Forward<T> forward(a);
  const bool few = s.queries <= kFewQueries;
  const std::int64_t per_head = few ? 1 : blocks(s.queries, kTaskQueries),
                     tasks = s.batch * s.heads * per_head;
  const std::int64_t work = std::min(s.queries, kTaskQueries) * s.keys * (s.width + s.value_width) / 8;
  parallel_for(tasks, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, Forward<T>::scratch_size(s));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / per_head % s.heads, batch = task / per_head / s.heads;
      if (few) {
        forward.run_few(batch, head, scratch.data());
        continue;
      }
      const std::int64_t first = task % per_head * kTaskQueries;
      forward.run(batch, head, first, std::min(kTaskQueries, s.queries - first), scratch.data());
    }
  });
}

template <class T>
class BackwardPass {
 public:
  BackwardPass(const AttentionBackwardArgs& args, const float* deltas)
      : a_(args), s_(args.shape), in_(padded(s_.width)), out_(padded(s_.value_width)), deltas_(deltas) {}

  static std::int64_t scratch_size(const AttentionShape& s) {
    const std::int64_t in = padded(s.width), out = padded(s.value_width);
    return kKeys * (s.width + s.value_width + in) + kKeys * (in + out) + kQueries * (in + out) +
           2 * kQueries * kKeys;
  }

  // Computes the gradients of the keys and values in [begin, end) of a group, and their part of the gradient
  // of q, which is added to `dq`, a dense (batch, heads, queries, in_) array that is 0 at first.
  void run(std::int64_t batch, std::int64_t group, std::int64_t begin, std::int64_t end, float* dq,
           float* scratch) const {
    const std::int64_t shared = s_.heads / s_.groups, width = s_.width, value_width = s_.value_width;
    float* const keys_t = scratch;                       // panels of k^T
    float* const values_t = keys_t + kKeys * width;      // panels of v^T
    float* const keys = values_t + kKeys * value_width;  // (kKeys, in_)
    float* const dk = keys + kKeys * in_;                // (kKeys, in_)
    float* const dv = dk + kKeys * in_;                  // (kKeys, out_)
    float* const q = dv + kKeys * out_;                  // (kQueries, in_), scaled
    float* const dy = q + kQueries * in_;                // (kQueries, out_)
    float* const p = dy + kQueries * out_;               // (kQueries, kKeys)
    float* const ds = p + kQueries * kKeys;              // (kQueries, kKeys)
    const auto scale = static_cast<float>(a_.scale);
    const T* const k = head_of<T>(a_.k, a_.k_strides, batch, group);
    const T* const v = head_of<T>(a_.v, a_.v_strides, batch, group);
    for (std::int64_t first = begin; first < end; first += kKeys) {
      const std::int64_t n = std::min(kKeys, end - first);
      copy_transposed(k + first * a_.k_strides.row, a_.k_strides.row, n, width, keys_t);
      copy_transposed(v + first * a_.v_strides.row, a_.v_strides.row, n, value_width, values_t);
      copy_rows(k + first * a_.k_strides.row, a_.k_strides.row, n, width, keys, in_);
      std::fill_n(dk, n * in_, 0.0f);
      std::fill_n(dv, n * out_, 0.0f);
      for (std::int64_t head = group * shared; head < (group + 1) * shared; ++head) {
        const std::int64_t row0 = (batch * s_.heads + head) * s_.queries;
        const float* const logs = a_.log_sum_exp.as<float>() + row0;
        // With a causal mask, queries before first - offset see none of these keys.
        const std::int64_t block = queries_of(a_.mask.causal);
        const std::int64_t seeing =
            a_.mask.causal ? std::max<std::int64_t>(first - a_.mask.offset, 0) / block * block : 0;
        for (std::int64_t at = seeing; at < s_.queries; at += block) {
          const std::int64_t m = std::min(block, s_.queries - at);
          const std::int64_t visible = visible_to(a_.mask, at + m, first, n);
          if (visible == 0) continue;
          copy_rows(head_of<T>(a_.q, a_.q_strides, batch, head) + at * a_.q_strides.row, a_.q_strides.row, m,
                    width, q, in_, scale);
          copy_rows(head_of<T>(a_.dy, a_.dy_strides, batch, head) + at * a_.dy_strides.row, a_.dy_strides.row,
                    m, value_width, dy, out_);
          multiply_tiles({.m = m,
                          .n = padded(visible),
                          .depth = width,
                          .a = q,
                          .a_row = in_,
                          .a_step = 1,
                          .b = keys_t,
                          .b_panel = width * kTileColumns,
                          .b_row = kTileColumns,
                          .c = p,
                          .c_row = kKeys,
                          .accumulate = false});
          multiply_tiles({.m = m,
                          .n = padded(visible),
                          .depth = value_width,
                          .a = dy,
                          .a_row = out_,
                          .a_step = 1,
                          .b = values_t,
                          .b_panel = value_width * kTileColumns,
                          .b_row = kTileColumns,
                          .c = ds,
                          .c_row = kKeys,
                          .accumulate = false});
          for (std::int64_t i = 0; i < m; ++i)
            score_gradients(batch, head, at + i, first, visible, logs[at + i], deltas_[row0 + at + i],
                            p + i * kKeys, ds + i * kKeys);
          multiply_tiles({.m = visible,
                          .n = out_,
                          .depth = m,
                          .a = p,
                          .a_row = 1,
                          .a_step = kKeys,
                          .b = dy,
                          .b_panel = kTileColumns,
                          .b_row = out_,
                          .c = dv,
                          .c_row = out_,
                          .accumulate = true});
          multiply_tiles({.m = visible,
                          .n = in_,
                          .depth = m,
                          .a = ds,
                          .a_row = 1,
                          .a_step = kKeys,
                          .b = q,
                          .b_panel = kTileColumns,
                          .b_row = in_,
                          .c = dk,
                          .c_row = in_,
                          .accumulate = true});
          multiply_tiles({.m = m,
                          .n = in_,
                          .depth = visible,
                          .a = ds,
                          .a_row = kKeys,
                          .a_step = 1,
                          .b = keys,
                          .b_panel = kTileColumns,
                          .b_row = in_,
                          .c = dq + (row0 + at) * in_,
                          .c_row = in_,
                          .accumulate = true});
        }
      }
      write(a_.dk, a_.dk_strides, batch, group, first, n, dk, in_, width);
      write(a_.dv, a_.dv_strides, batch, group, first, n, dv, out_, value_width);
    }
  }

 private:
  // Replaces scores by the weights after dropout, and their gradients by those of the scores: p (dp - delta),
  // where p = exp(score - log_sum_exp) and dp are the weights before dropout and their gradients.
  void score_gradients(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t first,
                       std::int64_t n, float log_sum_exp, float delta, float* p, float* ds) const {
    mask_row<T>(a_.mask, batch, head, i, first, n, p);
    const std::int64_t columns = padded(n);
    if (log_sum_exp == -kInfinity) {  // the query sees no key
      std::fill_n(p, columns, 0.0f);
      std::fill_n(ds, columns, 0.0f);
      return;
    }
    with_wide_vectors([p, columns, log_sum_exp] {
      for (std::int64_t j = 0; j < columns; ++j) p[j] = fast_exp(p[j] - log_sum_exp);
    });
    drop_row(a_.dropout, s_, batch, head, i, first, n, ds);
    for (std::int64_t j = 0; j < columns; ++j) ds[j] = p[j] * (ds[j] - delta);
    drop_row(a_.dropout, s_, batch, head, i, first, n, p);
  }

  void write(const MutableArray& out, const AttentionStrides& strides, std::int64_t batch, std::int64_t group,
             std::int64_t first, std::int64_t rows, const float* from, std::int64_t from_row,
             std::int64_t columns) const {
    if (!out) return;
    T* const to = head_of<T>(out, strides, batch, group) + first * strides.row;
    for (std::int64_t i = 0; i < rows; ++i) narrow(from + i * from_row, to + i * strides.row, columns);
  }

  const AttentionBackwardArgs& a_;
  const AttentionShape& s_;
  const std::int64_t in_, out_;
  const float* const deltas_;
};

template <class T>
void backward_kernel(const LaunchContext& context, const AttentionBackwardArgs& a) {
  const AttentionShape& s = a.shape;
  const std::int64_t heads = s.batch * s.heads, queries = heads * s.queries, in = padded(s.width);
  // delta = sum(y dy), which is also sum(p dp) over the keys
  const Scratch<float> deltas(context.device, queries);
  parallel_for(queries, grain_of(s.value_width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t i = row % s.queries, head = row / s.queries % s.heads,
                         batch = row / s.queries / s.heads;
      const T* const y = head_of<T>(a.y, a.y_strides, batch, head) + i * a.y_strides.row;
      const T* const dy = head_of<T>(a.dy, a.dy_strides, batch, head) + i * a.dy_strides.row;
      deltas.data()[row] = fold_lanes(
          s.value_width, 0.0f, [=](std::int64_t c) { return load(y[c]) * load(dy[c]); }, std::plus<>());
    }
  });

  // Tasks that divide the keys of a group compute parts of the gradient of q, which are added in order.
  const std::int64_t groups = s.batch * s.groups, key_blocks = blocks(s.keys, kKeys);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(blocks(kBackwardTasks, groups), 1, std::min<std::int64_t>(key_blocks, 8));
  const std::int64_t chunk = blocks(key_blocks, wanted) * kKeys, chunks = blocks(s.keys, chunk);
  const Scratch<float> parts(context.device, chunks * queries * in);
  const std::int64_t part = queries * in;
  const BackwardPass<T> pass(a, deltas.data());
  const std::int64_t shared = s.heads / s.groups;
  const std::int64_t work = chunk * s.queries * shared * (s.width + s.value_width) / 4;
  parallel_for(groups * chunks, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, BackwardPass<T>::scratch_size(s));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t index = task / groups, group = task % s.groups, batch = task % groups / s.groups;
      float* const dq = parts.data() + index * part;
      std::fill_n(dq + (batch * s.heads + group * shared) * s.queries * in, shared * s.queries * in, 0.0f);
      pass.run(batch, group, index * chunk, std::min(s.keys, (index + 1) * chunk), dq, scratch.data());
    }
  });
  if (!a.dq) return;
  const auto scale = static_cast<float>(a.scale);
  parallel_for(queries, grain_of(in * (chunks + 1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t i = row % s.queries, head = row / s.queries % s.heads,
                         batch = row / s.queries / s.heads;
      float* const sum = parts.data() + row * in;
      for (std::int64_t c = 1; c < chunks; ++c)
        for (std::int64_t j = 0; j < s.width; ++j) sum[j] += sum[c * part + j];
      for (std::int64_t j = 0; j < s.width; ++j) sum[j] *= scale;
      narrow(sum, head_of<T>(a.dq, a.dq_strides, batch, head) + i * a.dq_strides.row, s.width);
    }
  });
}

[[maybe_unused]] const bool filled = for_types<float, Half, BFloat16>([]<class T> {
  attention.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T>);
  attention_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
