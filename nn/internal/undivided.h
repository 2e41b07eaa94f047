#pragma once
// Refuses models whose parameters are divided or replicated.
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Throws ValueError if a parameter of the module is sharded or has replicas. For a function that changes
/// nothing but values, `values_only`, replicas and shards that are whole now (unshard()) are allowed.
/// `instead` ends the text.
inline void check_undivided(const char* op, const Module& module, bool values_only, const char* instead) {
  for (const auto& [name, p] : module.named_parameters()) {
    check(!p.sharding() || (values_only && p->sizes() == full_sizes(p)), "[", op, "] '", name,
          "' is sharded, and this rank has some of its rows; ", instead);
    check(values_only || p.replicas() <= 1, "[", op, "] '", name, "' has ", p.replicas(), " replicas; ",
          instead);
  }
}

}  // namespace tapestry::nn
