// Trains whole models. A CUDA device must reach the same weights as the CPU.
#include <cmath>

#include "tests/device/models.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace device_tests;

namespace {

struct Trained {
  std::vector<double> losses;
  nn::StateDict state;  // on the CPU
};

template <class Optimizer>
Trained train(const Task& task, const typename Optimizer::Options& options, Device device) {
  manual_seed(3);  // weights and data are generated on the CPU
  const auto model = task.make();
  const Tensor input = task.input(), target = task.target();
  model->to(device);
  Optimizer optimizer(model->parameters(), options);
  const Tensor x = input.to(device), t = target.to(device);
  std::vector<Tensor> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(train_step(*model, optimizer, x, t));
  Trained trained;
  for (const Tensor& loss : losses) trained.losses.push_back(loss.item());
  for (const auto& [name, tensor] : model->state_dict())
    trained.state.emplace_back(name, tensor.cpu().clone());
  return trained;
}

/// |a - b| / |b| over all elements.
double distance(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64), y = b.to(DType::f64);
  return (x - y).norm().item() / std::max(y.norm().item(), 1e-6);
}

template <class Optimizer>
void same_as_cpu(const Task& task, const typename Optimizer::Options& options, double loss_error,
                 double weight_error) {
  CAPTURE(task.name);
  const Trained here = train<Optimizer>(task, options, kCPU),
                there = train<Optimizer>(task, options, "cuda:0");
  for (std::size_t i = 0; i < here.losses.size(); ++i) {
    CAPTURE(i, here.losses[i], there.losses[i]);
    CHECK(std::abs(here.losses[i] - there.losses[i]) <= loss_error * std::abs(here.losses[i]));
  }
  CHECK(here.losses[0] != here.losses[2]);
  REQUIRE(here.state.size() == there.state.size());
  for (std::size_t i = 0; i < here.state.size(); ++i) {
    CAPTURE(here.state[i].first);
    CHECK(distance(there.state[i].second, here.state[i].second) <= weight_error);
  }
}

}  // namespace

TEST_CASE("models are trained by SGD on a device as on the CPU") {
  if (no_gpu()) return;
  for (const Task& task : tasks()) same_as_cpu<optim::SGD>(task, {.lr = 0.01, .momentum = 0.9}, 1e-4, 1e-3);
}

TEST_CASE("models are trained by AdamW on a device as on the CPU") {
  if (no_gpu()) return;
  // The gradient of the key biases is zero up to rounding errors. With a smaller eps, AdamW would turn these
  // errors into full steps.
  for (const Task& task : tasks()) same_as_cpu<optim::AdamW>(task, {.lr = 1e-3, .eps = 1e-4}, 1e-4, 1e-3);
}
