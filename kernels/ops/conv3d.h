#pragma once
// Contracts of the 3-d convolutions. They are optional: where a slot is empty, or its kernel refuses a shape,
// autograd/ops/conv_maps.cpp computes the convolution by the 2-d slots of kernels/ops/conv.h. For all slots
// in this file:
//   Shapes: x is (N, C, D, H, W), weight is (K, C / groups, T, R, S), bias is (K), y is (N, K, O, P, Q).
//   Layout: all arrays are dense and row-major.
//   Dtypes and accumulation are those of kernels/ops/conv.h.
//   *done: the kernel sets it to true if it has computed the result, and to false if it refuses the shape and
//   has written nothing.
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels {

/// The convolution of the planes, and the same numbers for the depth.
struct Conv3dShape {
  Conv2dShape plane;  ///< row-major, without relu
  std::int64_t d = 0, t = 0, o = 0, stride_d = 1, padding_d = 0, dilation_d = 1;

  friend bool operator==(const Conv3dShape&, const Conv3dShape&) = default;
};

/// Computes y from x, weight and bias. The bias may be null.
struct Conv3dArgs {
  Conv3dShape shape;
  ConstArray x, weight, bias;
  MutableArray y;
  bool* done;
};
inline constinit Slot<Conv3dArgs> conv3d{"conv3d"};

/// Computes dx from dy and weight.
struct Conv3dBackwardInputArgs {
  Conv3dShape shape;
  ConstArray dy, weight;
  MutableArray dx;
  bool* done;
};
inline constinit Slot<Conv3dBackwardInputArgs> conv3d_backward_input{"conv3d_backward_input"};

/// Computes dweight, and dbias unless it is null, from dy and x.
struct Conv3dBackwardWeightArgs {
  Conv3dShape shape;
  ConstArray dy, x;
  MutableArray dweight, dbias;
  bool* done;
};
inline constinit Slot<Conv3dBackwardWeightArgs> conv3d_backward_weight{"conv3d_backward_weight"};

}  // namespace tapestry::kernels
