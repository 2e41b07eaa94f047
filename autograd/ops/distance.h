#pragma once
// Distances, similarities and normalisation of vectors. They take floating dtypes.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns the p-norm distance between every row of a and every row of b. Shapes: a is (..., P, M), b is
/// (..., R, M), the result is (..., P, R). The batch dimensions broadcast. p is 0 or more, and may be
/// infinite. With p = 2 and more than 25 rows, the distances are computed from the products of the rows, as
/// in PyTorch: that is faster, but less precise for vectors that are much closer to each other than to 0. The
/// gradient at distance 0 is 0.
Tensor cdist(const Tensor& a, const Tensor& b, double p = 2);
/// Returns the p-norm of a - b + eps along the last dimension. a and b broadcast.
Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p = 2, double eps = 1e-6,
                         bool keepdim = false);
/// Returns the dot products of a and b along `dim`, each divided by its norm. A norm counts as at least eps.
/// a and b broadcast. Where eps replaces a norm, the gradient is the derivative, and PyTorch's is not.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim = 1, double eps = 1e-8);
/// Divides x by its p-norm along `dim`, or by eps if that is larger.
Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);

}  // namespace tapestry
