#include "tapestry/nn/layers/container.h"

namespace tapestry::nn {

Function::Function(std::function<Tensor(const Tensor&)> function) : function_(std::move(function)) {
  check(static_cast<bool>(function_), "[Function] the function is empty; pass something that can be called");
}

Module& ModuleListBase::operator[](std::int64_t index) const {
  const auto count = static_cast<std::int64_t>(size());
  if (index < -count || index >= count)
    fail<IndexError>("[", type_name(), "] index ", index, " is out of range for ", count, " modules");
  return *modules_[static_cast<std::size_t>(index < 0 ? index + count : index)];
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Module* module : *this) y = (*module)(y);
  return y;
}

}  // namespace tapestry::nn
