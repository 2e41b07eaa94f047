#pragma once
// Copies tensors of any strides to contiguous memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// True if several elements of `t` may have the same address, as in an expanded tensor. Writing to such a
/// tensor is ambiguous.
bool may_overlap_itself(const Tensor& t);
/// The addresses from the tensor's first byte to the byte after its last one; an empty range if it is empty.
std::pair<std::intptr_t, std::intptr_t> address_range(const Tensor& t);
/// True if the address ranges of the two tensors overlap.
bool may_overlap(const Tensor& a, const Tensor& b);
/// The distance in bytes between the begins of consecutive blocks, if the tensor consists of `blocks` equal
/// blocks of consecutive elements and each of them is contiguous. Otherwise nullopt. The tensor is not empty.
std::optional<std::size_t> block_pitch(const Tensor& t, int blocks);
/// How equal runs of consecutive bytes lie in memory: `rows` of them in each of several blocks. Pitches are
/// in bytes.
struct RowLayout {
  std::size_t pitch = 0, rows = 1, row_pitch = 0;
};
/// The layout of a tensor whose dimension 0 counts the blocks and whose next dimensions count `rows` rows, if
/// each row is contiguous and the rows of a block are equally spaced. Otherwise nullopt. The tensor is not
/// empty.
std::optional<RowLayout> row_layout(const Tensor& t, std::int64_t rows);
/// The layout of a tensor as one block, with as few rows as possible. The tensor is not empty.
std::optional<RowLayout> row_layout(const Tensor& t);
/// The view of a tensor that has size(dim) / blocks elements of dimension `dim` in each of its blocks: the
/// blocks are its dimension 0.
Tensor blocks_along(const Tensor& t, int dim, int blocks);

/// The elements of a CPU tensor in row-major order. Uses the tensor's own memory if it is contiguous,
/// otherwise a copy. Copies run in the calling thread.
class Dense {
 public:
  /// Whether data() has the tensor's values at first. `no`: it need not have them. `yes`: it has them.
  /// `copy`: it has them in a copy, even if the tensor is contiguous.
  enum class Fill { no, yes, copy };
  Dense(const Tensor& t, Fill fill);

  void* data() const { return copy_ ? copy_.get() : t_.raw_data(); }
  /// Copies data() back to the tensor.
  void store() const;

 private:
  const Tensor t_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace tapestry::distributed
