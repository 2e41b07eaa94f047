// Backward functions that reuse the memory of the gradient they got: they must not if anyone else can see it.
#include <algorithm>
#include <functional>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/memory_record.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

Tensor wave(const Shape& sizes, double salt) {
  return sin(arange(sizes.numel(), DType::f32) * 0.7 + salt).reshape(sizes);
}
Tensor leaf(const Shape& sizes) { return wave(sizes, 0.2).requires_grad_(); }

// dy * (x > 0)
Tensor through(const Tensor& dy, const Tensor& x) { return where(gt(x, 0), dy, zeros_like(dy)); }

}  // namespace

TEST_CASE(
    "own gradient: relu writes into its gradient, and no tensor of its size is allocated for the result") {
  const Tensor x = leaf({64, 1024});
  const auto bytes = static_cast<std::int64_t>(x.nbytes());
  const auto peak_of = [&](const std::function<Tensor(const Tensor&)>& f) {
    x.zero_grad();
    const Tensor loss = (f(x * 2) * wave({64, 1024}, 0.5)).sum();
    MemoryRecord record;
    loss.backward();
    std::int64_t peak = 0;
    const auto samples = record.samples(kCPU);
    for (const MemorySample& s : samples) peak = std::max(peak, s.total() - samples.front().total());
    return peak;
  };
  // The gradient of the product, whose memory relu takes over, and that of x * 2.
  CHECK(peak_of([](const Tensor& t) { return t.relu(); }) < 2 * bytes + 4096);
  CHECK(peak_of([](const Tensor& t) { return dropout(t, 0.5); }) < 2 * bytes + 4096);
  CHECK(peak_of([](const Tensor& t) { return gelu(t).tanh().sigmoid(); }) < 2 * bytes + 4096);
}

TEST_CASE("own gradient: gradients that someone else holds keep their values") {
  const Tensor dy = wave({6, 7}, 0.9), before = dy.clone();
  SECTION("the gradient that backward() was called with") {
    const Tensor x = leaf({6, 7});
    x.relu().backward(dy);
    CHECK(equal(dy, before));
    CHECK(equal(x.grad(), through(dy, x.detach())));
  }
  SECTION("dropout's, which others hold") {
    const Tensor x = leaf({6, 7});
    manual_seed(3);
    const Tensor y = dropout(x, 0.5);
    y.backward(dy);
    CHECK(equal(dy, before));
    CHECK(equal(x.grad(), where(eq(y.detach(), 0), zeros_like(dy), before * 2)));
  }
  SECTION("one that a hook has seen, or retain_grad() keeps") {
    const Tensor x = leaf({6, 7}), y = x.relu(), z = y * 2;
    Tensor seen;
    y.register_hook([&](const Tensor& g) {
      seen = g;
      return Tensor();
    });
    z.retain_grad();
    z.backward(dy.clone());
    CHECK(equal(seen, before * 2));
    CHECK(equal(z.grad(), before));
    CHECK(equal(x.grad(), through(before * 2, x.detach())));
  }
  SECTION("one that two nodes share") {
    // add passes its gradient on to both inputs.
    const Tensor a = leaf({6, 7}), b = (wave({6, 7}, 1.4)).requires_grad_();
    (a.relu() + b.tanh()).backward(dy.clone());
    const Tensor t = tanh(b.detach());
    CHECK(equal(a.grad(), through(before, a.detach())));
    CHECK(allclose(b.grad(), before * (1 - t * t), 1e-6, 1e-7));
  }
  SECTION("an expanded one, and one in another layout") {
    const Tensor x = leaf({6, 7});
    x.relu().sum().backward();
    CHECK(equal(x.grad(), through(ones({6, 7}), x.detach())));
    const Tensor w = leaf({6, 7});
    w.relu().t().backward(dy.t().contiguous());
    CHECK(equal(w.grad(), through(before, w.detach())));
    const Tensor part = leaf({6, 7});
    const Tensor wide = zeros({6, 14});
    part.relu().backward(wide.narrow(1, 0, 7));
    CHECK(equal(wide, zeros({6, 14})));
  }
  SECTION("a pass that is run twice, one that captures, and one that is recorded") {
    const Tensor x = leaf({6, 7}), y = x.relu(), z = (y * dy).sum();
    z.backward({}, true);
    z.backward({}, true);
    CHECK(equal(x.grad(), 2 * through(before, x.detach())));
    const auto both = autograd::grad({z}, {y, x});
    CHECK(equal(both[0], before));
    CHECK(equal(both[1], through(before, x.detach())));
    const Tensor v = leaf({6, 7});
    const Tensor g = autograd::grad({(tanh(v) * dy).sum()}, {v}, {.create_graph = true})[0];
    g.sum().backward();
    const Tensor t = tanh(v.detach());
    CHECK(allclose(v.grad(), -2 * before * t * (1 - t * t), 1e-5, 1e-6));
  }
}

