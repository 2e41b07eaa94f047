// Tests that gradients which start as the same tensor do not share memory once they are accumulated, and that
// a pass may run inside a hook of another pass over the same graph.
#include "tapestry/autograd/engine.h"

#include <functional>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

Tensor leaf(const Shape& sizes, double from) {
  return (arange(sizes.numel(), kFloat64).reshape(sizes) + from).set_requires_grad();
}

}  // namespace

TEST_CASE("accumulating into one leaf's gradient does not change the gradient of another leaf") {
  // Each function adds its arguments. Both arguments get the incoming gradient itself, as it is or as a view.
  using Add = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::pair<const char*, Add> cases[] = {
      {"a + b", [](const Tensor& a, const Tensor& b) { return a + b; }},
      {"views", [](const Tensor& a, const Tensor& b) { return a.view({6}) + b.view({6}); }},
      {"one view", [](const Tensor& a, const Tensor& b) { return a.view({6}) + b.reshape({6}); }},
      {"transposed", [](const Tensor& a, const Tensor& b) { return a.t() + b.t(); }},
      {"flattened", [](const Tensor& a, const Tensor& b) { return a.flatten() + b.flatten(); }},
      {"unsqueezed",
       [](const Tensor& a, const Tensor& b) { return (a.unsqueeze(0) + b.unsqueeze(0)).view({6}); }},
      {"cat",
       [](const Tensor& a, const Tensor& b) {
         return cat({a, b}).narrow(0, 0, 2) + cat({b, a}).narrow(0, 0, 2);
       }},
      {"in place", [](const Tensor& a, const Tensor& b) { return (a * 1).add_(b); }},
      {"narrow", [](const Tensor& a, const Tensor& b) { return a.narrow(0, 0, 2) + b.narrow(0, 0, 2); }},
      {"cloned", [](const Tensor& a, const Tensor& b) { return a.clone() + b.clone(); }},
  };
  for (const auto& [name, add] : cases) {
    INFO(name);
    const Tensor a = leaf({2, 3}, 1), b = leaf({2, 3}, 20);
    const Tensor sum = add(a, b);
    const Tensor weights = full(sum.sizes(), 3.0, kFloat64);
    (sum * weights).sum().backward();
    const Tensor before = b.grad().clone();
    CHECK(equal(a.grad(), full({2, 3}, 3.0, kFloat64)));
    (a * 5.0).sum().backward();  // accumulates into the existing gradient of a
    CHECK(equal(a.grad(), full({2, 3}, 8.0, kFloat64)));
    CHECK(equal(b.grad(), before));
    b.grad().fill_(100);
    CHECK(equal(a.grad(), full({2, 3}, 8.0, kFloat64)));
    CHECK(equal(weights, full(sum.sizes(), 3.0, kFloat64)));
  }
}

TEST_CASE(
    "a gradient that the caller, a hook or retain_grad holds does not change when the leaf accumulates "
    "more") {
  const Tensor x = leaf({2, 3}, 1);
  Tensor seen;
  const auto hook = x.register_hook([&](const Tensor& g) {
    if (!seen.defined()) seen = g;
    return Tensor();
  });
  const Tensor seed = full({6}, 2.0, kFloat64);
  const Tensor y = x.view({6});
  y.retain_grad();
  (y + 0.0).backward(seed);
  const Tensor kept = y.grad();
  (x * 7.0).sum().backward();
  CHECK(equal(x.grad(), full({2, 3}, 9.0, kFloat64)));
  CHECK(equal(seed, full({6}, 2.0, kFloat64)));
  CHECK(equal(seen, full({2, 3}, 2.0, kFloat64)));
  CHECK(equal(kept, full({6}, 2.0, kFloat64)));
}

TEST_CASE("grad() may run inside a hook of grad() over the same graph, and both results are right") {
  const Tensor x = leaf({3}, 2), w = leaf({3}, 5);
  const Tensor h = x * w;
  const Tensor y = (h * h).sum();
  Tensor inner;
  int calls = 0;
  const auto hook = h.register_hook([&](const Tensor&) {
    // The hook is called again by the pass that it starts.
    if (++calls == 1) inner = autograd::grad({y}, {w}, {}, /*retain_graph=*/true)[0];
    return Tensor();
  });
  const Tensor outer = autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
  const Tensor wanted_outer = (x * w * w * 2.0).detach(), wanted_inner = (x * x * w * 2.0).detach();
  CHECK(calls == 2);
  CHECK(allclose(outer, wanted_outer, 0, 1e-12));
  CHECK(allclose(inner, wanted_inner, 0, 1e-12));
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
  // Nothing of the two passes may be left behind for the next one.
  CHECK(allclose(autograd::grad({y}, {x})[0], wanted_outer, 0, 1e-12));
}

TEST_CASE("backward() inside a hook of backward() over the same graph adds both gradients") {
  const Tensor x = leaf({3}, 2), w = leaf({3}, 5);
  const Tensor h = x * w;
  const Tensor y = (h * h).sum();
  int calls = 0;
  const auto hook = h.register_hook([&](const Tensor&) {
    if (++calls == 1) autograd::backward({y}, {}, /*retain_graph=*/true);
    return Tensor();
  });
  autograd::backward({y}, {}, /*retain_graph=*/true);
  CHECK(calls == 2);
  CHECK(allclose(x.grad(), (x * w * w * 4.0).detach(), 0, 1e-12));
  CHECK(allclose(w.grad(), (x * x * w * 4.0).detach(), 0, 1e-12));
}
