#pragma once
// Collating samples into batches on the CPU. data has its own copy loops, because it may not include kernels.
#include <cstdint>
#include <span>

#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// A sample, or a batch of samples, whose tensors have one more leading dimension. `target` may be undefined.
struct Example {
  Tensor input;
  Tensor target;
};

/// Throws an error that names `op`, unless `t` is a defined tensor on the CPU.
void check_cpu(const char* op, const Tensor& t, const char* what);
/// Returns `t` if it is contiguous, else a contiguous copy.
Tensor dense(const Tensor& t);
/// Returns a view of row `index` of `t`, without the first dimension.
Tensor row(const Tensor& t, std::int64_t index);
/// Returns a copy of the rows `indices` of `t`, in that order. Throws IndexError for an index outside [0,
/// t.size(0)).
Tensor gather_rows(const Tensor& t, std::span<const std::int64_t> indices);
/// Stacks the samples along a new first dimension. Throws ValueError unless all have the shape and dtype of
/// the first.
Tensor stack_samples(std::span<const Tensor> samples);
/// Stacks the inputs and the targets. DataLoader uses it for Examples unless the options give another collate
/// function.
Example collate(std::span<const Example> samples);

}  // namespace tapestry::data
