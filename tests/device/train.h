#pragma once
// A short training run, to compare several devices with the CPU alone.
#include <functional>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

namespace device_tests {

struct Trained {
  std::vector<double> losses;
  std::vector<tapestry::Tensor> weights;  // on the CPU
};

/// Runs four steps of SGD. step(x, target) returns the loss. If the loss has no graph, step() has computed
/// the gradients.
inline Trained train(
    tapestry::nn::Module& net, const tapestry::Shape& x_sizes, const tapestry::Shape& target_sizes,
    const std::function<tapestry::Tensor(const tapestry::Tensor& x, const tapestry::Tensor& target)>& step) {
  using namespace tapestry;
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trained trained;
  for (int i = 0; i < 4; ++i) {
    manual_seed(static_cast<std::uint64_t>(10 + i));
    const Tensor x = randn(x_sizes, kCPU), target = randn(target_sizes, kCPU);
    optimizer.zero_grad();
    const Tensor loss = step(x, target);
    if (loss.requires_grad()) loss.backward();
    nn::clip_grad_norm_(net.parameters(), 1);
    optimizer.step();
    trained.losses.push_back(loss.item());
  }
  for (const nn::Parameter& p : net.parameters()) trained.weights.push_back(p->detach().cpu().clone());
  return trained;
}

inline void compare(const Trained& a, const Trained& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  REQUIRE(a.weights.size() == b.weights.size());
  for (std::size_t i = 0; i < b.losses.size(); ++i) CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(1e-4));
  for (std::size_t i = 0; i < b.weights.size(); ++i) CHECK(allclose(a.weights[i], b.weights[i], 1e-3, 1e-5));
}

}  // namespace device_tests
