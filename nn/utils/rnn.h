#pragma once
// Batches of sequences that differ in length.
#include <cstdint>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::nn::utils::rnn {

/// Sequences without padding, sorted by length, longest first. The rows of step 0 come first, then those of
/// step 1, and so on. Recurrent layers take and return it.
struct PackedSequence {
  Tensor data;                            ///< (rows, ...)
  std::vector<std::int64_t> batch_sizes;  ///< the number of sequences that have each step
  /// The positions of the sorted sequences in the original batch, and the inverse. i64; undefined if the
  /// sequences were given in sorted order.
  Tensor sorted_indices = {}, unsorted_indices = {};
};

struct PackOptions {
  bool batch_first = false;
  /// If true, lengths that increase are an error. If false, the sequences are sorted.
  bool enforce_sorted = true;
};

/// Packs padded sequences of shape (T, N, ...), or (N, T, ...) with batch_first. Sequence n has its first
/// lengths[n] steps. Throws ValueError unless there are N lengths from 1 to T.
PackedSequence pack_padded_sequence(const Tensor& x, const std::vector<std::int64_t>& lengths,
                                    const PackOptions& options = {});
/// The same with an integer tensor of shape (N).
PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, const PackOptions& options = {});

/// Packs tensors of shapes (T_n, ...).
PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted = true);

struct PadPackedOptions {
  bool batch_first = false;
  double padding_value = 0;
  std::int64_t total_length = 0;  ///< the length of the result; 0 means that of the longest sequence
};

/// The inverse of pack_padded_sequence(): returns the padded sequences in their original order, and their
/// lengths (i64, on the CPU).
std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed,
                                              const PadPackedOptions& options = {});

struct PadOptions {
  bool batch_first = false;
  double padding_value = 0;
  bool padding_left = false;  ///< pads before the sequences; PyTorch's padding_side = "left"
};

/// Pads tensors of shapes (T_n, ...) to one of shape (T, N, ...), or (N, T, ...) with batch_first.
Tensor pad_sequence(const std::vector<Tensor>& sequences, const PadOptions& options = {});
/// The inverse of pad_sequence() without padding_left.
std::vector<Tensor> unpad_sequence(const Tensor& padded, const std::vector<std::int64_t>& lengths,
                                   bool batch_first = false);

}  // namespace tapestry::nn::utils::rnn
