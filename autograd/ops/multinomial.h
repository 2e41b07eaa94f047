#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Draws `num_samples` categories per row. `probs` is (n) or (rows, n). The result is i64, and (num_samples)
/// or (rows, num_samples). The elements of a row are weights, which need not sum to one. Without replacement,
/// a category is drawn at most once, and each draw is in proportion to the weights that are left. The numbers
/// come from the context's generator. With replacement, all devices draw the same categories, and weights are
/// rounded up to multiples of about 2^-40 of the row's largest weight. Without replacement, devices may
/// differ in rare cases, because their logarithms differ in the last digits. Throws ValueError for other
/// shapes, for weights that are negative, infinite or NaN, and if a row has too few positive weights. The
/// host waits for a GPU to check the weights, as in PyTorch.
Tensor multinomial(const Tensor& probs, std::int64_t num_samples, bool replacement = false);

}  // namespace tapestry
