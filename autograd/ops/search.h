#pragma once
// Binary search in sorted numbers, and counting. The results have no gradient.
#include <optional>
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry {

struct SearchsortedOptions {
  bool out_int32 = false;                ///< the result is i32 instead of i64
  bool right = false;                    ///< see searchsorted()
  std::optional<std::string> side = {};  ///< "left" or "right", another way to give `right`
  Tensor sorter =
      {};  ///< i64, in the sequence's shape: a permutation that sorts each row, such as argsort()'s
};

/// For each value, returns the index at which it can be inserted into the sorted sequence without changing
/// the order: the first such index, or, if `right`, the last one. A 1-d sequence serves all values. Otherwise
/// the sequence has the values' shape except for the last dimension, and each row searches its own row. The
/// dtypes promote. Throws ValueError if the shapes do not fit, or if `side` contradicts `right`. The order is
/// not checked.
Tensor searchsorted(const Tensor& sorted_sequence, const Tensor& values,
                    const SearchsortedOptions& options = {});
Tensor searchsorted(const Tensor& sorted_sequence, const Scalar& value,
                    const SearchsortedOptions& options = {});
/// Returns the bucket of each value between the 1-d, ascending `boundaries`: the i with boundaries[i - 1] <
/// value
/// <= boundaries[i], or, if `right`, boundaries[i - 1] <= value < boundaries[i].
Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool out_int32 = false, bool right = false);

/// Counts how often each integer occurs: y[j] is the number of i with x[i] = j, as i64, or the sum of
/// weights[i] over these i. y has max(x) + 1 elements, but at least `minlength`. x is 1-d with integers of at
/// least 0. Sums of f32 weights are f32, of other weights f64. Throws ValueError for negative integers and
/// other shapes. The host waits for a GPU, because the size of y depends on x.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);

/// Counts the elements of x in `bins` intervals of equal width from `low` to `high`, as x's dtype. The last
/// interval includes `high`. Elements outside, and NaN, are not counted. If low = high, they are the smallest
/// and the largest element. The edges are those of linspace(). Floating dtypes. Throws ValueError unless bins
/// > 0 and low <= high are finite. The host waits for a GPU.
Tensor histc(const Tensor& x, std::int64_t bins = 100, double low = 0, double high = 0);

}  // namespace tapestry
