// Products with one row or one column, as of the newest token of a text. They read the matrix once, so
// reading decides: no part of it is copied, as matrix products for many rows do.
#include <functional>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/dot.h"
#include "tapestry/kernels/cpu/matmul.h"

namespace tapestry::kernels::cpu {
namespace {

// So many columns of sums stay in the L1 cache.
constexpr std::int64_t kColumns = 1024;

// `n` elements in f32: where they are, or a converted copy at `line`.
inline const float* in_f32(const float* x, float*, std::int64_t) { return x; }
template <class T>
const float* in_f32(const T* x, float* line, std::int64_t n) {
  to_float(x, line, n);
  return line;
}

// c[j] += the dot product of a with column j of b. The columns are contiguous.
template <class T>
void by_columns(const float* a, const T* b, std::int64_t stride, std::int64_t k, float* c, std::int64_t n) {
  parallel_for(n, grain_of(k), [=](std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      float sums[64];
      for (std::int64_t j = begin; j < end; j += 64) {
        const std::int64_t count = std::min<std::int64_t>(64, end - j);
        dot_all_rows(a, b + j * stride, stride, count, k, sums);
        for (std::int64_t i = 0; i < count; ++i) c[j + i] += sums[i];
      }
    } else {
      float line[kColumns];
      for (std::int64_t j = begin; j < end; ++j)
        for (std::int64_t at = 0; at < k; at += kColumns) {
          const std::int64_t count = std::min(kColumns, k - at);
          float sum;
          dot_rows<1>(a + at, in_f32(b + j * stride + at, line, count), 0, count, &sum);
          c[j] += sum;
        }
    }
  });
}

// c += a b for a b whose rows are contiguous.
template <class T>
void by_rows(const float* a, const T* b, std::int64_t stride, std::int64_t k, float* c, std::int64_t n) {
  parallel_for(n, std::max<std::int64_t>(grain_of(k), 64), [=](std::int64_t begin, std::int64_t end) {
    float lines[4][kColumns];
    for (std::int64_t at = begin; at < end; at += kColumns) {
      const std::int64_t count = std::min(kColumns, end - at);
      float* const to = c + at;
      std::int64_t i = 0;
      for (; i + 4 <= k; i += 4) {
        const float* row[4];
        for (int r = 0; r < 4; ++r) row[r] = in_f32(b + (i + r) * stride + at, lines[r], count);
        const float *const p = row[0], *const q = row[1], *const s = row[2], *const t = row[3];
        for (std::int64_t j = 0; j < count; ++j)
          to[j] += (a[i] * p[j] + a[i + 1] * q[j]) + (a[i + 2] * s[j] + a[i + 3] * t[j]);
      }
      for (; i < k; ++i) {
        const float* const row = in_f32(b + i * stride + at, lines[0], count);
        for (std::int64_t j = 0; j < count; ++j) to[j] += a[i] * row[j];
      }
    }
  });
}

}  // namespace

template <class T>
void add_row_product(const float* a, const T* b, const MatrixStrides& strides, std::int64_t k, float* c,
                     std::int64_t n) {
  if (strides.row_major(n)) by_rows(a, b, strides.row, k, c, n);
  else by_columns(a, b, strides.col, k, c, n);
}
template void add_row_product(const float*, const float*, const MatrixStrides&, std::int64_t, float*,
                              std::int64_t);
template void add_row_product(const float*, const Half*, const MatrixStrides&, std::int64_t, float*,
                              std::int64_t);
template void add_row_product(const float*, const BFloat16*, const MatrixStrides&, std::int64_t, float*,
                              std::int64_t);

bool multiply_row(const GemmArgs& g) {
  const bool row = g.m == 1, column = g.n == 1 && g.c_row == 1;
  if (!row && !column) return false;
  // (a b)^T = b^T a^T: one column is one row of the transposed product.
  const ConstArray& vector = row ? g.a : g.b;
  const MatrixStrides matrix = row ? g.b_strides : MatrixStrides{g.a_strides.col, g.a_strides.row};
  const std::int64_t step = row ? g.a_strides.col : g.b_strides.row, n = row ? g.n : g.m;
  const float* a = vector.as<float>();
  Scratch<float> dense;
  if (step != 1) {
    dense = Scratch<float>(kCPU, g.k);
    for (std::int64_t i = 0; i < g.k; ++i) dense.data()[i] = a[i * step];
    a = dense.data();
  }
  float* const c = g.c.as<float>();
  if (!g.accumulate) std::fill_n(c, n, 0.0f);
  add_row_product(a, (row ? g.b : g.a).as<float>(), matrix, g.k, c, n);
  return true;
}

}  // namespace tapestry::kernels::cpu
