// Gradients of gradients: passes with create_graph. The GOLDEN_OPs check the operations by gradgradcheck;
// these tests check the engine.
#include <cmath>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/function.h"
#include "tapestry/autograd/functional.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/slab.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

Tensor leaf(std::initializer_list<double> values) { return tensor(values, DType::f64).set_requires_grad(); }
double at(const Tensor& t, std::int64_t i) { return t[i].item(); }
Tensor derivative(const Tensor& y, const Tensor& x) {
  return autograd::grad({y.sum()}, {x}, {.create_graph = true})[0];
}

// x^3 with a saved input and a saved output (x x^2), and a backward that is recorded.
struct Cube : autograd::Function<Cube> {
  static constexpr const char* kName = "cube";
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x) {
    const Tensor y = x * x * x;
    ctx.save_for_backward({x, y});
    return y;
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    return {grads[0] * 3 * ctx.saved(1) / ctx.saved(0)};
  }
};
struct Once : autograd::Function<Once> {
  static constexpr const char* kName = "once";
  static constexpr bool kOnceDifferentiable = true;
  static Tensor forward(autograd::FunctionContext&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(autograd::FunctionContext&, const std::vector<Tensor>& grads) {
    return {grads[0] * 2};
  }
};

// An operation whose backward is not recorded.
Tensor opaque(const Tensor& x) {
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = x * x;
  }
  const Tensor *const output = &y, *const input = &x;
  autograd::record("opaque", {&output, 1}, {&input, 1},
                   [x = autograd::save(x)](autograd::Backward& b) { b.set(0, b.grad() * 2 * b.saved(x)); });
  return y;
}

}  // namespace

TEST_CASE("create_graph: derivatives of every order of a power, by grad() and by backward()") {
  const Tensor x = leaf({2, -1});
  Tensor d = x.pow(5);
  for (const double factor : {5.0, 20.0, 60.0, 120.0}) {
    d = derivative(d, x);
    const double power = factor == 5 ? 4 : factor == 20 ? 3 : factor == 60 ? 2 : 1;
    CHECK(at(d, 0) == factor * std::pow(2, power));
    CHECK(at(d, 1) == factor * std::pow(-1, power));
  }
  CHECK(at(autograd::grad({d.sum()}, {x})[0], 0) == 120);

  (x * x * x).sum().backward({}, false, /*create_graph=*/true);
  const Tensor g = x.grad();
  CHECK(g.requires_grad());
  x.zero_grad();
  (g * g).sum().backward();  // d (3 x^2)^2 / dx = 36 x^3
  CHECK(at(x.grad(), 0) == 288);
  CHECK(at(x.grad(), 1) == -36);
}

TEST_CASE("create_graph: a saved output, a saved input, a view and a broadcast keep their history") {
  const Tensor x = leaf({0.5, 2});
  CHECK(allclose(derivative(derivative(x.exp(), x), x), x.exp().detach(), 1e-14));
  CHECK(allclose(derivative(derivative(x.sqrt(), x), x), x.detach().pow(-1.5) * -0.25, 1e-14));
  const Tensor m = (x.view({2, 1}) * x.view({1, 2})).exp();  // exp(x_i x_j)
  const Tensor numeric = autograd::functional::hessian(
      [](const Tensor& t) {
        return (t.view({2, 1}) * t.view({1, 2})).exp().sum();
      },
      x);
  CHECK(allclose(numeric, numeric.t(), 1e-14));
  CHECK(allclose(derivative(derivative(m, x), x), numeric.sum(0), 1e-14));
  CHECK(autograd::gradgradcheck(
      [](const std::vector<Tensor>& in) {
        return (in[0].view({2, 1}) * in[1]).exp();
      },
      {leaf({0.5, 2}), leaf({1, -1, 0.25})}));
}

TEST_CASE("create_graph keeps the graph, and a pass without it frees the graph") {
  const Tensor x = leaf({3});
  const Tensor y = (x * x).exp().log();
  const Tensor first = derivative(y, x);
  CHECK(std::abs(at(first, 0) - 6) < 1e-12);
  CHECK(std::abs(at(derivative(y, x), 0) - 6) < 1e-12);
  first.backward();
  CHECK(std::abs(at(x.grad(), 0) - 2) < 1e-12);
  CHECK_THROWS_WITH(first.backward(), ContainsSubstring("already used"));
}

