#pragma once
// Sorting, and the elements that an order picks. NaN is greater than every number, and -0 equals 0. Every
// sort is stable in both directions, and where PyTorch leaves the choice among equal elements open, these
// functions take the first ones. So results are the same on every device and for any number of threads.
// Gradients go to the elements that were picked. A negative dimension counts from the end. All functions
// throw IndexError if a dimension does not exist.
#include <optional>
#include <string>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Sorts along `dim`. Returns the values, in x's shape, and their i64 indices in `dim`.
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// Returns the indices of sort().
Tensor argsort(const Tensor& x, std::int64_t dim = -1, bool descending = false);
/// Returns the k largest elements along `dim`, or the k smallest, and their indices. They are always sorted;
/// `sorted` has no effect. Throws ValueError unless 0 <= k <= the size of the dimension, or
/// k = 1 for a 0-d tensor.
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, bool largest = true,
                               bool sorted = true);
/// Returns the k-th smallest element along `dim`, and its index. k counts from 1. Throws ValueError unless 1
/// <= k <= the size of the dimension.
std::pair<Tensor, Tensor> kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim = -1,
                                   bool keepdim = false);
/// Returns the median of all elements, which is the lower one of two. The result is NaN if an element is NaN,
/// or if there are no elements. Ties share the gradient equally.
Tensor median(const Tensor& x);
/// Returns the lower median along one dimension, and its index. If there is a NaN, the result is the first
/// NaN. Throws ValueError if the dimension is empty.
std::pair<Tensor, Tensor> median(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// Returns the most frequent value along one dimension (the smallest of several), and the index of its last
/// occurrence. The gradient goes to that element. Every NaN counts as a value of its own. Throws ValueError
/// if the dimension is empty.
std::pair<Tensor, Tensor> mode(const Tensor& x, std::int64_t dim = -1, bool keepdim = false);
/// Returns the q-th quantile along `dim`, or of all elements. q is in [0, 1]. If q lies between two elements,
/// `interpolation` chooses: "linear", "lower", "higher", "midpoint" or "nearest". The result is NaN if an
/// element is NaN. x is floating. Throws ValueError for other q and names, and if there are no elements.
Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                const std::string& interpolation = "linear");
/// The quantiles for each element of a 1-d tensor q, along a new first dimension. q is read on the host, so a
/// GPU is synchronised if q is there.
Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                const std::string& interpolation = "linear");

/// As quantile(), of the elements that are not NaN. The result is NaN if there are none.
Tensor nanquantile(const Tensor& x, double q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                   const std::string& interpolation = "linear");
Tensor nanquantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim = {},
                   bool keepdim = false, const std::string& interpolation = "linear");

struct UniqueOptions {
  bool return_inverse = false, return_counts = false;
  /// The dimension whose slices are compared. Without it, the elements are.
  std::optional<std::int64_t> dim = {};
};
struct Unique {
  /// The different elements in ascending order, 1-d. With `dim`: the different slices along it, in the order
  /// of their first elements that differ.
  Tensor values;
  /// i64, in x's shape, or 1-d with `dim`: the index in `values` of each element or slice. Undefined unless
  /// requested.
  Tensor inverse;
  Tensor counts;  ///< i64: how often each value occurs; undefined unless requested
};
/// Returns the different elements of x, or with `dim` its different slices along that dimension. Every NaN
/// counts as a value of its own, as in PyTorch. There is no gradient. The host waits for a GPU, because the
/// number of results depends on the elements. Throws ValueError if `dim` is not empty and x has another
/// dimension that is.
Unique unique(const Tensor& x, const UniqueOptions& options = {});
/// As unique(), but removes only elements that equal their predecessor in row-major order, or slices that
/// equal the one before them, and does not sort.
Unique unique_consecutive(const Tensor& x, const UniqueOptions& options = {});

}  // namespace tapestry
