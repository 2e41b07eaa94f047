#pragma once
// Linear maps along the last dimensions of a tensor, for interpolation and for averages over windows.
#include <cstdint>
#include <vector>

#include "tapestry/autograd/op.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// The matrix of one axis in compressed rows, as kernels::ResampleAxis describes it.
struct AxisMatrix {
  std::int64_t in = 1, out = 1;
  std::vector<std::int32_t> begin{0}, index;
  std::vector<double> weight;

  /// Appends an entry to the last row.
  void add(std::int64_t input, double w) {
    index.push_back(static_cast<std::int32_t>(input));
    weight.push_back(w);
  }
  void end_row() { begin.push_back(static_cast<std::int32_t>(index.size())); }
};

/// The averages of the windows [i stride - padding, i stride - padding + kernel). The divisor of a window
/// counts the elements in the padding if `count_pad`, but never those beyond it.
AxisMatrix fixed_windows(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                         std::int64_t padding, bool count_pad);
/// The averages of the windows [floor(i in / out), ceil((i + 1) in / out)).
AxisMatrix adaptive_windows(std::int64_t in, std::int64_t out);

/// Multiplies the last dimensions of x by one matrix each, of which there are at most three, and records the
/// operation. A channels-last x with two matrices gives a channels-last result.
Tensor resample(const Op& op, const Tensor& x, std::vector<AxisMatrix> axes);

}  // namespace tapestry::autograd
