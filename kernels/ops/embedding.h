#pragma once
// Contracts of the embedding kernels. Indices are i64 or i32 (the view says which), dense, and were checked.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Throws IndexError, naming `op` and the value, if one of `indices` lies outside [0, rows). Called with the
/// dtype of the indices, which are dense.
inline constinit Slot<void(const char* op, const View& indices, std::int64_t rows)> check_indices{
    "check_indices"};
/// out (n, D) dense = rows of weight (V, D), any strides. Floats: the dtype of out and weight.
inline constinit Slot<void(const View& out, const View& weight, const View& indices)> embedding{"embedding"};
/// dweight (V, D) dense, written whole: row v is the sum of the rows of grad (n, D) dense whose index is v,
/// in order of position (so the same bits every time), taken in f32 for f16 and bf16; 0 where v == padding
/// (-1: none). Floats.
inline constinit Slot<void(const View& dweight, const View& grad, const View& indices, std::int64_t padding)>
    embedding_backward{"embedding_backward"};

}  // namespace tapestry::kernels
