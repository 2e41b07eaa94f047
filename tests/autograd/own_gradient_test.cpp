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
