#pragma once
// The interface by which strategies update the biases of routers.
#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// A layer with a router that may have a bias for each expert, which moves once a step by the tokens of all
/// ranks. It is a base class so that distributed::update_router_bias() needs no layer of nn.
class BiasBalanced {
 public:
  virtual ~BiasBalanced() = default;
  virtual bool has_router_bias() const = 0;
  /// i64 (num_experts): see MixtureOfExperts.
  virtual Tensor tokens_per_expert() const = 0;
  virtual void update_router_bias(const Tensor& counts) = 0;
};

}  // namespace tapestry::nn
