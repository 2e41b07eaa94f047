#pragma once
// Finds modules that cannot be trained on several ranks or replicas.
#include <string>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// What is wrong with the model for training on several ranks or replicas (Module::why_not_divided), with the
/// module's path, or an empty text.
inline std::string why_not_divided(const Module& model) {
  for (const auto& [path, module] : model.named_modules())
    if (const std::string why = module->why_not_divided(); !why.empty())
      return (path.empty() ? "the " + module->type_name() : path) + " has " + why;
  return {};
}

}  // namespace tapestry::nn
