#pragma once
// Contracts of the embedding kernels. Indices are i64 or i32 (the view says which) and dense; those out of
// range are skipped, and reported as ops/index.h says.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// out (n, D) dense = rows of weight (V, D), any strides. Floats: the dtype of out and weight.
inline constinit Slot<void(const View& out, const View& weight, const View& indices, std::int64_t* first_bad)>
    embedding{"embedding"};
/// dweight (V, D) dense, written whole: row v is the sum of the rows of grad (n, D) dense whose index is v,
/// in order of position (so the same bits every time), taken in f32 for f16 and bf16; 0 where v == padding
/// (-1: none). Floats.
inline constinit Slot<void(const View& dweight, const View& grad, const View& indices, std::int64_t padding)>
    embedding_backward{"embedding_backward"};

}  // namespace tapestry::kernels
