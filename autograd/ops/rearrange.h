#pragma once
// Copies of a tensor with its elements in other places: reversed, rotated, repeated, on a diagonal, or with a
// triangle of zeros. The results do not share storage with the input. A negative dimension counts from the
// end. The functions throw IndexError if a dimension does not exist, and ValueError if a shape does not fit.
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Reverses the order of the elements along each dimension in `dims`.
Tensor flip(const Tensor& x, const Dims& dims);
/// Moves the elements by shifts[i] places along dims[i]. Elements that leave at the end enter at the
/// beginning. Without `dims`, the only shift moves the elements of the flattened tensor.
Tensor roll(const Tensor& x, const Shape& shifts, const Dims& dims = {});
/// Rotates by k quarter turns from the first to the second of the two dimensions.
Tensor rot90(const Tensor& x, std::int64_t k = 1, const Dims& dims = {0, 1});
/// Repeats the whole tensor repeats[i] times along dimension i. If there are more repeats than dimensions,
/// new dimensions come first. tile() inserts repeats of 1 in front if there are fewer.
Tensor repeat(const Tensor& x, const Shape& repeats);
Tensor tile(const Tensor& x, const Shape& repeats);
/// Repeats each entry of `dim`, either all of them `repeats` times, or entry i repeats[i] times. Without a
/// dimension, x is flattened first. A tensor of repeats has an integer dtype and one element per entry, or
/// one for all. It lies on x's device. The size of the result depends on it, so the host waits for a GPU.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim = {});
Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<std::int64_t> dim = {});
/// Returns a copy of a diagonal of a matrix, or the square matrix with the vector x on that diagonal and
/// zeros elsewhere. Diagonal k > 0 lies above the main diagonal.
Tensor diag(const Tensor& x, std::int64_t diagonal = 0);
/// Returns matrices with the last dimension of x on a diagonal and zeros elsewhere. dim1 and dim2 are the
/// dimensions of the result that hold the matrices. diagonal() with the same arguments gives x back.
Tensor diag_embed(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = -2, std::int64_t dim2 = -1);
/// Keep the lower (tril) or upper (triu) triangle of the matrices in the last two dimensions, and set the
/// other elements to 0. The triangle includes the given diagonal, which is counted as in diag().
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// Returns the matrix with the given matrices on its diagonal, from the top left to the bottom right, and
/// zeros elsewhere. A vector of n elements is taken as (1, n), and a 0-d tensor as (1, 1). The dtypes
/// promote. Throws ValueError for tensors of more dimensions.
Tensor block_diag(const std::vector<Tensor>& tensors);
/// Return the indices of the triangle of a (rows, cols) matrix in row-major order, as a (2, n) tensor: row
/// indices, then column indices. The default dtype is i64. i32 is the other dtype.
Tensor tril_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset = 0,
                    const TensorOptions& options = {});
Tensor triu_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset = 0,
                    const TensorOptions& options = {});

}  // namespace tapestry
