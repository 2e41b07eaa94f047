// Replicas of parameters on their devices' threads.
#include <chrono>
#include <future>

#include "tapestry/core/internal/worker.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
// Creates one tensor on each of the two logical devices.
void replicate(nn::TensorSlot slot) {
  Tensor second = slot.replica(0).detach().to("cpu:1").clone();
  if (slot.replica(0).requires_grad()) second.set_requires_grad();
  slot.set_replicas({slot.replica(0), second});
}
}  // namespace

TEST_CASE("each replica steps on its own device") {
  REQUIRE(device_count(DeviceType::cpu) == 2);
  const Tensor init = formula({40, 3}, 1);
  using Make = std::unique_ptr<optim::Optimizer> (*)(const nn::Parameter&);
  const Make kinds[] = {
      [](const nn::Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<optim::SGD>(std::vector{p}, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
      },
      [](const nn::Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<optim::AdamW>(std::vector{p});
      },
      [](const nn::Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<optim::RMSprop>(std::vector{p}, optim::RMSprop::Options{.momentum = 0.9});
      },
      [](const nn::Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<optim::NAdam>(std::vector{p});
      },
      [](const nn::Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<optim::Muon>(std::vector{p});
      },
  };
  for (const Make make : kinds) {
    nn::Parameter p("p", init.clone()), alone("p", init.clone());
    const auto optimizer = make(p), reference = make(alone);
    INFO(optimizer->name());
    for (int step = 0; step < 6; ++step) {
      // A replica that is added later copies the optimizer state of replica 0.
      if (step == 2) replicate(p);
      for (int r = 0; r < p.replicas(); ++r)
        p.replica(r).set_grad(formula({40, 3}, 10 + step).to(p.replica(r).device()));
      alone->set_grad(formula({40, 3}, 10 + step));
      optimizer->step();
      reference->step();
    }
    CHECK(p.replica(1).device() == Device("cpu:1"));
    CHECK(values_of(p.replica(0)) == values_of(alone));
    CHECK(values_of(p.replica(1)) == values_of(alone));
    optimizer->zero_grad();
    CHECK_FALSE(p.replica(1).grad().defined());
  }
}

TEST_CASE("LBFGS gives all replicas the same parameters") {
  nn::Parameter p("p", formula({40, 3}, 1)), alone("p", formula({40, 3}, 1));
  replicate(p);
  const optim::LBFGS::Options options{.max_iter = 5, .line_search_fn = optim::LineSearch::strong_wolfe};
  optim::LBFGS optimizer({p}, options), reference({alone}, options);
  // The function's gradient is computed by replica 0 and copied, as DataParallel's reduction does.
  const auto evaluate = [](const nn::Parameter& q) {
    q.replica(0).zero_grad();
    const Tensor x = q.replica(0), loss = (x * x * x * x + (x - 0.25) * (x - 0.25)).sum();
    loss.backward();
    for (int r = 1; r < q.replicas(); ++r)
      q.replica(r).set_grad(q.replica(0).grad().to(q.replica(r).device()));
    return loss;
  };
  optimizer.step([&] { return evaluate(p); });
  reference.step([&] { return evaluate(alone); });
  CHECK(values_of(p.replica(0)) == values_of(alone));
  CHECK(values_of(p.replica(1)) == values_of(alone));
}

TEST_CASE("one module runs on two threads, each with its own parameters and statistics") {
  REQUIRE(device_count(DeviceType::cpu) == 2);
  nn::Sequential net(nn::Linear::Options{.in_features = 6, .out_features = 5},
                     nn::BatchNorm1d::Options{.num_features = 5}, nn::ReLU::Options{},
                     nn::Linear::Options{.in_features = 5, .out_features = 2});
  fill(net);
  for (const nn::Parameter& p : net.parameters()) replicate(p);
  for (const nn::Buffer& b : net.buffers()) replicate(b);

  const auto train = [&](int replica) {
    const Device device("cpu:" + std::to_string(replica));
    Context context = current_context();
    context.replica = static_cast<std::int16_t>(replica);
    context.device = device;
    const ContextGuard guard(context);
    for (int step = 0; step < 20; ++step)
      net(formula({8, 6}, 10 * replica + step).to(device)).sum().backward();
  };
  std::future<void> running[2];
  for (int r = 0; r < 2; ++r)
    running[r] = device_worker(Device("cpu:" + std::to_string(r))).run([&train, r] { train(r); });
  for (auto& f : running) {
    REQUIRE(f.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    f.get();
  }

  // The expected results come from two separate modules, one per replica, that run one after the other.
  for (int r = 0; r < 2; ++r) {
    nn::Sequential alone(nn::Linear::Options{.in_features = 6, .out_features = 5},
                         nn::BatchNorm1d::Options{.num_features = 5}, nn::ReLU::Options{},
                         nn::Linear::Options{.in_features = 5, .out_features = 2});
    fill(alone);
    for (int step = 0; step < 20; ++step) alone(formula({8, 6}, 10 * r + step)).sum().backward();
    for (std::size_t i = 0; i < alone.parameters().size(); ++i)
      CHECK(allclose(net.parameters()[i].replica(r).grad().to(kCPU), alone.parameters()[i]->grad(), 1e-12,
                     1e-12));
    for (std::size_t i = 0; i < alone.buffers().size(); ++i)
      CHECK(allclose(net.buffers()[i].replica(r).to(kCPU), alone.buffers()[i].tensor(), 1e-12, 1e-12));
  }
}
