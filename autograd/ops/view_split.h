#pragma once
// Views with a least number of dimensions, and splits along the dimension that NumPy gives a name.
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Return x as a view with at least 1, 2 or 3 dimensions: a vector of n elements becomes (1, n) and (1, n,
/// 1), and a matrix (m, n) becomes (m, n, 1).
Tensor atleast_1d(const Tensor& x);
Tensor atleast_2d(const Tensor& x);
Tensor atleast_3d(const Tensor& x);
/// tensor_split() along dimension 1 (hsplit; 0 if x is 1-d), 0 (vsplit) or 2 (dsplit). The number of sections
/// must divide the size. Throw ValueError if x has fewer dimensions than 1, 2 and 3.
std::vector<Tensor> hsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> hsplit(const Tensor& x, const std::vector<std::int64_t>& indices);
std::vector<Tensor> vsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> vsplit(const Tensor& x, const std::vector<std::int64_t>& indices);
std::vector<Tensor> dsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> dsplit(const Tensor& x, const std::vector<std::int64_t>& indices);

}  // namespace tapestry
