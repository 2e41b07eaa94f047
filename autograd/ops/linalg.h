#pragma once
// Linear algebra: norms, linear systems and factorizations, with the names, defaults and shapes of
// torch.linalg.
//
// The matrices are the last two dimensions of a tensor; all dimensions before them are a batch. They are f32
// or f64; norms take f16 and bf16 too. Other dtypes throw TypeError, and shapes that do not fit throw
// ValueError. A matrix without a result (singular, not positive-definite, with NaN where that matters) throws
// ValueError, which names its index in the batch.
//
// There are no CUDA kernels for factorizations. Tensors on a GPU are copied to the host, which waits for the
// GPU; the result is copied back. Norms of vectors, and the products in all gradients, run on the GPU.
#include <optional>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry::linalg {

/// Which norm: a number, "fro" or "nuc".
class Order {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Order(T number) : number_(static_cast<double>(number)) {}  // NOLINT
  /// Throws ValueError for other names.
  Order(const char* name);  // NOLINT
  bool is_number() const { return kind_ == Kind::number; }
  bool is_nuclear() const { return kind_ == Kind::nuclear; }
  double number() const { return number_; }

 private:
  enum class Kind : std::uint8_t { number, frobenius, nuclear } kind_ = Kind::number;
  double number_ = 2;
};

/// Computes (sum |x|^order)^(1/order) over `dims`, or over all elements. Order 0 counts the elements that are
/// not 0; infinity and -infinity give the largest and the smallest |x|. Where a norm is 0, its gradient is 0
/// for orders above 0.
Tensor vector_norm(const Tensor& x, double order = 2, const Dims& dims = {}, bool keepdim = false);
/// Computes a norm of the matrices in two dimensions:
///   "fro"  the square root of the sum of the squares
///   "nuc"  the sum of the singular values
///   2, -2  the largest, the smallest singular value
///   1, -1  the largest, the smallest sum of |x| over a column
///   inf, -inf  the same over a row
/// Throws ValueError for other orders, and for the smallest or largest of no elements.
Tensor matrix_norm(const Tensor& x, const Order& order = "fro", const Dims& dims = {-2, -1},
                   bool keepdim = false);
/// vector_norm() of one dimension, matrix_norm() of two. Without `dims`, an order needs a vector or a matrix,
/// and without an order, the result is the square root of the sum of the squares of any dimensions.
Tensor norm(const Tensor& x, const std::optional<Order>& order = {}, const Dims& dims = {},
            bool keepdim = false);

/// The determinant of square matrices (..., n, n), of shape (...). The gradient of a singular matrix is exact
/// too: it is the matrix of cofactors.
Tensor det(const Tensor& a);
/// The sign (-1, 0 or 1) and the log of the absolute value of the determinant. They do not overflow. A
/// singular matrix gives 0 and -infinity, and has no gradient: backward throws ValueError.
std::pair<Tensor, Tensor> slogdet(const Tensor& a);
/// The inverse of square matrices. Throws ValueError if a matrix is singular, that is, if a pivot is exactly
/// 0.
Tensor inv(const Tensor& a);
/// Solves a x = b, or x a = b if `left` is false. a is (..., n, n). b is (..., n, k), or (..., k, n) for the
/// right side, and the batches broadcast. b is a batch of vectors (..., n) if it is 1-d or if its shape is
/// a's without the last dimension; x then is too. Throws ValueError if a matrix is singular.
Tensor solve(const Tensor& a, const Tensor& b, bool left = true);
/// As solve() without vectors, for matrices of which only one triangle is read. With `unitriangular` the
/// diagonal counts as 1. A zero on the diagonal gives infinities or NaN, as in PyTorch.
Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left = true,
                        bool unitriangular = false);

/// Returns the lower triangular L with a = L L^T, or U with a = U^T U if `upper`. a is symmetric and
/// positive-definite, or ValueError is thrown; only the triangle of the result is read. The gradient is
/// symmetric.
Tensor cholesky(const Tensor& a, bool upper = false);