TEST_CASE("own gradient: f16 and channels-last gradients are replaced, too") {
  const Tensor x = (wave({2, 4, 3, 5}, 0.2).contiguous(MemoryFormat::channels_last)).requires_grad_();
  const Tensor dy = wave({2, 4, 3, 5}, 0.8);
  (x.relu() * dy).sum().backward();
  CHECK(equal(x.grad(), through(dy, x.detach())));
  const Tensor h = wave({9}, 0.2).to(DType::f16).requires_grad_();
  (h.relu() * wave({9}, 0.8).to(DType::f16)).sum().backward();
  CHECK(equal(h.grad(), through(wave({9}, 0.8).to(DType::f16), h.detach())));
}

// ---- gradients of weights, which the product adds to the gradient of earlier passes ----
namespace {

using Weights = std::vector<Tensor>;
struct Layer {
  const char* name;
  std::vector<Shape> weights;
  std::function<Tensor(const Tensor&, const Weights&)> f;
};
// Each takes (8, 32) and has weights with a gradient of 32 kB in f64 and more.
const std::vector<Layer> kLayers = {
    {"linear", {{128, 32}}, [](const Tensor& x, const Weights& w) { return linear(x, w[0]); }},
    {"matmul",
     {{32, 128}},
     [](const Tensor& x, const Weights& w) {
       return x.reshape({2, 4, 32}).matmul(w[0]);
     }},
    {"linear_relu", {{128, 32}}, [](const Tensor& x, const Weights& w) { return linear_relu(x, w[0]); }},
    {"linear_gelu", {{128, 32}}, [](const Tensor& x, const Weights& w) { return linear_gelu(x, w[0]); }},
    {"feed_forward",
     {{128, 32}, {64, 128}},
     [](const Tensor& x, const Weights& w) { return feed_forward(x, w[0], {}, w[1]); }},
    {"gru",
     {{192, 32}, {192, 64}},
     [](const Tensor& x, const Weights& w) {
       const Tensor h = zeros({4, 64}, {x.dtype(), kCPU});
       return gru(x.reshape({2, 4, 32}), h, {w[0], w[1]}).first;
     }},
    {"embedding",
     {{128, 32}},
     [](const Tensor& x, const Weights& w) { return embedding(w[0], arange(8) * 3) * x; }},
};

}  // namespace

TEST_CASE("own gradient: a product adds to the gradient of the pass before") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Layer& layer : kLayers) {
      INFO(layer.name << " " << dtype);
      Weights w, fresh;
      for (const Shape& sizes : layer.weights) {
        w.push_back(wave(sizes, 0.3).to(dtype).requires_grad_());
        fresh.push_back(w.back().detach().clone().requires_grad_());
      }
      const Tensor x[] = {wave({8, 32}, 0.6).to(dtype), wave({8, 32}, 1.6).to(dtype)};
      int calls = 0;
      const HookHandle hook = w[0].register_post_accumulate_grad_hook([&](const Tensor& t) {
        ++calls;
        CHECK(t.grad().defined());
      });
      layer.f(x[0], w).sum().backward();
      const Tensor held = w[0].grad(), loss = layer.f(x[1], w).sum();
      const std::uint32_t version = held.storage()->version();
      MemoryRecord record;
      loss.backward();
      std::int64_t peak = 0;
      const auto samples = record.samples(kCPU);
      for (const MemorySample& s : samples) peak = std::max(peak, s.total() - samples.front().total());
      // Without the sum, a temporary tensor of the weight's size exists at the end.
      if (dtype == DType::f64) CHECK(peak < static_cast<std::int64_t>(w[0].nbytes()));
      CHECK(calls == 2);
      CHECK(held.impl() == w[0].grad().impl());
      CHECK(held.storage()->version() == version + 1);
      const double error = dtype == DType::f64 ? 1e-12 : 1e-4;
      for (std::size_t i = 0; i < w.size(); ++i) {
        Tensor sum = zeros_like(w[i].detach());
        for (const Tensor& t : x) sum.add_(autograd::grad({layer.f(t, fresh).sum()}, {fresh[i]})[0]);
        CHECK(allclose(w[i].grad(), sum, error, error));
      }
    }
}

