#pragma once
// Cases of attention and their reference in f64, for the tests of the CUDA kernels.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tapestry/core/philox.h"
#include "tapestry/kernels/ops/attention.h"
#include "tests/emulated/values.h"

namespace emulated {

namespace ops = tapestry::kernels;

enum class Mask { none, causal, seen, seen_by_key, added };

struct AttentionCase {
  ops::AttentionShape shape;
  Mask mask = Mask::none;
  std::int64_t offset = 0;
  bool by_rows = false;   // heads lie within rows, as a layer makes them
  std::size_t shift = 0;  // elements from a 16-byte boundary to the first element
  std::int64_t gap = 0;   // additional elements between rows
  double size = 1;        // of the elements of q
  double scale = 0.25;
  std::uint32_t threshold = 0;  // of dropout, in 2^-24
};

/// The rows of an array in memory, with gaps that contain NaN.
struct Layout {
  std::int64_t batch, heads, rows, columns;
  ops::AttentionStrides strides;
  std::size_t elements;

  Layout(const AttentionCase& c, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t n)
      : batch(b), heads(h), rows(r), columns(n) {
    const std::int64_t pitch = n + c.gap;
    if (c.by_rows) strides = {r * h * pitch, pitch, h * pitch};
    else strides = {h * r * pitch, r * pitch, pitch};
    elements = static_cast<std::size_t>(b * h * r * pitch);
  }
  std::size_t at(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
    return static_cast<std::size_t>(b * strides.batch + h * strides.head + r * strides.row + c);
  }
  /// Spreads dense values; what lies between rows is NaN.
  Values spread(const Values& dense) const {
    Values out(elements, kNaN);
    std::size_t i = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c) out[at(b, h, r, c)] = dense[i++];
    return out;
  }
};

/// Dense results in f64, and the sums of the magnitudes of their terms.
struct AttentionReference {
  Values y, log_sum_exp, dq, dk, dv;
  Values y_size, dq_size, dk_size, dv_size;
};

struct AttentionInputs {
  Values q, k, v, dy, mask;  // mask: 0 or 1, or what is added
};

inline ops::AttentionDropout dropout_of(const AttentionCase& c) {
  return {.range = {.seed = 0x1234567890abcdefu, .offset = (1ull << 33) + 5},
          .threshold = c.threshold,
          .scale = c.threshold == 1u << 24 ? 0 : 1 / (1 - c.threshold * 0x1p-24)};
}

/// Strides of the mask: batch, head, query, key. A mask is transposed in memory and shared by the heads.
inline ops::AttentionMask mask_of(const AttentionCase& c) {
  ops::AttentionMask m;
  m.causal = c.mask == Mask::causal, m.offset = c.offset;
  if (c.mask == Mask::seen_by_key) m.batch = c.shape.keys, m.key = 1;
  else m.batch = c.shape.keys * c.shape.queries, m.query = 1, m.key = c.shape.queries;
  return m;
}

inline AttentionInputs inputs_of(const AttentionCase& c) {
  const ops::AttentionShape& s = c.shape;
  AttentionInputs in;
  in.q = numbers(s.batch * s.heads * s.queries * s.width, 1, c.size);
  in.k = numbers(s.batch * s.groups * s.keys * s.width, 2, 1);
  in.v = numbers(s.batch * s.groups * s.keys * s.value_width, 3, 2);
  in.dy = numbers(s.batch * s.heads * s.queries * s.value_width, 4, 1);
  for (double& x : in.v) x += 1;  // a mean that is not 0
  if (c.mask == Mask::added) {
    in.mask = numbers(s.batch * s.queries * s.keys, 5, 2);
    for (std::int64_t j = 0; j < s.keys; ++j)  // the last query of the first batch sees nothing
      in.mask[static_cast<std::size_t>(j * s.queries + s.queries - 1)] = -kInfinity;
  } else if (c.mask == Mask::seen || c.mask == Mask::seen_by_key) {
    const bool whole = c.mask == Mask::seen;
    in.mask = numbers(s.batch * s.keys * (whole ? s.queries : 1), 6, 1);
    for (double& x : in.mask) x = x > -0.3;
    if (whole)
      for (std::int64_t j = 0; j < s.keys; ++j) in.mask[static_cast<std::size_t>(j * s.queries)] = 0;
  }
  return in;
}

