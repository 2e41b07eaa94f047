#pragma once
// Contracts of the kernels that clip gradients. One call takes all gradients of a device, whatever their
// number, and makes a fixed number of launches. Only CUDA has them: a CPU's threads lose nothing between the
// calls for single tensors that nn/clip.cpp makes there. The slots' dtype is f32; each gradient has its own.
#include <cstdint>

#include "tapestry/core/dtype.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The elements of one block of threads.
inline constexpr std::int64_t kGradientBlock = 16384;
/// So many gradients fit into a kernel's arguments.
inline constexpr std::int64_t kGradientsInArguments = 128;

/// A gradient of f32, f16 or bf16. Its elements are dense, in any order. It has at least one.
struct GradientItem {
  void* data = nullptr;
  std::int64_t numel = 0;
  std::int32_t first = 0;  // the number of blocks of the gradients before this one
  DType dtype = DType::f32;
};

struct GradientItems {
  const GradientItem* items = nullptr;  // in host memory
  const GradientItem* on_device =
      nullptr;  // the same in the device's memory, if kGradientsInArguments is exceeded
  std::int64_t count = 0, blocks = 0;  // at least one
};

/// Computes *total, the norm of all elements of all gradients: (sum |g|^order)^(1 / order), or the largest
/// |g| if the order is infinite, with sums in f64. A NaN among them gives NaN. And *factor, which is max_norm
/// / (total + 1e-6), but at most 1; NaN stays NaN. Two launches. total and factor are f32 scalars.
struct GradientNormArgs {
  GradientItems gradients;
  double order, max_norm;
  MutableArray total, factor;
};
inline constinit Slot<GradientNormArgs> gradient_norm{"gradient_norm"};

/// g *= *factor for all gradients. One launch, which reads no gradient if the factor is 1.
struct ScaleGradientsArgs {
  GradientItems gradients;
  ConstArray factor;  // f32 scalar
};
inline constinit Slot<ScaleGradientsArgs> scale_gradients{"scale_gradients"};

/// Clamps all elements of all gradients to [-limit, limit]. NaN stays. One launch.
struct ClampGradientsArgs {
  GradientItems gradients;
  double limit;
};
inline constinit Slot<ClampGradientsArgs> clamp_gradients{"clamp_gradients"};

}  // namespace tapestry::kernels
