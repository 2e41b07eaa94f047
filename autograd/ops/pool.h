#pragma once
// Pooling over the last one to three dimensions: (N, C, L), (N, C, H, W) and (N, C, D, H, W), or without N.
// Channels-last images give channels-last results.
#include <utility>

#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct Pool1dParams {
  std::int64_t kernel_size = 0;
  std::int64_t stride = 0;    ///< 0 means kernel_size
  std::int64_t padding = 0;   ///< at most half of kernel_size
  std::int64_t dilation = 1;  ///< maximum pools only
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< average pools only
};
struct Pool2dParams {
  Pair kernel_size;
  Pair stride = 0;    ///< 0 means kernel_size
  Pair padding = 0;   ///< at most half of kernel_size
  Pair dilation = 1;  ///< maximum pools only
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< average pools only
};
/// Each Shape has one number, or three for depth, height and width.
struct Pool3dParams {
  Shape kernel_size;
  Shape stride = {};   ///< empty means kernel_size
  Shape padding = 0;   ///< at most half of kernel_size
  Shape dilation = 1;  ///< maximum pools only
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< average pools only
};

/// Returns the maximum of each window. Padding counts as -inf. If a window has a NaN, the result is NaN. The
/// gradient goes to the first maximum. The result is (N, C, P, Q) with P = (H + 2 padding - dilation
/// (kernel_size - 1) - 1) / stride + 1, rounded down, or rounded up with ceil_mode. Throws ValueError if the
/// window does not fit.
Tensor max_pool2d(const Tensor& x, const Pool2dParams& params);
Tensor max_pool1d(const Tensor& x, const Pool1dParams& params);
Tensor max_pool3d(const Tensor& x, const Pool3dParams& params);
/// return_indices=True: also return where the maxima are, as i64: for images h * W + w, for volumes
/// (d * H + h) * W + w. Of equal maxima it is the first, of several NaN the last. A window that lies wholly
/// in the padding has -1.
std::pair<Tensor, Tensor> max_pool1d_with_indices(const Tensor& x, const Pool1dParams& params);
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, const Pool2dParams& params);
std::pair<Tensor, Tensor> max_pool3d_with_indices(const Tensor& x, const Pool3dParams& params);

/// Returns the average of each window. The result has the shape of max_pool2d's.
Tensor avg_pool2d(const Tensor& x, const Pool2dParams& params);
Tensor avg_pool1d(const Tensor& x, const Pool1dParams& params);
Tensor avg_pool3d(const Tensor& x, const Pool3dParams& params);
/// Returns (sum of x^p)^(1 / p) over each window, with p = norm_type. Takes kernel_size, stride and
/// ceil_mode. Unless p is 1, the gradient of a window whose sum is 0 is NaN, and the root of a negative sum,
/// which odd powers can have, is NaN, as in PyTorch.
Tensor lp_pool1d(const Tensor& x, double norm_type, const Pool1dParams& params);
Tensor lp_pool2d(const Tensor& x, double norm_type, const Pool2dParams& params);
Tensor lp_pool3d(const Tensor& x, double norm_type, const Pool3dParams& params);

/// Returns averages over the windows [floor(i H / P), ceil((i + 1) H / P)). The result is (N, C, P, Q) for
/// output_size (P, Q), which may have zeros.
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output_size);
Tensor adaptive_avg_pool3d(const Tensor& x, const Shape& output_size);
/// Return the maxima of the same windows, with the rules of max_pool2d for NaN, gradients and indices.
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output_size);
Tensor adaptive_max_pool2d(const Tensor& x, Pair output_size);
Tensor adaptive_max_pool3d(const Tensor& x, const Shape& output_size);
std::pair<Tensor, Tensor> adaptive_max_pool1d_with_indices(const Tensor& x, std::int64_t output_size);
std::pair<Tensor, Tensor> adaptive_max_pool2d_with_indices(const Tensor& x, Pair output_size);
std::pair<Tensor, Tensor> adaptive_max_pool3d_with_indices(const Tensor& x, const Shape& output_size);

/// The inverse of a maximum pool: writes each element of x to its index in a tensor of zeros. The size of a
/// dimension is (size - 1) stride - 2 padding + kernel_size. `output_size` (the pool's input size, with or
/// without N and C) replaces it, because pools round sizes down; it may differ by less than a stride. If two
/// elements have the same index, the last one is written; PyTorch does not define which. Throws IndexError
/// for an index outside the result; on a GPU, the error comes when the host next waits for the work.
Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const Pool1dParams& params,
                    const Shape& output_size = {});
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const Pool2dParams& params,
                    const Shape& output_size = {});
Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const Pool3dParams& params,
                    const Shape& output_size = {});

}  // namespace tapestry
