#pragma once
// How the ranks of an axis divide a sequence.
#include <cstdint>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/mesh/mesh.h"

namespace tapestry::distributed {

/// The order of a divided sequence. `contiguous`: rank r has the r-th of equal parts. `zigzag`: of twice as
/// many chunks as ranks, rank r has chunk r and chunk 2 size - 1 - r, so that causal attention is as much
/// work on each rank.
enum class SequenceOrder : std::uint8_t { contiguous, zigzag };

/// The positions in the whole sequence of the rows that rank `rank` of `size` has, in order: int64, of shape
/// (length / size). For embeddings of positions and for masks. Throws ValueError if `length` cannot be
/// divided by `size`, or by 2 `size` for zigzag, and IndexError if the rank does not exist.
Tensor sequence_positions(std::int64_t length, int rank, int size, SequenceOrder order);

/// This rank's rows of dimension `dim` of a tensor that is equal on all ranks (Placement::invariant()): those
/// of sequence_positions(), or all of them on an axis of one rank. Differentiable: if `x` needs a gradient,
/// such as a learned table of positions, backward is a collective of the axis, and gives each rank the whole
/// gradient. It is equal on all ranks, so do not sum it over the axis again.
Tensor divide_sequence(const Tensor& x, std::int64_t dim, const Axis& axis, SequenceOrder order);

}  // namespace tapestry::distributed
