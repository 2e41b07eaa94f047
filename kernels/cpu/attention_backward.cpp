// Attention's backward pass, in f32 or, where the processor has AMX, in bf16.
#include <functional>

#include "tapestry/kernels/cpu/attention.h"
#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/matmul_amx.h"
#include "tapestry/kernels/cpu/rows.h"
#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {
namespace {

using namespace attention_parts;

// About how many tasks the backward pass divides the keys into. The number is fixed, so that the order of the
// sums does not depend on the number of threads.
constexpr std::int64_t kBackwardTasks = 32;

template <class T>
class BackwardPass {
 public:
  BackwardPass(const AttentionBackwardArgs& args, const float* deltas, bool tiles)
      : a_(args),
        s_(args.shape),
        in_(tiles ? in_panels(s_.width) : padded(s_.width)),
        out_(tiles ? in_panels(s_.value_width) : padded(s_.value_width)),
        deltas_(deltas) {}

  std::int64_t row_size() const { return in_; }
  std::int64_t scratch_size() const {
    return kKeys * (s_.width + s_.value_width + 2 + in_) + kKeys * (in_ + out_) + kQueries * (in_ + out_) +
           2 * kQueries * kKeys + kQueries * kKeys / 2;
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
        const std::int64_t block = queries_of(a_.mask.causal);
        for (std::int64_t at = first_seeing(first); at < s_.queries; at += block) {
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

  // Computes the same in bf16 by AMX. Scores and their gradients are products of bf16, and remain f32. The
  // weights and the gradients of the scores are rounded to bf16 for the products with dy, q and the keys.
  void run_tiles(std::int64_t batch, std::int64_t group, std::int64_t begin, std::int64_t end, float* dq,
                 float* scratch, AmxTiles& tiles) const {
    const std::int64_t shared = s_.heads / s_.groups, width = s_.width, value_width = s_.value_width;
    const std::int64_t k_row = a_.k_strides.row, q_row = a_.q_strides.row, dy_row = a_.dy_strides.row;
    const std::int64_t key_panel = pair_panel(width), value_panel = pair_panel(value_width);
    float* const dk = scratch;                                          // (kKeys, in_)
    float* const dv = dk + kKeys * in_;                                 // (kKeys, out_)
    float* const p = dv + kKeys * out_;                                 // (kQueries, kKeys)
    float* const ds = p + kQueries * kKeys;                             // (kQueries, kKeys)
    auto* const rounded = reinterpret_cast<T*>(ds + kQueries * kKeys);  // ds, p^T, then ds^T
    T* const keys_t = rounded + kQueries * kKeys;                       // panels of k^T
    T* const values_t = keys_t + kKeys / kPanelColumns * key_panel;     // panels of v^T
    T* const keys = values_t + kKeys / kPanelColumns * value_panel;     // panels of k
    T* const q_panels = keys + kKeys * in_;                             // panels of q
    T* const dy_panels = q_panels + kQueries * in_;                     // panels of dy
    const auto scale = static_cast<float>(a_.scale);
    const T* const k = head_of<T>(a_.k, a_.k_strides, batch, group);
    const T* const v = head_of<T>(a_.v, a_.v_strides, batch, group);
    for (std::int64_t first = begin; first < end; first += kKeys) {
      const std::int64_t n = std::min(kKeys, end - first);
      pack_panels(width, n, k + first * k_row, {1, k_row}, keys_t, key_panel);
      pack_panels(value_width, n, v + first * a_.v_strides.row, {1, a_.v_strides.row}, values_t, value_panel);
      pack_panels(n, width, k + first * k_row, {k_row, 1}, keys, kKeys * kPanelColumns);
      std::fill_n(dk, n * in_, 0.0f);
      std::fill_n(dv, n * out_, 0.0f);
      for (std::int64_t head = group * shared; head < (group + 1) * shared; ++head) {
        const std::int64_t row0 = (batch * s_.heads + head) * s_.queries;
        const float* const logs = a_.log_sum_exp.as<float>() + row0;
        const std::int64_t block = queries_of(a_.mask.causal);
        for (std::int64_t at = first_seeing(first); at < s_.queries; at += block) {
          const std::int64_t m = std::min(block, s_.queries - at);
          const std::int64_t visible = visible_to(a_.mask, at + m, first, n);
          if (visible == 0) continue;
          const T* const q = head_of<T>(a_.q, a_.q_strides, batch, head) + at * q_row;
          const T* const dy = head_of<T>(a_.dy, a_.dy_strides, batch, head) + at * dy_row;
          const auto multiply = [&tiles](std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                         const T* a, std::int64_t a_row, const T* b, std::int64_t b_panel,
                                         float* c, std::int64_t c_row, bool accumulate) {
            tiles.multiply({rows, in_panels(columns), depth, a, a_row, b, b_panel, c, c_row, accumulate});
          };
          multiply(m, visible, width, q, q_row, keys_t, key_panel, p, kKeys, false);
          multiply(m, visible, value_width, dy, dy_row, values_t, value_panel, ds, kKeys, false);
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < visible; ++j) p[i * kKeys + j] *= scale;
            score_gradients(batch, head, at + i, first, visible, logs[at + i], deltas_[row0 + at + i],
                            p + i * kKeys, ds + i * kKeys);
            from_float(ds + i * kKeys, rounded + i * kKeys, visible);
          }
          multiply(m, width, visible, rounded, kKeys, keys, kKeys * kPanelColumns, dq + (row0 + at) * in_,
                   in_, true);
          pack_panels(m, value_width, dy, {dy_row, 1}, dy_panels, kQueries * kPanelColumns);
          round_transposed(p, m, visible, rounded);
          multiply(visible, value_width, m, rounded, kQueries, dy_panels, kQueries * kPanelColumns, dv, out_,
                   true);
          pack_panels(m, width, q, {q_row, 1}, q_panels, kQueries * kPanelColumns);
          round_transposed(ds, m, visible, rounded);
          multiply(visible, width, m, rounded, kQueries, q_panels, kQueries * kPanelColumns, dk, in_, true);
        }
      }
      for (std::int64_t i = 0; i < n * in_; ++i) dk[i] *= scale;
      write(a_.dk, a_.dk_strides, batch, group, first, n, dk, in_, width);
      write(a_.dv, a_.dv_strides, batch, group, first, n, dv, out_, value_width);
    }
  }

 private:
  // With a causal mask, queries before key `first` - offset see neither this key nor later ones. Returns the
  // first query of a block.
  std::int64_t first_seeing(std::int64_t first) const {
    const std::int64_t block = queries_of(a_.mask.causal);
    return a_.mask.causal ? std::max<std::int64_t>(first - a_.mask.offset, 0) / block * block : 0;
  }

  // Writes the transposed matrix of m rows, which are kKeys elements apart, in bf16: `columns` rows that are
  // kQueries elements apart.
  static void round_transposed(const float* x, std::int64_t m, std::int64_t columns, T* to) {
    float lines[8 * kQueries];
    for (std::int64_t j = 0; j < columns; j += 8) {
      for (std::int64_t i = 0; i < m; i += 8)
        transpose_square(x + i * kKeys + j, 4 * kKeys, lines + i, kQueries);
      for (std::int64_t r = j; r < std::min(j + 8, columns); ++r)
        from_float(lines + (r - j) * kQueries, to + r * kQueries, m);
    }
  }

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
  const std::int64_t heads = s.batch * s.heads, queries = heads * s.queries;
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
  const bool tiles = std::is_same_v<T, BFloat16> && s.queries > kFewQueries && amx_tiles();
  const BackwardPass<T> pass(a, deltas.data(), tiles);
  const std::int64_t in = pass.row_size(), part = queries * in;
  const Scratch<float> parts(context.device, chunks * part);
  const std::int64_t shared = s.heads / s.groups;
  const std::int64_t work = chunk * s.queries * shared * (s.width + s.value_width) / 4;
  parallel_for(groups * chunks, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, pass.scratch_size());
    AmxTiles registers;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t index = task / groups, group = task % s.groups, batch = task % groups / s.groups;
      float* const dq = parts.data() + index * part;
      std::fill_n(dq + (batch * s.heads + group * shared) * s.queries * in, shared * s.queries * in, 0.0f);
      const std::int64_t first = index * chunk, last = std::min(s.keys, first + chunk);
      if constexpr (std::is_same_v<T, BFloat16>)
        if (tiles) {
          pass.run_tiles(batch, group, first, last, dq, scratch.data(), registers);
          continue;
        }
      pass.run(batch, group, first, last, dq, scratch.data());
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

[[maybe_unused]] const bool filled = for_types<float, Half, BFloat16>(
    []<class T> { attention_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