TEST_CASE("create_graph: nothing is recorded without it") {
  const Tensor x = leaf({3});
  CHECK_FALSE(autograd::grad({x * x}, {x})[0].requires_grad());
  (x * x).backward();
  CHECK_FALSE(x.grad().requires_grad());
  const NoGradGuard no_grad;  // create_graph records in no-grad mode too, as in PyTorch
  Tensor y;
  {
    const EnableGradGuard grad_mode;
    y = x * x;
  }
  CHECK(autograd::grad({y}, {x}, {.create_graph = true})[0].requires_grad());
}

TEST_CASE("create_graph refuses an operation by name before it computes anything") {
  const Tensor x = leaf({2}), w = leaf({3});
  const Tensor h = opaque(x) * w, y = h.exp();
  bool ran = false;
  y.register_hook([&](const Tensor&) {
    ran = true;
    return Tensor();
  });
  CHECK_THROWS_WITH(
      autograd::grad({y}, {x}, {.create_graph = true}),
      "[opaque] gradients of gradients are not available: its backward is not differentiable; compute "
      "the value with other operations, or call without create_graph");
  CHECK_THROWS_WITH(autograd::backward({y}, {.create_graph = true}), ContainsSubstring("[opaque]"));
  CHECK_FALSE(ran);
  CHECK_FALSE(w.grad().defined());
  // The path to w does not run the operation, and a pass without create_graph works.
  CHECK(autograd::grad({y}, {w}, {.create_graph = true})[0].requires_grad());
  CHECK(autograd::grad({y}, {x}, {.retain_graph = true})[0].defined());
  const Tensor sum = logsumexp(x, 0);
  CHECK_THROWS_WITH(autograd::grad({Once::apply(sum)}, {x}, {.create_graph = true}),
                    ContainsSubstring("[once] gradients of gradients"));
  CHECK(at(autograd::grad({Once::apply(x)}, {x})[0], 0) == 2);
}

TEST_CASE("create_graph: the backward of a Function is recorded") {
  const Tensor x = leaf({2, -3});
  const Tensor first = derivative(Cube::apply(x), x), second = derivative(first, x);
  CHECK(allclose(first, x.detach().square() * 3, 1e-14));
  CHECK(allclose(second, x.detach() * 6, 1e-14));
  CHECK(allclose(derivative(second, x), tensor({6.0, 6.0}, DType::f64), 1e-12));
  CHECK(autograd::gradgradcheck([](const std::vector<Tensor>& in) { return Cube::apply(in[0]); }, {x}));
}

TEST_CASE("create_graph works through checkpoint(), nested and with a parameter from outside") {
  const Tensor x = leaf({0.5, -1}), w = leaf({2, 3});
  const auto inner = [&](const Tensor& t) { return (t * w).tanh().exp(); };
  const auto outer = [&](const Tensor& t) { return checkpoint(inner, t * t).sin(); };
  const auto second = [&](const auto& f) {
    const Tensor d = autograd::grad({f(x).sum()}, {x}, {.create_graph = true})[0];
    return autograd::grad({(d * d).sum()}, {x, w});
  };
  const auto plain = second([&](const Tensor& t) { return inner(t * t).sin(); });
  const auto nested = second([&](const Tensor& t) { return checkpoint(outer, t); });
  for (std::size_t i = 0; i < 2; ++i) CHECK(allclose(nested[i], plain[i], 1e-14));
}

TEST_CASE("create_graph: saved-tensor hooks, gradient hooks and retain_grad") {
  const Tensor x = leaf({0.5});
  Tensor y;
  int unpacked = 0;
  {
    const autograd::SavedTensorHooks hooks(
        [](const Tensor& t) -> std::shared_ptr<void> { return std::make_shared<Tensor>(t.clone()); },
        [&](const std::shared_ptr<void>& t) {
          ++unpacked;
          return *static_cast<const Tensor*>(t.get());
        });
    y = (x * x).exp();
  }
  const Tensor first = derivative(y, x);  // 2 x exp(x^2)
  CHECK(unpacked == 3);                   // exp saves its output, mul both operands
  CHECK(std::abs(at(autograd::grad({first}, {x})[0], 0) - 3 * std::exp(0.25)) < 1e-12);

  const Tensor h = x * 3, z = h * h * h;
  h.retain_grad();
  h.register_hook([](const Tensor& g) { return g * g; });  // (3 h^2)^2 = 729 x^4
  const Tensor d = derivative(z, x);
  CHECK(std::abs(at(d, 0) - 3 * 729 * std::pow(0.5, 4)) < 1e-10);
  CHECK(h.grad().requires_grad());
  // The hook also squares the gradient of the second pass, which is 108 h^3 at h.
  CHECK(std::abs(at(autograd::grad({d}, {x})[0], 0) - 3 * std::pow(108 * std::pow(1.5, 3), 2)) < 1e-6);
}

