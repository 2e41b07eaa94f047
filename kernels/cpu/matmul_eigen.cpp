// Eigen's matrix product. It has a file of its own because its speed depends on the instruction set that
// Eigen is compiled for (AVX2 is faster than AVX-512 here, see cmake/compiler.cmake).
#define EIGEN_DONT_PARALLELIZE  // the library's own threads call Eigen
#include <Eigen/Core>

#include "tapestry/core/parallel.h"
#include "tapestry/kernels/cpu/matmul.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T, int Order>
using Matrix = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>, Eigen::Unaligned,
                          Eigen::OuterStride<>>;
template <class T, int Order>
using ConstMatrix = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>,
                               Eigen::Unaligned, Eigen::OuterStride<>>;

// Calls f with the operand as an Eigen matrix of its storage order.
template <class T, class F>
void with_matrix(const T* data, std::int64_t rows, std::int64_t cols, MatrixStrides s, F&& f) {
  if (s.row_major(cols)) f(ConstMatrix<T, Eigen::RowMajor>(data, rows, cols, Eigen::OuterStride<>(s.row)));
  else f(ConstMatrix<T, Eigen::ColMajor>(data, rows, cols, Eigen::OuterStride<>(s.col)));
}

template <class T>
void multiply_block(const GemmArgs& g, const T* a, const T* b, T* c, std::int64_t m, std::int64_t n) {
  Matrix<T, Eigen::RowMajor> out(c, m, n, Eigen::OuterStride<>(g.c_row));
  with_matrix(a, m, g.k, g.a_strides, [&](const auto& left) {
    with_matrix(b, g.k, n, g.b_strides, [&](const auto& right) {
      if (g.accumulate) out.noalias() += left * right;
      else out.noalias() = left * right;
    });
  });
}

}  // namespace

template <class T>
void multiply_eigen(const GemmArgs& g) {
  const T *const a = g.a.as<T>(), *const b = g.b.as<T>();
  T* const c = g.c.as<T>();
  // C is divided into bands along its longer side. A band has at least about 100,000 multiplications.
  const bool by_rows = g.m >= g.n;
  const std::int64_t line = std::max<std::int64_t>((by_rows ? g.n : g.m) * g.k, 1);
  const std::int64_t grain = std::max<std::int64_t>(131072 / line, 8);
  parallel_for(by_rows ? g.m : g.n, grain, [&](std::int64_t begin, std::int64_t end) {
    if (by_rows) multiply_block(g, a + begin * g.a_strides.row, b, c + begin * g.c_row, end - begin, g.n);
    else multiply_block(g, a, b + begin * g.b_strides.col, c + begin, g.m, end - begin);
  });
}
template void multiply_eigen<float>(const GemmArgs&);
template void multiply_eigen<double>(const GemmArgs&);

}  // namespace tapestry::kernels::cpu
