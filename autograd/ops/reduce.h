#pragma once
// Reductions. An empty list of dimensions means all; `keepdim` keeps them with size 1. Sums of f16 and bf16
// are taken in f32, those of bool and integers in i64 (which wraps around). Results do not depend on the
// number of threads. A dimension out of range is an IndexError, one named twice a ValueError.
#include <optional>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// 0 over no elements.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Floating dtypes only; NaN over no elements.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Two-pass variance; `unbiased` divides by n - 1 (Bessel). NaN where that is 0.
Tensor var(const Tensor& x, const Dims& dims = {}, bool unbiased = true, bool keepdim = false);
/// NaN wins. The gradient of all-element forms is shared equally by ties, that of one dimension goes to the
/// index returned, the first. ValueError over no elements.
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim = false);
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The values alone, over any dimensions; ties share the gradient equally. As max and min otherwise.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// i64; of the first maximum. Without a dimension, of the flattened tensor.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
/// log(sum(exp(x))), without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
/// (sum |x|^p)^(1/p); p = 0 counts non-zeros, p = inf takes the largest. The gradient at 0 is 0.
Tensor norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);

}  // namespace tapestry
