// Tests activation checkpointing inside DataParallel. Each replica must recompute its forward on its device's
// worker.
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Blocks : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 5, .out_features = 5});
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", {.num_features = 5});
  nn::Dropout& dropout = add<nn::Dropout>("dropout", {.p = 0.5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 5});
  bool checkpointed = false;
  Tensor block(const Tensor& x) { return b(dropout(norm(a(x)).tanh())) + x; }
  Tensor forward(const Tensor& x) override {
    const auto fn = [this](const Tensor& t) { return block(t); };
    return checkpointed ? checkpoint(fn, checkpoint(fn, x)) : fn(fn(x));
  }
};

// Returns parameters and running statistics after three steps.
std::vector<double> train(bool checkpointed, DataParallelMode strategy) {
  Blocks net;
  net.to(DType::f64);
  fill_by_formula(net);
  net.checkpointed = checkpointed;
  manual_seed(5);
  DataParallel dp(net, {0, 1, 2}, {.mode = strategy});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor y = dp(wave({8, 5}, step));
    (y * y).mean().backward();
    optimizer.step();
  }
  std::vector<double> all;
  for (const auto& [name, t] : net.state_dict())
    for (const double v : to_vector(t)) all.push_back(v);
  return all;
}

}  // namespace

TEST_CASE("replicas recompute with their own parameters and random numbers") {
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
    CHECK(train(true, strategy) == train(false, strategy));
}
