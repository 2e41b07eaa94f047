#include "tapestry/autograd/ops/swiglu.h"

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/kernels/ops/swiglu.h"

namespace tapestry {

// The gradients by operations, for gradients of gradients.
namespace autograd {
template <>
inline constexpr auto composed<kernels::BackwardA<kernels::Swiglu>> =
    [](const Tensor& dy, const Tensor& gate, const Tensor& up) {
      const Tensor s = sigmoid(gate);
      return dy * up * (s * (1 + gate * (1 - s)));
    };
template <>
inline constexpr auto composed<kernels::BackwardB<kernels::Swiglu>> =
    [](const Tensor& dy, const Tensor& gate, const Tensor&) { return dy * silu(gate); };
}  // namespace autograd

Tensor swiglu(const Tensor& gate, const Tensor& up) { return autograd::binary<kernels::Swiglu>(gate, up); }

}  // namespace tapestry