TEST_CASE("own gradient: weights used twice in one graph, and in several layouts of the gradient") {
  const Tensor x = wave({8, 32}, 0.6).to(DType::f64);
  const Tensor w = wave({32, 32}, 0.2).to(DType::f64).requires_grad_();
  const auto f = [&](const Tensor& t) { return linear(linear_relu(linear(x, t), t), t).sum(); };
  const Tensor once = autograd::grad({f(w)}, {w})[0];
  for (int i = 1; i <= 3; ++i) {
    f(w).backward();
    CHECK(allclose(w.grad(), once * i, 1e-12, 1e-12));
  }
  // A gradient whose rows are not dense, and one that is an operand of its own product.
  w.set_grad(zeros({32, 32}, kFloat64).t());
  f(w).backward();
  f(w).backward();
  CHECK(allclose(w.grad(), once * 2, 1e-12, 1e-12));
  const Tensor dy = wave({8, 32}, 1.1).to(DType::f64);
  const Tensor square = wave({8, 8}, 0.4).to(DType::f64).requires_grad_();
  const Tensor own = wave({8, 8}, 0.5).to(DType::f64), was = own.clone();
  square.set_grad(own);
  matmul(dy.narrow(1, 0, 8), square).backward(own);
  CHECK(allclose(square.grad(), was + matmul(dy.narrow(1, 0, 8).t(), was), 1e-12, 1e-12));
}

TEST_CASE("own gradient: a product leaves the old gradient alone where someone must see the new one") {
  const Tensor x = wave({8, 32}, 0.6), w = wave({16, 32}, 0.2).requires_grad_();
  const auto loss = [&] { return linear(x, w).sum(); };
  loss().backward();
  const Tensor once = w.grad().clone();
  SECTION("a hook") {
    std::vector<Tensor> seen;
    const HookHandle hook = w.register_hook([&](const Tensor& g) {
      seen.push_back(g.clone());
      return g * 3;
    });
    loss().backward();
    CHECK(seen.size() == 1);
    CHECK(equal(seen[0], once));
    CHECK(allclose(w.grad(), once * 4));
  }
  SECTION("the caller of grad()") {
    CHECK(equal(autograd::grad({loss()}, {w})[0], once));
    CHECK(equal(w.grad(), once));
  }
  SECTION("a pass with create_graph") {
    autograd::backward({loss()}, autograd::BackwardOptions{.create_graph = true});
    CHECK(allclose(w.grad().detach(), once * 2));
  }
  SECTION("anomaly detection") {
    const Tensor wrong = linear(x * std::numeric_limits<float>::quiet_NaN(), w).sum();
    const autograd::DetectAnomaly guard;
    CHECK_THROWS_AS(wrong.backward(), AutogradError);
    CHECK(equal(w.grad(), once));
  }
  SECTION("nobody, because the leaf is frozen by now") {
    const Tensor y = loss();
    w.set_requires_grad(false);
    y.backward();
    CHECK(equal(w.grad(), once));
  }
  SECTION("an operation that has saved the old gradient") {
    const Tensor scale = wave({16, 32}, 0.8).requires_grad_();
    const Tensor y = (scale * w.grad()).sum();
    loss().backward();
    CHECK_THROWS_AS(y.backward(), AutogradError);
  }
}

TEST_CASE("own gradient: postponed weight gradients are added to those of earlier passes") {
  const Tensor w = wave({16, 32}, 0.2).requires_grad_(), x = wave({8, 32}, 0.6).requires_grad_();
  linear(x, w).sum().backward();
  const Tensor once = w.grad().clone();
  autograd::WeightGradients later;
  const Tensor y = linear(linear(x, w).relu(), w.t().contiguous()).sum();
  const Tensor expected =
      once + autograd::grad({linear(linear(x, w).relu(), w.t().contiguous()).sum()}, {w})[0];
  autograd::backward_inputs({y}, {x}, {}, later);
  CHECK(equal(w.grad(), once));
  later.accumulate();
  CHECK(allclose(w.grad(), expected, 1e-5, 1e-5));
}