TEST_CASE("create_graph: in-place changes are recorded or found") {
  const Tensor x = leaf({0.5, 2});
  const auto changed = [](const Tensor& t) {
    const Tensor h = t * t;
    h.exp_();
    h.mul_(t);
    h.add_(h);
    return h;
  };
  CHECK(autograd::gradgradcheck([&](const std::vector<Tensor>& in) { return changed(in[0]); }, {x}));
  const Tensor h = x * 2, y = h * h, first = derivative(y, x);
  {
    const NoGradGuard no_grad;
    h.add_(1);
  }
  CHECK_THROWS_WITH(autograd::grad({y.sum()}, {x}, {.create_graph = true}),
                    ContainsSubstring("changed in place"));
}

TEST_CASE("create_graph: inputs that are not used, and gradients that do not depend on an input") {
  const Tensor x = leaf({2}), w = leaf({3}), unused = leaf({1});
  const auto g = autograd::grad({x * x * w}, {x, w, unused}, {.create_graph = true, .allow_unused = true});
  CHECK_FALSE(g[2].defined());
  CHECK(at(autograd::grad({g[0]}, {w}, {.retain_graph = true})[0], 0) == 4);
  CHECK(at(autograd::grad({g[1]}, {x})[0], 0) == 4);
  CHECK_FALSE(autograd::grad({x.floor()}, {x}, {.create_graph = true})[0].requires_grad());
  const Tensor linear = derivative(x * 3, x);
  CHECK_FALSE(linear.requires_grad());
  const Tensor weight = leaf({5});  // the gradient of a linear function depends on the incoming gradient
  const Tensor weighted = autograd::grad({x * 3}, {x}, {.grad_outputs = {weight}, .create_graph = true})[0];
  CHECK(at(autograd::grad({weighted}, {weight})[0], 0) == 3);
}

TEST_CASE("create_graph: backward() adds recorded gradients, and zero_grad() drops their history") {
  const Tensor x = leaf({2});
  autograd::backward({x * x}, {.create_graph = true});
  const Tensor before = x.grad();
  autograd::backward({x * x * x}, {.create_graph = true});
  CHECK(at(before, 0) == 4);  // the new sum is another tensor
  CHECK(at(x.grad(), 0) == 16);
  CHECK(at(autograd::grad({x.grad()}, {x}, {.retain_graph = true})[0], 0) == 14);  // 2 + 6 x
  x.zero_grad(/*set_to_none=*/false);
  CHECK(at(x.grad(), 0) == 0);
  CHECK_FALSE(x.grad().requires_grad());
  x.zero_grad();
}

TEST_CASE("create_graph leaves no node and no memory behind") {
  const std::int64_t slabs = autograd::slabs_in_use(), bytes = memory_stats(kCPU).allocated;
  for (int step = 0; step < 3; ++step) {
    const Tensor x = randn({64, 64}, DType::f64).set_requires_grad(),
                 w = randn({64, 64}, DType::f64).set_requires_grad();
    const Tensor h = checkpoint([&](const Tensor& t) { return t.matmul(w).tanh(); }, x);
    const Tensor y = Cube::apply(h).softmax(-1).exp().std(0).log();
    const auto g = autograd::grad({y.sum()}, {x, w}, {.create_graph = true});
    const auto gg = autograd::grad({(g[0] * g[0]).sum() + g[1].norm()}, {x, w}, {.create_graph = true});
    CHECK(gg[0].requires_grad());
    y.sum().backward({}, false, /*create_graph=*/true);
    w.zero_grad();  // breaks the cycle of w, its gradient and the graph
    x.zero_grad(false);
  }
  CHECK(memory_stats(kCPU).allocated == bytes);
  CHECK(autograd::slabs_in_use() <= slabs + 1);  // the slab that this thread fills
}

