#pragma once
// Reductions. An empty list of dimensions means all dimensions. `keepdim` keeps the reduced dimensions with
// size 1. Sums of f16 and bf16 are accumulated in f32. Sums of bool and integers are i64, which wraps around.
// Results do not depend on the number of threads. The functions throw IndexError if a dimension is out of
// range, and ValueError if it is named twice.
#include <optional>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns the sum. The sum of no elements is 0.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Returns the mean. Takes floating dtypes only. The mean of no elements is NaN.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Computes the variance in two passes. `unbiased` divides by n - 1 instead of n (Bessel's correction). The
/// result is NaN if the divisor is 0.
Tensor var(const Tensor& x, const Dims& dims = {}, bool unbiased = true, bool keepdim = false);
/// Returns the square root of var(). The gradient is 0 where the result is 0.
Tensor std(const Tensor& x, const Dims& dims = {}, bool unbiased = true, bool keepdim = false);
/// Returns the product, over all elements or along one dimension. Integers and bools give i64. The product of
/// no elements is 1. f32 is accumulated in f64 on CPUs. Zeros have exact gradients.
Tensor prod(const Tensor& x);
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// Return the sum or the mean of the elements that are not NaN. Without such elements, nansum is 0 and
/// nanmean is NaN. nanmean takes floating dtypes only.
Tensor nansum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor nanmean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Return whether any or all elements differ from 0. NaN does. The result is bool, or u8 for a u8 tensor. Of
/// no elements, any is false and all is true. No gradient.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Returns the number of elements that differ from 0, as i64. No gradient.
Tensor count_nonzero(const Tensor& x, const Dims& dims = {});
/// Return the largest or the smallest element. The result is NaN if an element is NaN. Over all elements,
/// ties share the gradient equally. Along one dimension, the gradient goes to the first such element, whose
/// index is returned too. Throw ValueError if there are no elements.
Tensor(max)(const Tensor& x);
Tensor(min)(const Tensor& x);
std::pair<Tensor, Tensor>(max)(const Tensor& x, std::int64_t dim, bool keepdim = false);
std::pair<Tensor, Tensor>(min)(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// Return the values only, over any dimensions. Ties share the gradient equally. NaN and errors are treated
/// as in max and min.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Returns amin() and amax(), over all elements or along one dimension.
std::pair<Tensor, Tensor> aminmax(const Tensor& x, std::optional<std::int64_t> dim = {},
                                  bool keepdim = false);
/// Return the index of the first maximum or minimum as i64. Without a dimension, it is an index into the
/// flattened tensor.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
/// Computes log(sum(exp(x))) without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Computes (sum |x|^p)^(1/p). p = 0 counts the elements that are not 0. p = inf gives the largest |x|. The
/// gradient at x = 0 is 0.
Tensor norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);

}  // namespace tapestry
