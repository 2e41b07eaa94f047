#pragma once
// The CPU's algorithms for convolution, so that tests can compare them. T is float or double. The arguments
// are those of kernels/ops/conv.h, except that the functions ignore `relu`: the caller applies it.
#include <string>
#include <string_view>

#include "tapestry/kernels/ops/conv3d.h"

namespace tapestry::kernels::cpu {

/// Convolution by im2col, which lowers it to matrix products (Chellapilla, Puri and Simard 2006).
template <class T>
struct Im2col {
  static void forward(const LaunchContext& context, const Conv2dShape& s, const T* x, const T* weight,
                      const T* bias, T* y);
  static void backward_input(const LaunchContext& context, const Conv2dShape& s, const T* dy, const T* weight,
                             T* dx);
  static void backward_weight(const LaunchContext& context, const Conv2dShape& s, const T* dy, const T* x,
                              T* dweight, T* dbias);
};
extern template struct Im2col<float>;
extern template struct Im2col<double>;
/// Whether the convolution is a product of matrices as its arrays lie in memory, for which Im2col copies
/// nothing: a window of 1, without strides, padding and groups, in row-major layout.
bool is_product(const Conv2dShape& s);

/// Convolution by oneDNN. T is float or BFloat16, whose sums are f32. Each function returns false if the
/// build has no oneDNN or if oneDNN does not support the shape. In bf16 it also returns false without bf16
/// instructions that pay (bf16_dot.h), and backward_weight() for results that are not finite. The results are
/// then unspecified, and the caller computes them in another way.
template <class T>
struct OneDnnConv {
  static bool forward(const LaunchContext& context, const Conv2dShape& s, const T* x, const T* weight,
                      const T* bias, T* y);
  static bool backward_input(const LaunchContext& context, const Conv2dShape& s, const T* dy, const T* weight,
                             T* dx);
  static bool backward_weight(const LaunchContext& context, const Conv2dShape& s, const T* dy, const T* x,
                              T* dweight, T* dbias);
};
/// For tests: the name that oneDNN gives to the kernel of this forward pass in bf16, without bias. It is
/// empty if oneDNN computes none.
std::string bf16_conv_kernel(const Conv2dShape& s);
/// For tests on processors without AMX: treats this thread's kernels with `part` in their names as AMX
/// kernels of a oneDNN version with the stride fault (onednn_faults.h). An empty `part` ends this.
void plant_stride_fault(std::string_view part);
extern template struct OneDnnConv<float>;
extern template struct OneDnnConv<BFloat16>;
/// Depthwise convolution of row-major images, which copies no image to another layout. T, the type of images,
/// is float, Half or BFloat16. Weights, biases and their gradients are f32, as all sums are. The results do
/// not depend on the number of threads.
template <class T>
struct Depthwise {
  /// Whether the other functions take the shape: one input and one output channel per group, row-major or
  /// with one channel.
  static bool fits(const Conv2dShape& s);
  // The padding is multiplied, too, and 0 times infinity is NaN. So each function returns false if a sum is
  // not finite. The results are then unspecified, and the caller computes them in another way.
  static bool forward(const Conv2dShape& s, const T* x, const float* weight, const float* bias, T* y);
  static bool backward_input(const Conv2dShape& s, const T* dy, const float* weight, T* dx);
  static bool backward_weight(const Conv2dShape& s, const T* dy, const T* x, float* dweight, float* dbias);
};
/// The same for channels-last images. The functions return true: they multiply no padding.
template <class T>
struct DepthwiseLast {
  static bool fits(const Conv2dShape& s);
  static bool forward(const Conv2dShape& s, const T* x, const float* weight, const float* bias, T* y);
  static bool backward_input(const Conv2dShape& s, const T* dy, const float* weight, T* dx);
  static bool backward_weight(const Conv2dShape& s, const T* dy, const T* x, float* dweight, float* dbias);
};
/// The gradient of the weight for many row-major images of a few pixels each, in f32.
struct SmallImages {
  /// Whether backward_weight() takes the shape and is faster than the other algorithms.
  static bool fits(const Conv2dShape& s);
  static void backward_weight(const LaunchContext& context, const Conv2dShape& s, const float* dy,
                              const float* x, float* dweight, float* dbias);
};
/// 3-d convolution by oneDNN, in the same way as OneDnnConv. There is no other algorithm for volumes.
struct OneDnnConv3d {
  static bool forward(const LaunchContext& context, const Conv3dShape& s, const float* x, const float* weight,
                      const float* bias, float* y);
  static bool backward_input(const LaunchContext& context, const Conv3dShape& s, const float* dy,
                             const float* weight, float* dx);
  static bool backward_weight(const LaunchContext& context, const Conv3dShape& s, const float* dy,
                              const float* x, float* dweight, float* dbias);
};

}  // namespace tapestry::kernels::cpu
