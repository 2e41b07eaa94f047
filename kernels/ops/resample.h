#pragma once
// Contract of the kernel that resamples images and volumes: interpolation, and averages over windows. Both
// are products with one sparse matrix per axis, and their gradient is the product with the transposed
// matrices. So one kernel computes all modes, and their gradients without atomics.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The matrix of one axis, in compressed rows: output o is the sum over t in [begin[o], begin[o + 1]) of
/// weight[t] * input[index[t]]. begin and index are i32. weight is f64 if the slot's dtype is f64, else f32.
/// An axis without `begin` is the identity, and then in == out.
struct ResampleAxis {
  std::int64_t in = 1, out = 1;
  ConstArray begin, index, weight;
};

/// Applies the matrices of three axes.
///   Shapes: x is (n, in[0], in[1], in[2], inner), y is (n, out[0], out[1], out[2], inner). No size is 0.
///   Layout: x and y are dense. inner is 1 for row-major images, and the number of channels for channels-last
///     ones.
///   Dtypes: x and y have the slot's dtype, which is floating.
///   Accumulation: f32, or f64 for f64. The result is rounded once.
struct ResampleArgs {
  std::int64_t n, inner;
  ResampleAxis axes[3];
  ConstArray x;
  MutableArray y;
};
inline constinit Slot<ResampleArgs> resample{"resample"};

}  // namespace tapestry::kernels
