// Averages of weights (EMA, SWA) and update_bn.
#include "tapestry/nn/optim/averaging.h"

#include <cmath>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 2});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 2});
  Tensor forward(const Tensor& x) override { return bn(fc(x)); }
};

void set_weights(const Net& net, int seed) {
  const NoGradGuard no_grad;
  net.fc.weight->copy_(formula({2, 3}, seed));
}

}  // namespace

TEST_CASE("AveragedModel computes the mean or the exponential average of the weights") {
  Net net;
  net.to(DType::f64);
  optim::AveragedModel swa(net), ema(net, {.avg_fn = optim::get_ema_avg(0.9)});
  Tensor sum = zeros({2, 3}, DType::f64), average;
  for (int step = 0; step < 5; ++step) {
    set_weights(net, step);
    swa.update_parameters();
    ema.update_parameters();
    sum = sum + formula({2, 3}, step);
    average = step == 0 ? formula({2, 3}, 0) : average * 0.9 + formula({2, 3}, step) * 0.1;
  }
  CHECK(swa.n_averaged() == 5);
  {
    const optim::AveragedModel::Scope scope = swa.use();
    CHECK(allclose(net.fc.weight->detach(), sum / 5, 1e-14, 1e-14));
    CHECK_THROWS_WITH(swa.use(), ContainsSubstring("averaged weights already"));
    CHECK_THROWS_WITH(swa.update_parameters(), ContainsSubstring("end the Scope first"));
    CHECK_THROWS_WITH(swa.load_state_dict(swa.state_dict()), ContainsSubstring("end the Scope first"));
  }
  CHECK(equal(net.fc.weight->detach(), formula({2, 3}, 4)));
  {
    const optim::AveragedModel::Scope scope = ema.use();
    CHECK(allclose(net.fc.weight->detach(), average, 1e-14, 1e-14));
  }

  // A restored average continues with the same bits.
  optim::AveragedModel restored(net, {.avg_fn = optim::get_ema_avg(0.9)});
  CHECK_THROWS_WITH(restored.use(), ContainsSubstring("nothing has been averaged"));
  restored.load_state_dict(ema.state_dict());
  CHECK(restored.n_averaged() == 5);
  set_weights(net, 9);
  ema.update_parameters();
  restored.update_parameters();
  const nn::StateDict a = ema.state_dict(), b = restored.state_dict();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(equal(a[i].second, b[i].second));
}

TEST_CASE("AveragedModel averages buffers if asked to, and refuses other states") {
  Net net;
  optim::AveragedModel weights(net), all(net, {.use_buffers = true});
  CHECK(weights.state_dict().size() == 1 + 4);
  CHECK(all.state_dict().size() == 1 + 6);  // also running_mean and running_var, but not the i64 counter
  CHECK_THROWS_WITH(weights.load_state_dict(all.state_dict()),
                    ContainsSubstring("6 averaged tensors and the model 4"));
  nn::StateDict bad = weights.state_dict();
  bad[1].second = zeros({7});
  CHECK_THROWS_WITH(weights.load_state_dict(bad), ContainsSubstring("does not have the shape"));
  bad[0].second = scalar_tensor(1.5);
  CHECK_THROWS_WITH(weights.load_state_dict(bad), ContainsSubstring("n_averaged"));
  CHECK_THROWS_WITH(optim::get_ema_avg(1.5), ContainsSubstring("decay"));
  CHECK_THROWS_WITH(optim::AveragedModel(net, {.avg_fn = nullptr}), ContainsSubstring("avg_fn is empty"));
}

TEST_CASE("AveragedModel sets the weights of all replicas") {
  Net net;
  const nn::Parameter& weight = net.fc.weight;
  nn::TensorSlot slot = weight;
  slot.set_replicas({weight.replica(0), weight.replica(0).detach().to("cpu:1").clone().set_requires_grad()});
  optim::AveragedModel swa(net);
  swa.update_parameters();
  const Tensor averaged = weight.replica(0).detach().clone();
  {
    const NoGradGuard no_grad;
    for (int r = 0; r < 2; ++r) weight.replica(r).fill_(7);
  }
  {
    const optim::AveragedModel::Scope scope = swa.use();
    for (int r = 0; r < 2; ++r) CHECK(equal(weight.replica(r).detach().cpu(), averaged));
  }
  for (int r = 0; r < 2; ++r) CHECK(weight.replica(r).sum().item() == 42);
}

TEST_CASE("update_bn computes the plain average of the statistics of all batches") {
  Net net;
  fill(net);
  net.eval();
  std::vector<Tensor> batches;
  Tensor mean = zeros({2}, DType::f64), var = zeros({2}, DType::f64);
  for (int i = 0; i < 4; ++i) {
    batches.push_back(formula({6, 3}, 50 + i, 4));
    const NoGradGuard no_grad;
    const Tensor y = net.fc(batches.back());
    mean = mean + y.mean({0}) / 4;
    var = var + y.var({0}) / 4;
  }
  optim::update_bn(batches, net, [&](const Tensor& x) {
    CHECK(net.is_training());
    CHECK_FALSE(net(x).requires_grad());
  });
  CHECK(allclose(net.bn.running_mean, mean, 1e-13, 1e-13));
  CHECK(allclose(net.bn.running_var, var, 1e-13, 1e-13));
  CHECK(net.bn.num_batches_tracked->item() == 4);
  CHECK_FALSE(net.is_training());
  CHECK(net.bn.momentum == 0.1);
}

TEST_CASE("update_bn restores the model if a batch throws, and skips a model without batch norm") {
  Net net;
  const std::vector<Tensor> batches = {ones({2, 5})};
  CHECK_THROWS_AS(optim::update_bn(batches, net, [&](const Tensor& x) { net(x); }), ValueError);
  CHECK(net.bn.momentum == 0.1);
  nn::Linear plain({.in_features = 5, .out_features = 1});
  optim::update_bn(batches, plain, [&](const Tensor&) { FAIL("the model has no batch norm"); });
}
