// Singular values and eigenvalues of symmetric matrices. They have a file of their own because Eigen's
// eigenvalues take long to compile. f32 is computed in f64: that halves the time to compile, and small values
// keep their digits.
#include "tapestry/kernels/ops/linalg.h"

// This header comes before Eigen's, because it keeps Eigen from starting threads.
#include "tapestry/kernels/cpu/linalg.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace tapestry::kernels {
namespace {

using namespace cpu;

// Makes the columns of x orthogonal by rotations, which are also applied to v (the one-sided Jacobi method of
// Hestenes, 1958, with the rotations of Rutishauser). It ends when all angles are right up to rounding.
void orthogonalize(Matrix<double>& x, Matrix<double>& v) {
  const std::int64_t n = x.cols();
  const double eps = std::numeric_limits<double>::epsilon() * std::sqrt(static_cast<double>(n));
  constexpr int kMaxSweeps = 60;  // the method converges quadratically, in about 10 sweeps
  const auto rotate = [](Matrix<double>& m, std::int64_t p, std::int64_t q, double c, double s) {
    double* const a = m.col(p).data();
    double* const b = m.col(q).data();
    for (std::int64_t i = 0; i < m.rows(); ++i) {
      const double old = a[i];
      a[i] = c * old - s * b[i];
      b[i] = s * old + c * b[i];
    }
  };
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < kMaxSweeps; ++sweep) {
    rotated = false;
    for (std::int64_t p = 0; p < n; ++p)
      for (std::int64_t q = p + 1; q < n; ++q) {
        const double alpha = x.col(p).squaredNorm(), beta = x.col(q).squaredNorm(),
                     gamma = x.col(p).dot(x.col(q));
        if (!(std::abs(gamma) > eps * std::sqrt(alpha) * std::sqrt(beta))) continue;
        rotated = true;
        const double zeta = (beta - alpha) / (2 * gamma);
        const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::hypot(1.0, zeta));
        const double c = 1 / std::sqrt(1 + t * t);
        rotate(x, p, q, c, c * t);
        rotate(v, p, q, c, c * t);
      }
  }
}

// The indices of the elements, in descending order of the elements.
std::vector<std::int64_t> descending(const Vector<double>& x) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(x.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) { return x(i) > x(j); });
  return order;
}

struct Svd {
  Matrix<double> u, v;  // u is (m, rank) or (m, m), v is (n, n)
  Vector<double> s;
};

// The singular value decomposition of a matrix with m >= n >= 1. The columns are sorted by length, a P = Q R
// removes the rows that are too many, and R^T V = U S is found by rotations (Drmac and Veselic, "New
// fast and accurate Jacobi SVD algorithm", 2008). So a = (Q V) S (P U)^T.
Svd tall_svd(Matrix<double> a, bool full) {
  const std::int64_t m = a.rows(), n = a.cols();
  const double largest = a.cwiseAbs().maxCoeff();
  const double scale = largest > 0 ? largest : 1.0;
  a /= scale;
  const std::vector<std::int64_t> columns = descending(a.colwise().squaredNorm());
  Matrix<double> sorted(m, n);
  for (std::int64_t j = 0; j < n; ++j) sorted.col(j) = a.col(columns[static_cast<std::size_t>(j)]);
  const Householder<double> qr(std::move(sorted));
  Matrix<double> x = qr.r(n).transpose(), v = Matrix<double>::Identity(n, n);
  orthogonalize(x, v);

  // The lengths of the columns are the singular values.
  const Vector<double> found = x.colwise().norm();
  const std::vector<std::int64_t> order = descending(found);
  // Columns below this limit are rounding errors: their squares underflow. They get the singular value 0, and
  // vectors that complete the basis.
  const double limit = std::sqrt(std::numeric_limits<double>::min()) / std::numeric_limits<double>::epsilon();
  Svd result;
  result.s = Vector<double>::Zero(n);
  Matrix<double> left = Matrix<double>::Zero(m, n), right(n, n);
  std::int64_t rank = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t from = order[static_cast<std::size_t>(j)];
    left.col(j).head(n) = v.col(from);
    if (found(from) < limit) continue;
    right.col(j) = x.col(from) / found(from);
    result.s(j) = found(from) * scale;
    rank = j + 1;
  }
  if (rank < n) {
    const Householder<double> basis(right.leftCols(rank));
    right.rightCols(n - rank) = basis.q_times(Matrix<double>::Identity(n, n)).rightCols(n - rank);
  }
  result.v.resize(n, n);
  for (std::int64_t j = 0; j < n; ++j) result.v.row(columns[static_cast<std::size_t>(j)]) = right.row(j);
  if (full) {
    Matrix<double> square = Matrix<double>::Identity(m, m);
    square.leftCols(n) = left;
    left = std::move(square);
  }
  result.u = qr.q_times(std::move(left));
  return result;
}

template <class T>
void svd_kernel(const LaunchContext&, const SvdArgs& s) {
  const std::int64_t m = s.m, n = s.n, rank = std::min(m, n);
  const std::int64_t left = s.full ? m : rank, right = s.full ? n : rank;
  each_matrix(s.batch, m * n * rank * 8, [&](std::int64_t i) {
    const T* const a = s.a.as<T>() + i * m * n;
    const bool finite = all_finite(a, m * n);
    s.info.as<std::int64_t>()[i] = !finite;
    if (!finite) return;
    Svd svd;
    if (rank == 0) {
      svd.u = Matrix<double>::Identity(m, left);
      svd.v = Matrix<double>::Identity(n, right);
    } else {
      Matrix<double> x = matrix_of(a, m, n).template cast<double>();
      if (m < n) x.transposeInPlace();
      svd = tall_svd(std::move(x), s.full && s.vectors);
      if (m < n) std::swap(svd.u, svd.v);
    }
    for (std::int64_t j = 0; j < rank; ++j) s.s.as<T>()[i * rank + j] = static_cast<T>(svd.s(j));
    if (!s.vectors) return;
    write<T>(svd.u.template cast<T>(), left, s.u.as<T>() + i * m * left);
    write_transposed<T>(svd.v.template cast<T>(), right, s.vh.as<T>() + i * right * n);
  });
}

template <class T>
void eigh_kernel(const LaunchContext&, const EighArgs& e) {
  const std::int64_t n = e.n;
  each_matrix(e.batch, n * n * n * 8, [&](std::int64_t i) {
    std::int64_t& info = e.info.as<std::int64_t>()[i];
    info = 0;
    if (n == 0) return;
    const T* const a = e.a.as<T>() + i * n * n;
    for (std::int64_t row = 0; row < n; ++row)
      if (!all_finite(a + row * n, row + 1)) info = 1;
    if (info) return;
    const Eigen::SelfAdjointEigenSolver<Matrix<double>> solver(
        matrix_of(a, n, n).template cast<double>(),
        e.v ? Eigen::ComputeEigenvectors : Eigen::EigenvaluesOnly);
    info = solver.info() == Eigen::Success ? 0 : 2;
    if (info) return;
    for (std::int64_t j = 0; j < n; ++j) e.w.as<T>()[i * n + j] = static_cast<T>(solver.eigenvalues()(j));
    if (e.v) write<T>(solver.eigenvectors().template cast<T>(), n, e.v.as<T>() + i * n * n);
  });
}

const bool filled = for_types<float, double>([]<class T> {
  linalg_svd.set(DeviceType::cpu, dtype_of<T>, &svd_kernel<T>);
  linalg_eigh.set(DeviceType::cpu, dtype_of<T>, &eigh_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels
