#pragma once
// Compares operations on a GPU with the CPU, for tests of kernels that golden cases do not reach.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

namespace device_tests {

using namespace tapestry;

inline const Device kGpu{DeviceType::cuda, 0};

/// The largest difference, relative to the largest element. NaN counts as infinite.
inline double difference(const Tensor& expected, const Tensor& found) {
  const std::vector<float> a = expected.detach().to_float().to_vector<float>(),
                           b = found.detach().cpu().to_float().to_vector<float>();
  REQUIRE(a.size() == b.size());
  double largest = 0, scale = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) && a[i] == b[i]) continue;
    const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = d <= largest ? largest : d == d ? d : HUGE_VAL;
    scale = std::max(scale, std::fabs(static_cast<double>(a[i])));
  }
  return largest / scale;
}
inline double unit(DType dtype) {
  return dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;
/// Compares f and its gradients on the GPU with the CPU. `units`: how many units of rounding they may differ.
inline void compare(const std::string& what, const std::vector<Tensor>& inputs, double units,
                    const Function& f) {
  CAPTURE(what);
  std::vector<Tensor> here, there;
  double least = 0;
  for (const Tensor& x : inputs) {
    here.push_back(x.detach().clone());
    there.push_back(x.detach().to(kGpu));
    if (!is_floating(x.dtype())) continue;
    least = std::max(least, unit(x.dtype()));
    here.back().set_requires_grad(), there.back().set_requires_grad();
  }
  const Tensor a = f(here), b = f(there);
  CHECK(difference(a, b) <= units * least);
  if (!a.requires_grad()) return;
  const Tensor g = randn(a.sizes(), kCPU).to(a.dtype()).contiguous(a.memory_format());
  a.backward(g), b.backward(g.to(kGpu));
  for (std::size_t i = 0; i < here.size(); ++i) {
    CAPTURE(i);
    if (here[i].grad().defined()) CHECK(difference(here[i].grad(), there[i].grad()) <= 2 * units * least);
  }
}

inline Tensor normal(const Shape& shape, DType dtype) { return randn(shape, kCPU).to(dtype); }

}  // namespace device_tests
