#pragma once
// Refuses models whose parameters are divided or replicated, or must not be.
#include <string>

#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Throws ValueError if a parameter of the module is sharded or has replicas. For a function that changes
/// nothing but values, `values_only`, replicas and shards that are whole now (unshard()) are allowed.
/// `instead` ends the text.
inline void check_undivided(const char* op, const Module& module, bool values_only, const char* instead) {
  for (const auto& [name, p] : module.named_parameters()) {
    check(!p.layout() || (values_only && p->sizes() == whole_sizes(p)), "[", op, "] '", name,
          "' is sharded, and this rank has a part of it; ", instead);
    check(values_only || p.replicas() <= 1, "[", op, "] '", name, "' has ", p.replicas(), " replicas; ",
          instead);
  }
}

/// What is wrong with the model for training on several ranks or replicas (Module::why_not_divided), with the
/// module's path, or an empty text.
inline std::string why_not_divided(const Module& model) {
  for (const auto& [path, module] : model.named_modules())
    if (const std::string why = module->why_not_divided(); !why.empty())
      return (path.empty() ? "the " + module->type_name() : path) + " has " + why;
  return {};
}

}  // namespace tapestry::nn
