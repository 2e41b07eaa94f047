#pragma once
// Named tensors in order: what is saved and loaded of a module, an optimizer or a schedule. Everything in one
// is a tensor, single numbers too (0-d, f64 or i64), so that any of them goes into a safetensors file as it
// is.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// The tensor of this name, or null.
inline const Tensor* find(const StateDict& dict, std::string_view name) {
  for (const auto& [key, tensor] : dict)
    if (key == name) return &tensor;
  return nullptr;
}

/// What load_state_dict did not find, and what it had no use for.
struct LoadResult {
  std::vector<std::string> missing, unexpected;
};

}  // namespace tapestry::nn
