#include "tapestry/nn/state_dict.h"

namespace tapestry::nn {

StateDictIndex::StateDictIndex(const StateDict& dict) {
  tensors_.reserve(dict.size());
  for (const auto& [key, tensor] : dict) tensors_.emplace(key, &tensor);
}

const Tensor* StateDictIndex::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace tapestry::nn
