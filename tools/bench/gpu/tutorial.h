#pragma once
// Launches the kernels of docs/tutorials/from-naive-to-fast.md.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::bench {

/// Launches the kernel of this name on the current stream of y's device. x and y are contiguous. The sizes
/// are those of the benchmark: softmax (rows, columns), linear (m, n, k), conv (n, c, h, w, k, window, 1,
/// padding).
void launch_tutorial_kernel(const std::string& name, const std::vector<std::int64_t>& sizes, const Tensor& x,
                            const Tensor& weight, const Tensor& bias, const Tensor& y);

}  // namespace tapestry::bench
