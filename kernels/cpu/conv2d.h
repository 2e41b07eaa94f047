#pragma once
// The ways in which the CPU convolves, for tests to hold one against the other. T is float or double;
// arguments as in kernels/ops/conv.h, whose relu they leave to their caller.
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cpu {

/// By lowering to matrix products (Chellapilla, Puri and Simard 2006).
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

/// By oneDNN. Each returns false, having done nothing, where the build or oneDNN has no way to do it.
struct OneDnnConv {
  static bool forward(const LaunchContext& context, const Conv2dShape& s, const float* x, const float* weight,
                      const float* bias, float* y);
  static bool backward_input(const LaunchContext& context, const Conv2dShape& s, const float* dy,
                             const float* weight, float* dx);
  static bool backward_weight(const LaunchContext& context, const Conv2dShape& s, const float* dy,
                              const float* x, float* dweight, float* dbias);
};

}  // namespace tapestry::kernels::cpu
