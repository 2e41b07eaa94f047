#pragma once
// What the files of the linear algebra share: copies between arrays and Eigen's column-major matrices, the
// loop over a batch, and the QR factorization. Eigen's own QR and SVD are not used, because they would take a
// minute to compile.
#ifdef EIGEN_CORE_H
#error "include this header before Eigen's, so that Eigen starts no threads"
#endif
#define EIGEN_DONT_PARALLELIZE  // the loop over the batch is parallel
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "tapestry/core/parallel.h"

namespace tapestry::kernels::cpu {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Copies a row-major (rows, cols) array.
template <class T>
Matrix<T> matrix_of(const T* data, std::int64_t rows, std::int64_t cols) {
  Matrix<T> m(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) m(i, j) = *data++;
  return m;
}
/// Copies the first `cols` columns to a row-major array.
template <class T>
void write(const Matrix<T>& m, std::int64_t cols, T* out) {
  for (std::int64_t i = 0; i < m.rows(); ++i)
    for (std::int64_t j = 0; j < cols; ++j) *out++ = m(i, j);
}
template <class T>
void write_transposed(const Matrix<T>& m, std::int64_t cols, T* out) {
  for (std::int64_t j = 0; j < cols; ++j)
    for (std::int64_t i = 0; i < m.rows(); ++i) *out++ = m(i, j);
}

template <class T>
bool all_finite(const T* x, std::int64_t n) {
  return std::all_of(x, x + n, [](T v) { return std::isfinite(v); });
}

/// Calls f(i) for each matrix of a batch. `work` is about the number of multiplications of one matrix.
template <class F>
void each_matrix(std::int64_t batch, std::int64_t work, const F& f) {
  parallel_for(batch, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(work, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) f(i);
               });
}

/// The QR factorization by Householder reflections H = I - tau v v^T with v[j] = 1, as in LAPACK's geqr2
/// (Golub and Van Loan, "Matrix Computations", 4th edition, algorithm 5.2.1). The diagonal of R gets LAPACK's
/// signs.
template <class T>
class Householder {
 public:
  explicit Householder(Matrix<T> a) : a_(std::move(a)), tau_(Vector<T>::Zero(steps())) {
    for (std::int64_t j = 0; j < steps(); ++j) {
      auto tail = a_.col(j).tail(a_.rows() - j - 1);
      const T norm = tail.stableNorm(), alpha = a_(j, j);
      if (norm == T(0)) continue;  // nothing to reflect: H is the identity
      const T beta = -std::copysign(std::hypot(alpha, norm), alpha);
      tau_(j) = (beta - alpha) / beta;
      tail /= alpha - beta;
      a_(j, j) = beta;
      for (std::int64_t column = j + 1; column < a_.cols(); ++column) reflect(j, a_, column);
    }
  }
  /// The first `rows` rows of R, with zeros below the diagonal.
  Matrix<T> r(std::int64_t rows) const {
    Matrix<T> r = Matrix<T>::Zero(rows, a_.cols());
    for (std::int64_t j = 0; j < a_.cols(); ++j) {
      const std::int64_t n = std::min<std::int64_t>(j + 1, steps());
      r.col(j).head(n) = a_.col(j).head(n);
    }
    return r;
  }
  /// Q times x, which has as many rows as the factored matrix.
  Matrix<T> q_times(Matrix<T> x) const {
    for (std::int64_t column = 0; column < x.cols(); ++column)
      for (std::int64_t j = steps(); j-- > 0;) reflect(j, x, column);
    return x;
  }

 private:
  std::int64_t steps() const { return std::min(a_.rows(), a_.cols()); }
  // Applies H_j to a column of x.
  void reflect(std::int64_t j, Matrix<T>& x, std::int64_t column) const {
    const std::int64_t below = a_.rows() - j - 1;
    const auto v = a_.col(j).tail(below);
    auto tail = x.col(column).tail(below);
    const T scale = tau_(j) * (x(j, column) + v.dot(tail));
    x(j, column) -= scale;
    tail -= scale * v;
  }

  Matrix<T> a_;  // R, and below its diagonal the vectors v
  Vector<T> tau_;
};

}  // namespace tapestry::kernels::cpu
