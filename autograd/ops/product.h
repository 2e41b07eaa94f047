#pragma once
// Products of vectors, matrices and tensors, made of matmul() and mul(). Unless a comment says otherwise,
// they throw TypeError unless all tensors have the same floating dtype, and ValueError if the shapes do not
// fit.
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// (m, k) x (k, n) gives (m, n).
Tensor mm(const Tensor& a, const Tensor& b);
/// (b, m, k) x (b, k, n) gives (b, m, n). The batches do not broadcast.
Tensor bmm(const Tensor& a, const Tensor& b);
/// (m, k) x (k) gives (m).
Tensor mv(const Tensor& matrix, const Tensor& vector);
/// (k) x (k) gives ().
Tensor dot(const Tensor& a, const Tensor& b);
/// (m) x (n) gives (m, n). Takes all dtypes, and promotes them.
Tensor outer(const Tensor& a, const Tensor& b);
/// Compute beta x + alpha (a b). The product is mm() for addmm and bmm() for baddbmm, and x broadcasts to its
/// shape. If beta is 0, x is not read, so that its NaNs do not matter.
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1,
             const Scalar& alpha = 1);
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1,
               const Scalar& alpha = 1);
/// The Kronecker product: element (i p + k, j q + l) of the result is a[i, j] b[k, l] if b has shape (p, q),
/// and so on for tensors of other dimensions. Takes all dtypes, and promotes them. At most 4 dimensions may
/// have more than one entry in both a and b.
Tensor kron(const Tensor& a, const Tensor& b);
/// The cross product of the vectors of 3 elements along `dim`. The other dimensions broadcast. Without `dim`,
/// the first dimension of size 3. Takes all dtypes but bool, and promotes them.
Tensor cross(const Tensor& a, const Tensor& b, std::optional<std::int64_t> dim = {});

/// Sums the products of the tensors over repeated indices (Einstein notation, as in NumPy and PyTorch):
///   einsum("ij,jk->ik", {a, b})     a matrix product
///   einsum("bij,bkj->bik", {q, k})  a batch of products with a transposed matrix
///   einsum("ii->i", {a})            the diagonal of a matrix
///   einsum("...ij->...ji", {a})     the transposes of all matrices
/// The letters a-z and A-Z name the dimensions of each tensor. An index that the output does not name is
/// summed.
/// `...` stands for further dimensions, which broadcast. An index of size 1 in one tensor broadcasts, too.
/// Without `->`, the output has the dimensions of `...` and then, in alphabetical order (capitals first), the
/// indices that appear once. More than two tensors are multiplied from left to right; the order of the
/// tensors decides how large the intermediate results are.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& tensors);

/// Sums the products of a and b over dims_a[i] of a and dims_b[i] of b. The result has the other dimensions
/// of a and then those of b. With a number, the last `dims` dimensions of a and the first of b are summed
/// over.
Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& dims_a, const Dims& dims_b);
Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims = 2);

}  // namespace tapestry
