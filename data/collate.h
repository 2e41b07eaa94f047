#pragma once
// From samples to batches: copies of tensors on the CPU with data's own loops.
#include <cstdint>
#include <span>

#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// A sample, or a batch of them (then both tensors have one more dimension in front). `target` may be
/// undefined.
struct Example {
  Tensor input;
  Tensor target;
};

/// Throws, naming `op`, unless `t` is a tensor on the CPU.
void check_cpu(const char* op, const Tensor& t, const char* what);
/// `t` itself if it is dense row-major, else a dense copy.
Tensor dense(const Tensor& t);
/// Row `index` of `t`, without its first dimension, as a view.
Tensor row(const Tensor& t, std::int64_t index);
/// Rows `indices` of `t` in that order, copied. Throws IndexError for an index outside [0, t.size(0)).
Tensor gather_rows(const Tensor& t, std::span<const std::int64_t> indices);
/// The samples one above the other, in a new first dimension. Throws ValueError unless all have the shape and
/// the dtype of the first.
Tensor stack_samples(std::span<const Tensor> samples);
/// Inputs stacked and targets stacked; what DataLoader does with Examples when no other collate is given.
Example collate(std::span<const Example> samples);

}  // namespace tapestry::data
