#pragma once
// The actor, which scores actions, and the critic, which predicts returns, in one module.
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

  /// Scores of "left" and "right" (n, 2) for observations (n, 4). They are f32 under autocast too, so that
  /// the probabilities are.
  Tensor scores(const Tensor& observations) {
    return actor2(actor1(observations).tanh()).to(tapestry::kFloat32);
  }

  /// Returns the log-probabilities (n) of the taken actions (n), and the expected returns (n) of the
  /// observations (n, 4).
  std::pair<Tensor, Tensor> forward(const Tensor& observations, const Tensor& actions) {
    const tapestry::distributions::Categorical choice({.logits = scores(observations)});
    return {choice.log_prob(actions),
            critic2(critic1(observations).tanh()).squeeze(1).to(tapestry::kFloat32)};
  }
};

}  // namespace apps
