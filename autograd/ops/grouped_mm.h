#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Multiplies each group of rows by a matrix of its own, as the experts of a mixture do: for a (T, K) and b
/// (E, K, N), the rows offs[e - 1] to offs[e] of the result (T, N) are those rows of a times b[e]. For a (M,
/// T) and b (T, N), the groups cut the inner dimension: the result is (E, M, N), and its matrix e is the
/// product of the columns offs[e - 1] to offs[e] of a and those rows of b. Each form computes gradients of
/// the other one.
///
/// `offs` has the end of each group, i32 or i64 (E), on any device. Groups may be empty, and the last one
/// ends at T: rows behind it would have no matrix. The host reads offs, and waits for a GPU if they are
/// there. The groups are multiplied one after another.
///
/// Semantics: torch.nn.functional.grouped_mm, which also takes offs that end before T, and leaves those rows
/// unwritten. Groups of equal size are a product of bmm(). Throws TypeError unless a and b have the same
/// floating dtype and offs i32 or i64, and ValueError if shapes or offs do not fit.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offs);

}  // namespace tapestry
