// Linear systems, determinants, and the Cholesky and QR factorizations. linalg_eigen.cpp has the others.
#include "tapestry/kernels/ops/linalg.h"

// This header comes before Eigen's, because it keeps Eigen from starting threads.
#include "tapestry/kernels/cpu/linalg.h"

#include <Eigen/Cholesky>
#include <Eigen/LU>

namespace tapestry::kernels {
namespace {

using namespace cpu;

template <class T>
void solve_kernel(const LaunchContext&, const SolveArgs& s) {
  const std::int64_t n = s.n, k = s.k;
  each_matrix(s.batch, n * n * (n + k), [&](std::int64_t i) {
    if (n == 0) return void(s.info.as<std::int64_t>()[i] = 0);
    const Eigen::PartialPivLU<Matrix<T>> lu(matrix_of(s.a.as<T>() + i * n * n, n, n));
    std::int64_t zero = 0;
    for (std::int64_t j = n; j-- > 0;)
      if (lu.matrixLU()(j, j) == T(0)) zero = j + 1;
    s.info.as<std::int64_t>()[i] = zero;
    if (zero) return;
    Matrix<T> x = s.b ? matrix_of(s.b.as<T>() + i * n * k, n, k) : Matrix<T>(Matrix<T>::Identity(n, n));
    x = lu.permutationP() * x;
    lu.matrixLU().template triangularView<Eigen::UnitLower>().solveInPlace(x);
    lu.matrixLU().template triangularView<Eigen::Upper>().solveInPlace(x);
    write(x, k, s.x.as<T>() + i * n * k);
  });
}

template <class T>
void det_kernel(const LaunchContext&, const DetArgs& d) {
  const std::int64_t n = d.n;
  each_matrix(d.batch, n * n * n, [&](std::int64_t i) {
    T det = 1, sign = 1, logabs = 0;
    if (n > 0) {
      const Eigen::PartialPivLU<Matrix<T>> lu(matrix_of(d.a.as<T>() + i * n * n, n, n));
      det = sign = T(lu.permutationP().determinant());
      for (std::int64_t j = 0; j < n; ++j) {
        const T u = lu.matrixLU()(j, j);
        det *= u;
        // NaN stays NaN, as in sign * NaN.
        sign *= u > 0 ? T(1) : u < 0 ? T(-1) : u;
        logabs += std::log(std::abs(u));
      }
    }
    d.det.as<T>()[i] = det;
    d.sign.as<T>()[i] = sign;
    d.logabs.as<T>()[i] = logabs;
  });
}

template <class T>
void solve_triangular_kernel(const LaunchContext&, const SolveTriangularArgs& s) {
  const std::int64_t n = s.n, k = s.k;
  each_matrix(s.batch, n * n * k, [&](std::int64_t i) {
    const T* const a = s.a.as<T>() + i * n * n;
    T* const x = s.x.as<T>() + i * n * k;
    for (std::int64_t step = 0; step < n; ++step) {
      const std::int64_t row = s.upper ? n - 1 - step : step;
      T* const target = x + row * k;
      for (std::int64_t done = 0; done < step; ++done) {
        const std::int64_t j = s.upper ? n - 1 - done : done;
        const T factor = a[row * n + j];
        const T* const known = x + j * k;
        for (std::int64_t c = 0; c < k; ++c) target[c] -= factor * known[c];
      }
      if (!s.unit)
        for (std::int64_t c = 0; c < k; ++c) target[c] /= a[row * n + row];
    }
  });
}

template <class T>
void cholesky_kernel(const LaunchContext&, const CholeskyArgs& c) {
  const std::int64_t n = c.n;
  each_matrix(c.batch, n * n * n, [&](std::int64_t i) {
    c.info.as<std::int64_t>()[i] = 0;
    if (n == 0) return;
    const Eigen::LLT<Matrix<T>> llt(matrix_of(c.a.as<T>() + i * n * n, n, n));
    Matrix<T> l = llt.matrixLLT();
    for (std::int64_t column = 1; column < n; ++column) l.col(column).head(column).setZero();
    // Eigen does not report NaN.
    c.info.as<std::int64_t>()[i] = llt.info() != Eigen::Success || !all_finite(l.data(), n * n);
    write(l, n, c.l.as<T>() + i * n * n);
  });
}

template <class T>
void qr_kernel(const LaunchContext&, const QrArgs& s) {
  const std::int64_t m = s.m, n = s.n, k = s.k;
  each_matrix(s.batch, m * n * std::min(m, n), [&](std::int64_t i) {
    const Householder<T> qr(matrix_of(s.a.as<T>() + i * m * n, m, n));
    write(qr.r(k), n, s.r.as<T>() + i * k * n);
    if (s.q) write(qr.q_times(Matrix<T>::Identity(m, k)), k, s.q.as<T>() + i * m * k);
  });
}

const bool filled = for_types<float, double>([]<class T> {
  linalg_solve.set(DeviceType::cpu, dtype_of<T>, &solve_kernel<T>);
  linalg_det.set(DeviceType::cpu, dtype_of<T>, &det_kernel<T>);
  linalg_solve_triangular.set(DeviceType::cpu, dtype_of<T>, &solve_triangular_kernel<T>);
  linalg_cholesky.set(DeviceType::cpu, dtype_of<T>, &cholesky_kernel<T>);
  linalg_qr.set(DeviceType::cpu, dtype_of<T>, &qr_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels
