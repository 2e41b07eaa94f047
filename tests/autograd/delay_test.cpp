#include "tapestry/autograd/internal/delay.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/function.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

std::vector<std::string>* events = nullptr;

// The identity. Its backward records that it waits.
struct Wait : autograd::Function<Wait> {
  static Tensor forward(autograd::FunctionContext&, const Tensor& x) { return x; }
  static std::vector<Tensor> backward(autograd::FunctionContext&, const std::vector<Tensor>& grads) {
    if (events) events->push_back("wait");
    return {grads[0]};
  }
};
Tensor waited(const Tensor& x) {
  const Tensor y = Wait::apply(x);
  autograd::mark_wait(y);
  return y;
}

constexpr int kLayers = 6;

struct Layers {
  std::vector<Tensor> weights, biases;
  Layers() {
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(leaf({3, 3}, 0.3 + 0.1 * i));
      biases.push_back(leaf({3}, 0.7 + 0.1 * i));
    }
  }
  static Tensor leaf(const Shape& sizes, double a) {
    const Tensor t = arange(sizes.numel(), DType::f64).mul(a).sin().reshape(sizes);
    return t.detach().set_requires_grad();
  }
  // Layers whose weight gradients are delayed, with waits before layers 0 and 2.
  Tensor operator()(Tensor x, bool delays = true) const {
    for (int i = 0; i < kLayers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i == 0 || i == 2) x = waited(x);
      const Tensor y = linear(x, weights[at], biases[at]);
      if (delays) autograd::delay_leaf_gradients(y);
      x = tanh(y);
    }
    return x.square().sum();
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = weights;
    all.insert(all.end(), biases.begin(), biases.end());
    return all;
  }
  std::vector<Tensor> take_gradients() const {
    std::vector<Tensor> all;
    for (const Tensor& t : leaves()) {
      all.push_back(t.grad().clone());
      t.zero_grad();
    }
    return all;
  }
};

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!a[i].equal(b[i])) return false;
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("delayed weight gradients are those of other passes, and graphs can be kept") {
  const Layers net;
  const Tensor x = Layers::leaf({4, 3}, 0.9);
  net(x, false).backward();
  const std::vector<Tensor> expected = net.take_gradients();
  const Tensor dx = x.grad().clone();
  const Tensor loss = net(x);
  for (int i = 0; i < 2; ++i) {
    x.zero_grad();
    autograd::backward({loss}, autograd::BackwardOptions{.retain_graph = i == 0});
    CHECK(equal(net.take_gradients(), expected));
    CHECK(x.grad().equal(dx));
  }
  CHECK_THROWS_AS(loss.backward(), AutogradError);  // the saved tensors are freed
  // Gradients are added in place to those that exist.
  for (int i = 0; i < 2; ++i) net(x).backward();
  const std::vector<Tensor> twice = net.take_gradients();
  for (std::size_t i = 0; i < twice.size(); ++i) CHECK(twice[i].allclose(expected[i] * 2));
}

TEST_CASE("a wait computes half of the new delayed gradients and all older ones, and the end the rest") {
  const Layers net;
  std::vector<std::string> order;
  for (std::size_t i = 0; i < kLayers; ++i)
    net.weights[i].register_hook([&order, i](const Tensor&) {
      order.push_back("w" + std::to_string(i));
      return Tensor();
    });
  const Tensor loss = net(Layers::leaf({4, 3}, 0.9));
  events = &order;
  loss.backward();
  events = nullptr;
  // At the first wait, the gradients of 4 layers are delayed. At the second one, 2 older and 2 new ones are.
  CHECK(order == std::vector<std::string>{"w5", "w4", "wait", "w3", "w2", "w1", "wait", "w0"});
}

TEST_CASE("a position counts delayed nodes as not run, and never grows") {
  const Layers net;
  std::vector<std::uint64_t> positions;
  for (const Tensor& w : net.weights)
    w.register_hook([&](const Tensor&) {
      positions.push_back(autograd::pass_position().position);
      return Tensor();
    });
  const Tensor x = Layers::leaf({4, 3}, 0.9);
  net(x).backward();
  REQUIRE(positions.size() == kLayers);
  for (std::size_t i = 1; i < positions.size(); ++i) CHECK(positions[i] < positions[i - 1]);
}

TEST_CASE("an observer sees each node once, also one whose inputs are all weights") {
  const Layers net;
  std::vector<std::uint64_t> all, seen;
  net.weights[kLayers - 1].register_hook([&](const Tensor&) {
    all = autograd::pass_sequences();
    return Tensor();
  });
  for (const bool needs_grad : {true, false}) {  // without it, layer 0 has weights alone
    const Tensor loss = net(Layers::leaf({4, 3}, 0.9).set_requires_grad(needs_grad));
    seen.clear();
    const autograd::NodeObserver follow([&](std::uint64_t node) { seen.push_back(node); });
    loss.backward();
    std::sort(seen.begin(), seen.end());
    CHECK(!seen.empty());
    CHECK(seen == all);
  }
}

TEST_CASE("layers of one graph share casts of weights, which are as old as the graph") {
  const Tensor w = Layers::leaf({3, 3}, 0.4), x = Layers::leaf({4, 3}, 0.9);
  const auto loss = [&](bool delays) {
    const Tensor cast = w.to(DType::f32);
    Tensor h = x.to(DType::f32);  // as old, and no weight
    for (int i = 0; i < kLayers; ++i) {
      const Tensor y = linear(waited(h), cast);
      if (delays) autograd::delay_leaf_gradients(y);
      h = tanh(y);
    }
    return h.square().sum();
  };
  loss(false).backward();
  const Tensor dw = w.grad().clone(), dx = x.grad().clone();
  w.zero_grad(), x.zero_grad();
  loss(true).backward();
  CHECK(w.grad().allclose(dw, 1e-5));
  CHECK(x.grad().equal(dx));
}

TEST_CASE("passes that return or record gradients delay nothing") {
  const Layers net;
  const Tensor x = Layers::leaf({4, 3}, 0.9);
  net(x, false).backward();
  const std::vector<Tensor> expected = net.take_gradients();
  CHECK(equal(autograd::grad({net(x)}, net.leaves()), expected));
  autograd::backward({net(x)}, autograd::BackwardOptions{.create_graph = true});
  const std::vector<Tensor> recorded = net.take_gradients();  // by other products, which round differently
  x.zero_grad();  // its graph holds x, and would never be freed
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(recorded[i].allclose(expected[i], 1e-10));
  {
    const autograd::DetectAnomaly anomaly;
    net(x).backward();
    CHECK(equal(net.take_gradients(), expected));
  }
  autograd::WeightGradients weights;
  autograd::backward_inputs({net(x)}, {x}, {Tensor()}, weights);
  weights.accumulate();
  CHECK(equal(net.take_gradients(), expected));
}

TEST_CASE("a hook that throws at a delayed gradient ends the pass, and the graph can be used again") {
  const Layers net;
  const Tensor x = Layers::leaf({4, 3}, 0.9), loss = net(x);
  autograd::backward({loss}, autograd::BackwardOptions{.retain_graph = true});
  const std::vector<Tensor> expected = net.take_gradients();
  HookHandle hook = net.weights[3].register_hook([](const Tensor&) -> Tensor { throw ValueError("stop"); });
  CHECK_THROWS_AS(autograd::backward({loss}, autograd::BackwardOptions{.retain_graph = true}), ValueError);
  hook.remove();
  for (const Tensor& t : net.leaves()) t.zero_grad();
  loss.backward();
  CHECK(equal(net.take_gradients(), expected));
}
