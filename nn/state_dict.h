#pragma once
// A StateDict is an ordered list of named tensors: the saved state of a module, an optimizer or a schedule.
// Single numbers are tensors too (0-d, f64 or i64), so that every state dict fits into a safetensors file.
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// Returns the tensor with this name, or null. Looks at every entry; use a StateDictIndex for many names.
inline const Tensor* find(const StateDict& dict, std::string_view name) {
  for (const auto& [key, tensor] : dict)
    if (key == name) return &tensor;
  return nullptr;
}

/// Finds the tensors of a StateDict by name in constant time. The dict must outlive the index unchanged. If a
/// name appears twice, the index has the first tensor.
class StateDictIndex {
 public:
  explicit StateDictIndex(const StateDict& dict);
  /// Returns the tensor with this name, or null.
  const Tensor* find(std::string_view name) const;

 private:
  std::unordered_map<std::string_view, const Tensor*> tensors_;
};

/// Keys that load_state_dict expected but did not find, and keys that it found but did not expect.
struct LoadResult {
  std::vector<std::string> missing, unexpected;
};

}  // namespace tapestry::nn
