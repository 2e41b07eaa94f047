#pragma once
// Embeddings whose forward changes their weight.
#include <string>

#include "tapestry/nn/layers/embedding.h"

namespace tapestry::nn {

/// What is wrong with the model for training on several ranks or replicas, or an empty text: an Embedding
/// with max_norm scales the rows down that its own indices select, so the ranks' weights would differ.
inline std::string why_not_divided(const Module& model) {
  for (const auto& [path, module] : model.named_modules())
    if (const auto* const layer = dynamic_cast<const Embedding*>(module); layer && layer->options.max_norm)
      return concat({path.empty() ? "the Embedding" : path, " has max_norm ", *layer->options.max_norm,
                     ", and each rank or replica would scale down the rows that its own part of a batch "
                     "selects; leave max_norm out, and scale the rows of the whole weight after "
                     "Optimizer::step()"});
  return {};
}

}  // namespace tapestry::nn