TEST_CASE("jacobian, hessian and hvp") {
  namespace af = autograd::functional;
  const Tensor x = tensor({1.0, 2.0, -1.0}, DType::f64), a = randn({2, 3}, DType::f64);
  CHECK(allclose(af::jacobian([&](const Tensor& t) { return a.matmul(t); }, x), a, 1e-14));
  CHECK(af::jacobian([](const Tensor& t) { return outer(t, t); }, x).sizes() == Shape{3, 3, 3});
  CHECK(equal(af::jacobian([&](const Tensor&) { return a; }, x), zeros({2, 3, 3}, DType::f64)));
  const Tensor q = randn({3, 3}, DType::f64);
  const auto form = [&](const Tensor& t) { return t.dot(q.matmul(t)); };
  const Tensor h = af::hessian(form, x), v = randn({3}, DType::f64);
  CHECK(allclose(h, q + q.t(), 1e-13));
  const auto [value, product] = af::hvp(form, x, v);
  CHECK(allclose(value, form(x), 1e-14));
  CHECK(allclose(product, h.matmul(v), 1e-13));
  CHECK_FALSE(product.requires_grad());
  const auto both = af::hvp([](const std::vector<Tensor>& in) { return (in[0] * in[1].exp()).sum(); }, {x, x},
                            {zeros_like(x), v});
  CHECK(allclose(both.second[0], v * x.exp(), 1e-13));
  CHECK(allclose(both.second[1], v * x * x.exp(), 1e-13));
  CHECK(equal(af::hvp([](const Tensor& t) { return t.sum(); }, x, v).second, zeros_like(x)));
  const Tensor variable =
      x.detach().set_requires_grad();  // create_graph: the result has gradients of its own
  const Tensor third = af::hessian([](const Tensor& t) { return t.pow(3).sum(); }, variable, true);
  CHECK(allclose(autograd::grad({third.sum()}, {variable})[0], full({3}, 6, DType::f64), 1e-13));
  CHECK_THROWS_WITH(af::hessian([](const Tensor& t) { return t * 2; }, x),
                    ContainsSubstring("[hessian] the function"));
  CHECK_THROWS_WITH(af::hvp(form, x, zeros({2}, DType::f64)), ContainsSubstring("[hvp] tensor 0"));
  CHECK_THROWS_WITH(af::jacobian([](const Tensor&) { return Tensor(); }, x), ContainsSubstring("[jacobian]"));
}

TEST_CASE("gradgradcheck finds a second derivative that is wrong or missing, in both modes") {
  // Its gradient 2 x is right, but it lacks the derivative of x.
  struct Forgets : autograd::Function<Forgets> {
    static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x) {
      ctx.save_for_backward({x});
      return x * x;
    }
    static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
      return {grads[0] * 2 * ctx.saved(0).detach()};
    }
  };
  const auto square = [](const std::vector<Tensor>& in) { return Forgets::apply(in[0]); };
  const Tensor x = leaf({1, 2, 3});
  CHECK(autograd::gradcheck(square, {x}));
  for (const bool fast : {false, true}) {
    CHECK(autograd::gradcheck(square, {x}, {.fast_mode = fast}));
    CHECK_THROWS_WITH(autograd::gradgradcheck(square, {x}, {}, {.fast_mode = fast}),
                      ContainsSubstring("finite differences give"));
    CHECK_THROWS_WITH(autograd::gradgradcheck([](const std::vector<Tensor>& in) { return opaque(in[0]); },
                                              {x}, {}, {.fast_mode = fast}),
                      ContainsSubstring("[opaque] gradients of gradients"));
    CHECK(autograd::gradgradcheck([](const std::vector<Tensor>& in) { return in[0].exp() * in[1]; },
                                  {x, leaf({4, 5, 6})}, {}, {.fast_mode = fast}));
  }
  CHECK(autograd::gradgradcheck([](const std::vector<Tensor>& in) { return in[0].exp(); }, {x},
                                {tensor({1.0, -1.0, 2.0}, DType::f64)}));
  CHECK_THROWS_WITH(
      autograd::gradgradcheck([](const std::vector<Tensor>& in) { return in[0].exp(); }, {x}, {x, x}),
      ContainsSubstring("1 recorded outputs but 2 gradients"));
  CHECK_THROWS_WITH(autograd::gradgradcheck(square, {x.detach()}), ContainsSubstring("no input requires"));
}