enum class QrMode : std::uint8_t { reduced, complete, r };
/// Factors a = Q R, where the columns of Q are orthonormal and R is upper triangular. For (..., m, n) and k =
/// min(m, n), Q is (..., m, k) and R is (..., k, n). `complete` gives (..., m, m) and (..., m, n), and `r` an
/// empty tensor for Q. The signs are LAPACK's, so R's diagonal may be negative. backward throws AutogradError
/// for `r`, and for `complete` if m > n (Walter and Lehmann, "On evaluating higher-order derivatives of the
/// QR decomposition", 2010).
std::pair<Tensor, Tensor> qr(const Tensor& a, QrMode mode = QrMode::reduced);

/// U is (..., m, m), S is (..., k), Vh is (..., n, n), with k = min(m, n). Without full matrices, U is
/// (..., m, k) and Vh is (..., k, n).
struct SvdResult {
  Tensor U, S, Vh;
};
/// Factors a = U diag(S) Vh with orthonormal U and Vh and descending S >= 0, by the Jacobi method: its small
/// singular values are more precise than LAPACK's, and large matrices take longer. The signs of singular
/// vectors are arbitrary. Gradients through U and Vh (Ionescu et al., "Training deep networks with structured
/// layers by matrix backpropagation", 2015) are only right if the loss does not depend on these signs. They
/// are infinite or NaN if singular values are equal or, unless m = n, 0. The vectors that only
/// `full_matrices` adds contribute no gradient.
SvdResult svd(const Tensor& a, bool full_matrices = true);
/// The singular values, whose gradient is finite even if some are equal.
Tensor svdvals(const Tensor& a);
/// Returns the ascending eigenvalues (..., n) of symmetric matrices (..., n, n), and the eigenvectors as the
/// columns of (..., n, n). Only the lower triangle is read, or the upper one if uplo is 'U'. Gradients
/// through eigenvectors have the same limits as in svd() (Giles, "An extended collection of matrix derivative
/// results for forward and reverse mode algorithmic differentiation", 2008).
std::pair<Tensor, Tensor> eigh(const Tensor& a, char uplo = 'L');
/// The eigenvalues, whose gradient is finite even if some are equal.
Tensor eigvalsh(const Tensor& a, char uplo = 'L');

/// The pseudoinverse of matrices (..., m, n), of shape (..., n, m). Singular values count as 0 if they are at
/// most the larger of atol and rtol times the largest one. By default, atol is 0, and rtol is max(m, n) times
/// the machine epsilon, or 0 if atol is given. The gradient (Golub and Pereyra, 1973) assumes that no
/// singular value crosses this limit.
Tensor pinv(const Tensor& a, std::optional<double> atol = {}, std::optional<double> rtol = {});
/// The number of singular values above the limit of pinv(), as i64.
Tensor matrix_rank(const Tensor& a, std::optional<double> atol = {}, std::optional<double> rtol = {});

struct LstsqResult {
  Tensor solution;         ///< (..., n, k), or (..., n) for vectors
  Tensor residuals;        ///< (..., k), the squared lengths of a x - b; empty unless m > n and the rank is n
  Tensor rank;             ///< (...), i64
  Tensor singular_values;  ///< (..., min(m, n))
};
/// Minimises |a x - b|. a is (..., m, n), b is (..., m, k) or a batch of vectors as in solve(). If several x
/// are best, the solution is the shortest. Singular values below rcond times the largest one count as 0; the
/// default is that of pinv(). The method is LAPACK's gelsd: it uses the singular values.
LstsqResult lstsq(const Tensor& a, const Tensor& b, std::optional<double> rcond = {});
/// Multiplies a square matrix by itself n times. Negative n use the inverse.
Tensor matrix_power(const Tensor& a, std::int64_t n);

}  // namespace tapestry::linalg
