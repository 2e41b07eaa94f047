#pragma once
// Two small networks in one module: what to do, and what to expect.
#include <utility>

#include "tapestry/nn/nn.h"

namespace apps {

struct ActorCritic : tapestry::nn::Module {
  using Linear = tapestry::nn::Linear;
  using Tensor = tapestry::Tensor;
  Linear& actor1 = add<Linear>("actor1", {.in_features = 4, .out_features = 64});
  Linear& actor2 = add<Linear>("actor2", {.in_features = 64, .out_features = 2});
  Linear& critic1 = add<Linear>("critic1", {.in_features = 4, .out_features = 64});
  Linear& critic2 = add<Linear>("critic2", {.in_features = 64, .out_features = 1});

  /// Scores of "left" and "right" (n, 2) for observations (n, 4).
  Tensor scores(const Tensor& observations) { return actor2(actor1(observations).tanh()); }

  /// What a gradient step needs to know of actions (n) that were taken: their log-probabilities (n), and the
  /// return that is expected from each observation on (n).
  std::pair<Tensor, Tensor> forward(const Tensor& observations, const Tensor& actions) {
    const Tensor chosen = tapestry::nll_loss(scores(observations).log_softmax(1), actions,
                                             {.reduction = tapestry::Reduction::none});
    return {-chosen, critic2(critic1(observations).tanh()).squeeze(1)};
  }
};

}  // namespace apps
