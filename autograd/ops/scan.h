#pragma once
// Scans: cumulative sums, products and extremes along one dimension. A negative dimension counts from the
// end. Floating results have x's dtype; f32 is accumulated in f64 on CPUs and in f32 on GPUs. Results do not
// depend on the number of threads. The functions throw IndexError if the dimension does not exist.
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// y[i] = x[0] + ... + x[i]. Integers and bools give i64, which wraps around.
Tensor cumsum(const Tensor& x, std::int64_t dim);
/// y[i] = x[0] * ... * x[i]. Integers and bools give i64, which wraps around. Zeros have exact gradients too.
Tensor cumprod(const Tensor& x, std::int64_t dim);
/// Return the largest or smallest element so far, and the index of its last occurrence. From a NaN on, the
/// values are NaN. The gradient goes to the elements that the indices name.
std::pair<Tensor, Tensor> cummax(const Tensor& x, std::int64_t dim);
std::pair<Tensor, Tensor> cummin(const Tensor& x, std::int64_t dim);
/// y[i] = log(exp(x[0]) + ... + exp(x[i])), without overflow. Takes floating dtypes.
Tensor logcumsumexp(const Tensor& x, std::int64_t dim);

/// The differences x[i + 1] - x[i] along `dim`, taken n times. `prepend` and `append` are first joined to x.
/// Bools give "not equal". Throws ValueError if n is negative.
Tensor diff(const Tensor& x, std::int64_t n = 1, std::int64_t dim = -1, const Tensor& prepend = {},
            const Tensor& append = {});
/// The integral of y along `dim` by the trapezoidal rule, with the points x, or with points that are dx
/// apart. A 1-d x has one point per entry of `dim`; other x broadcast to y.
Tensor trapezoid(const Tensor& y, const Tensor& x, std::int64_t dim = -1);
Tensor trapezoid(const Tensor& y, double dx = 1, std::int64_t dim = -1);

}  // namespace tapestry