/// Attention with the whole matrix of scores.
inline AttentionReference reference(const AttentionCase& c, const AttentionInputs& in) {
  const ops::AttentionShape& s = c.shape;
  const ops::AttentionMask m = mask_of(c);
  const ops::AttentionDropout d = dropout_of(c);
  AttentionReference r;
  r.y.resize(in.dy.size()), r.y_size.resize(in.dy.size());
  r.log_sum_exp.resize(static_cast<std::size_t>(s.batch * s.heads * s.queries));
  r.dq.resize(in.q.size()), r.dq_size.resize(in.q.size());
  r.dk.resize(in.k.size()), r.dk_size.resize(in.k.size());
  r.dv.resize(in.v.size()), r.dv_size.resize(in.v.size());
  const auto n = static_cast<std::size_t>(s.keys), E = static_cast<std::size_t>(s.width),
             V = static_cast<std::size_t>(s.value_width);
  Values p(n), kept(n), dp(n), dp_size(n);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const auto row = static_cast<std::size_t>((b * s.heads + h) * s.queries + i);
        const auto first = static_cast<std::size_t>((b * s.groups + h / (s.heads / s.groups)) * s.keys);
        double most = -kInfinity, sum = 0;
        for (std::size_t j = 0; j < n; ++j) {
          const auto key = static_cast<std::int64_t>(j);
          double score = 0;
          for (std::size_t e = 0; e < E; ++e) score += in.q[row * E + e] * in.k[(first + j) * E + e];
          score *= c.scale;
          if (!in.mask.empty()) {
            const double mask =
                in.mask[static_cast<std::size_t>(b * m.batch + h * m.head + i * m.query + key * m.key)];
            if (c.mask == Mask::added) score += mask;
            else if (mask == 0) score = -kInfinity;
          }
          if (m.causal && key > i + m.offset) score = -kInfinity;
          p[j] = score;
          if (!std::isnan(most) && !(score <= most)) most = score;  // a NaN stays
          const auto element = static_cast<std::uint64_t>(row) * n + j;
          const auto word = tapestry::philox(d.range.seed, d.range.offset + element / 4).v[element % 4];
          kept[j] = word >> 8 >= d.threshold ? (d.threshold ? d.scale : 1) : 0;
        }
        const bool blind = most == -kInfinity && !in.mask.empty();
        for (std::size_t j = 0; j < n; ++j) sum += p[j] = blind ? 0 : std::exp(p[j] - most);
        r.log_sum_exp[row] = most == -kInfinity ? most : most + std::log(sum);
        for (std::size_t j = 0; j < n && !blind; ++j) p[j] /= sum;
        for (std::size_t v = 0; v < V; ++v)
          for (std::size_t j = 0; j < n; ++j) {
            const double term = p[j] * kept[j] * in.v[(first + j) * V + v];
            r.y[row * V + v] += term, r.y_size[row * V + v] += std::abs(term);
          }
        double delta = 0, delta_size = 0;
        for (std::size_t v = 0; v < V; ++v) {
          delta += in.dy[row * V + v] * r.y[row * V + v];
          delta_size += std::abs(in.dy[row * V + v]) * r.y_size[row * V + v];
        }
        for (std::size_t j = 0; j < n; ++j) {
          dp[j] = dp_size[j] = 0;
          for (std::size_t v = 0; v < V; ++v) {
            const double term = in.dy[row * V + v] * in.v[(first + j) * V + v];
            dp[j] += term * kept[j], dp_size[j] += std::abs(term) * kept[j];
            r.dv[(first + j) * V + v] += p[j] * kept[j] * in.dy[row * V + v];
            r.dv_size[(first + j) * V + v] += p[j] * kept[j] * std::abs(in.dy[row * V + v]);
          }
          const double ds = p[j] * (dp[j] - delta) * c.scale,
                       ds_size = p[j] * (dp_size[j] + delta_size) * std::abs(c.scale);
          for (std::size_t e = 0; e < E; ++e) {
            r.dq[row * E + e] += ds * in.k[(first + j) * E + e];
            r.dq_size[row * E + e] += ds_size * std::abs(in.k[(first + j) * E + e]);
            r.dk[(first + j) * E + e] += ds * in.q[row * E + e];
            r.dk_size[(first + j) * E + e] += ds_size * std::abs(in.q[row * E + e]);
          }
        }
      }
  return r;
}

}  // namespace emulated
