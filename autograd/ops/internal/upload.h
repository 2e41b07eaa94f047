#pragma once
// Moves tables of numbers that the host computes to a device.
#include <cstdint>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Copies a table from the host to the device through pinned memory, so that the host does not wait for a
/// GPU.
Tensor uploaded(const Tensor& table, Device device);
/// The numbers as a tensor i64 on the device.
Tensor uploaded(const std::vector<std::int64_t>& numbers, Device device);

}  // namespace tapestry::autograd
