#include "tapestry/autograd/engine.h"

#include <pthread.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using autograd::WeightGradients;

namespace {

Tensor leaf(std::initializer_list<double> values) { return tensor(values, DType::f64).set_requires_grad(); }
double at(const Tensor& t, std::int64_t i) { return t[i].item(); }

// Returns x * w. The flag selects the order of the two inputs on the tape. Tests use it to show that the
// order does not affect hooks.
Tensor product(const Tensor& x, const Tensor& w, bool weight_first) {
  Tensor y;
  {
    NoGradGuard no_grad;
    y = x * w;
  }
  const char* name = "product";
  const Tensor* out = &y;
  const std::uint32_t xi = weight_first ? 1 : 0, wi = weight_first ? 0 : 1;
  const Tensor* in[2];
  in[xi] = &x;
  in[wi] = &w;
  autograd::record(name, std::span<const Tensor* const>(&out, 1), std::span<const Tensor* const>(in, 2),
                   [x = autograd::save(x), w = autograd::save(w), xi, wi](autograd::Backward& b) {
                     if (b.needs(xi)) b.set(xi, b.grad() * b.saved(w));
                     if (b.needs(wi)) b.set(wi, b.grad() * b.saved(x));
                   });
  return y;
}

}  // namespace

TEST_CASE("backward accumulates into leaves") {
  const Tensor x = leaf({2, 3}), w = leaf({5, 7});
  (x * w).sum().backward();
  CHECK(at(x.grad(), 0) == 5);
  CHECK(at(w.grad(), 1) == 3);
  (x * w).sum().backward();  // a second backward must add to grad(), not replace it
  CHECK(at(x.grad(), 0) == 10);
  CHECK(at(w.grad(), 1) == 6);
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
  w.zero_grad(/*set_to_none=*/false);
  CHECK(at(w.grad(), 0) == 0);
}

TEST_CASE("the text of a tensor shows requires_grad or grad_fn") {
  const Tensor x = tensor({1.0, 2.0}).set_requires_grad();
  CHECK(x.str() == "tensor([1., 2.], requires_grad=True)");
  CHECK((x * 2).str() == "tensor([2., 4.], grad_fn=<mul>)");
  CHECK(x.to(DType::f64).str() == "tensor([1., 2.], dtype=float64, grad_fn=<to>)");
  CHECK(x.detach().str() == "tensor([1., 2.])");
  x.set_requires_grad(false);
  CHECK(x.str() == "tensor([1., 2.])");
}

TEST_CASE("a tensor used several times gets the sum of its gradients") {
  const Tensor x = leaf({3});
  const Tensor y = x * x + x * 2 + x;
  y.backward(tensor({1.0}, DType::f64));
  CHECK(at(x.grad(), 0) == 2 * 3 + 2 + 1);
}

TEST_CASE("the gradients of two leaves share no memory") {
  const Tensor a = leaf({1}), b = leaf({1});
  (a + b).sum().backward();
  a.grad().mul_(5);
  CHECK(at(b.grad(), 0) == 1);
  const Tensor c = leaf({1, 2});
  const Tensor seed = tensor({3.0, 4.0}, DType::f64);
  (c + 0).backward(seed);
  c.grad().mul_(2);
  CHECK(at(seed, 0) == 3);
}

TEST_CASE("NoGradGuard, InferenceMode and detach stop recording") {
  const Tensor x = leaf({2});
  {
    NoGradGuard no_grad;
    CHECK_FALSE((x * x).requires_grad());
    EnableGradGuard again;
    CHECK((x * x).requires_grad());
  }
  CHECK((x * x).requires_grad());
  CHECK_FALSE((x.detach() * 2).requires_grad());
  Tensor made;
  {
    InferenceMode inference;
    made = x * 3;
    CHECK_FALSE(made.requires_grad());
  }
  CHECK_THROWS_WITH(x * made, ContainsSubstring("inference mode"));
  CHECK_THROWS_WITH(made.set_requires_grad(), ContainsSubstring("inference mode"));
  for (const Tensor& view : {made.detach(), made.view({1, 1}), made.narrow(0, 0, 1), made.select(0, 0)})
    CHECK_THROWS_WITH(x * view, ContainsSubstring("inference mode"));
  CHECK_NOTHROW(x * made.clone());
}

TEST_CASE("misuse of backward throws an error that names the reason") {
  const Tensor x = leaf({1, 2});
  CHECK_THROWS_WITH((x * x).backward(), ContainsSubstring("has shape [2]"));
  CHECK_THROWS_WITH(x.detach().sum().backward(), ContainsSubstring("was not recorded"));
  CHECK_THROWS_WITH((x * x).backward(tensor({1.0}, DType::f64)), ContainsSubstring("expected float64 [2]"));
  CHECK_THROWS_WITH((x * x).backward(tensor({1.0, 1.0})), ContainsSubstring("float32"));
  CHECK_THROWS_AS(autograd::backward({}), AutogradError);
  CHECK_THROWS_WITH((x * x).set_requires_grad(false), ContainsSubstring("detach()"));
  CHECK_THROWS_AS(tensor({1, 2}).set_requires_grad(), TypeError);

  const Tensor y = (x * x).sum();
  y.backward();
  CHECK_THROWS_WITH(y.backward(), ContainsSubstring("retain_graph"));
  CHECK(at(x.grad(), 1) == 4);  // the failed pass must not add to grad()

  const Tensor z = (x * x).sum();
  z.backward({}, /*retain_graph=*/true);
  z.backward();
  CHECK(at(x.grad(), 1) == 12);
}

TEST_CASE("a saved tensor changed in place is detected") {
  const Tensor x = leaf({1, 2});
  const Tensor h = x * 2;
  const Tensor y = (h * h).sum();
  {
    NoGradGuard no_grad;
    h.add_(1);
  }
  CHECK_THROWS_WITH(y.backward(), ContainsSubstring("[mul]") && ContainsSubstring("changed in place"));
  // exp saves its output. An in-place change of the output through a view must be detected too.
  const Tensor e = x.exp();
  const Tensor s = e.sum();
  e.detach().narrow(0, 0, 1).zero_();
  CHECK_THROWS_WITH(s.backward(), ContainsSubstring("[exp]"));
}

TEST_CASE("in-place operations are recorded, or refused on leaves and views") {
  const Tensor x = leaf({1, 2});
  CHECK_THROWS_WITH(x.mul_(2), ContainsSubstring("leaf"));
  {
    NoGradGuard no_grad;
    x.mul_(2);  // under NoGradGuard a leaf may be changed in place, as optimizers do
  }
  CHECK(at(x, 1) == 4);
  const Tensor h = x * 3;  // the elements are 6, 12
  h.mul_(h);               // the elements are now 36, 144
  h.add_(1);
  CHECK(at(h, 0) == 37);
  h.sum().backward();
  CHECK(at(x.grad(), 0) == 2 * 9 * 2);
  CHECK(at(x.grad(), 1) == 2 * 9 * 4);
  // `sum` has no history. Adding a recorded tensor to it in place must give it one.
  const Tensor sum = zeros({2}, DType::f64);
  sum.add_(x * 5);
  CHECK(sum.requires_grad());
  x.zero_grad();
  sum.sum().backward();
  CHECK(at(x.grad(), 0) == 5);
  // In-place changes of recorded views are refused, and stale views are detected.
  const Tensor base = x * 1;
  const Tensor part = base.narrow(0, 0, 1);
  CHECK_THROWS_WITH(part.mul_(2), ContainsSubstring("view"));
  base.mul_(2);
  CHECK_THROWS_WITH(part * 2, ContainsSubstring("make the view again"));
  CHECK_THROWS_WITH(part.backward(), ContainsSubstring("make the view again"));
  CHECK_THROWS_WITH(autograd::grad({part}, {x}), ContainsSubstring("make the view again"));
  const Tensor plain = zeros({2}, DType::f64);
  CHECK_THROWS_WITH(plain.narrow(0, 0, 1).copy_(x.narrow(0, 0, 1)), ContainsSubstring("shares its memory"));
}

TEST_CASE("an in-place operation creates no reference cycle") {
  // x.mul_(w) creates a node that saves the old x. Saving the tensor x itself would create a cycle.
  const std::int64_t before = memory_stats(kCPU).allocated;
  {
    const Tensor w = leaf({2, 2});
    for (int i = 0; i < 100; ++i) {
      const Tensor h = w * 1;
      h.mul_(w);
      h.exp_();
    }
  }
  CHECK(memory_stats(kCPU).allocated == before);
}

TEST_CASE("tensor hooks get the gradient, can replace it, and can be removed") {
  const Tensor x = leaf({2});
  const Tensor y = x * 3;
  double seen = 0;
  int calls = 0;
  HookHandle see = y.register_hook([&](const Tensor& g) {
    seen = g[0].item();
    ++calls;
    return Tensor();
  });
  HookHandle replace = y.register_hook([](const Tensor& g) { return g * 10; });
  y.retain_grad();
  y.sum().backward({}, true);
  CHECK(seen == 1);
  CHECK(at(x.grad(), 0) == 30);
  CHECK(at(y.grad(), 0) == 10);  // retain_grad keeps the gradient as the hooks return it
  replace.remove();
  replace.remove();
  see.remove();
  x.zero_grad();
  y.sum().backward();
  CHECK(calls == 1);
  CHECK(at(x.grad(), 0) == 3);
  const Tensor z = x * 1;
  z.register_hook([](const Tensor&) { return zeros({7}, DType::f64); });
  CHECK_THROWS_WITH(z.sum().backward(), ContainsSubstring("hook returned"));
  CHECK_THROWS_AS(x.detach().register_hook([](const Tensor& g) { return g; }), AutogradError);
}

TEST_CASE("a leaf's hook fires when its gradient is complete, whatever the order of inputs") {
  for (bool weight_first : {false, true}) {
    const Tensor x = tensor({1.0}, DType::f64), w1 = leaf({2}), w2 = leaf({3}), w3 = leaf({5});
    std::vector<int> order;
    std::vector<double> values;
    int number = 1;
    for (const Tensor* w : {&w1, &w2, &w3})
      w->register_post_accumulate_grad_hook([&, number = number++](const Tensor& t) {
        order.push_back(number);
        values.push_back(t.grad()[0].item());
      });
    product(product(product(x, w1, weight_first), w2, weight_first), w3, weight_first).backward();
    CHECK(order == std::vector<int>{3, 2, 1});
    CHECK(values == std::vector<double>{6, 10, 15});
  }
}

TEST_CASE("a leaf used twice fires its hook once, with the whole gradient") {
  const Tensor w = leaf({2}), x = leaf({3});
  int calls = 0;
  double seen = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor& t) {
    ++calls;
    seen = t.grad()[0].item();
  });
  (w * x * w).backward();
  CHECK(calls == 1);
  CHECK(seen == 12);
}

TEST_CASE("a callback runs at the end of backward, and backward may run inside a hook") {
  const Tensor x = leaf({2}), w = leaf({3});
  std::vector<std::string> events;
  const Tensor y = x * w;
  y.register_hook([&](const Tensor&) {
    autograd::on_backward_end([&] { events.push_back("end"); });
    EnableGradGuard grad_mode;     // hooks run in no-grad mode
    (x * w * 2).sum().backward();  // the nested pass shares leaves with the outer one
    events.push_back("inner done");
    return Tensor();
  });
  w.register_post_accumulate_grad_hook([&](const Tensor&) { events.push_back("w"); });
  y.sum().backward();
  CHECK(events == std::vector<std::string>{"w", "inner done", "w", "end"});
  CHECK(at(x.grad(), 0) == 3 * 2 + 3);
  CHECK(at(w.grad(), 0) == 2 * 2 + 2);
  CHECK_THROWS_AS(autograd::on_backward_end([] {}), AutogradError);
}

TEST_CASE("a nested pass that frees tensors of the outer pass is an error that names the operation") {
  const Tensor x = leaf({2});
  const auto run = [&](bool retain) {
    const Tensor a = x * x, b = a * 2;
    b.register_hook([&](const Tensor&) {
      EnableGradGuard grad_mode;
      a.sum().backward({}, retain);
      return Tensor();
    });
    b.sum().backward();
  };
  CHECK_THROWS_WITH(run(false), ContainsSubstring("freed the saved tensors of [mul]") &&
                                    ContainsSubstring("retain_graph = true to the nested"));
  x.zero_grad();
  run(true);
  CHECK(at(x.grad(), 0) == 4 + 8);
}

TEST_CASE("backward of several outputs of one node, and of one output twice, adds their gradients") {
  const Tensor x = leaf({1, 2, 3});
  const std::vector<Tensor> parts = x.split(1);
  autograd::backward({parts[0], parts[2], parts[2], x.sum(), x},
                     {{}, {}, {}, {}, tensor({5.0, 6.0, 7.0}, DType::f64)});
  CHECK(equal(x.grad(), tensor({7.0, 7.0, 10.0}, DType::f64)));
}

TEST_CASE("outputs of one node may be destroyed in any order") {
  const Tensor x = leaf({2});
  for (const bool second : {false, true})
    for (const bool run : {false, true}) {
      CAPTURE(second, run);
      Tensor outputs[] = {x.detach() * 3, x.detach() * 5};
      const Tensor* const out[] = {&outputs[0], &outputs[1]};
      const Tensor* const in[] = {&x};
      autograd::record("pair", out, in, [](autograd::Backward& b) {
        b.set(0, b.grad_or_zeros(0) * 3 + b.grad_or_zeros(1) * 5);
      });
      Tensor &survivor = outputs[second], &other = outputs[!second];
      other.retain_grad();
      other = Tensor();
      CHECK_THAT(survivor.str(), ContainsSubstring("grad_fn=<pair>"));
      if (!run) continue;
      x.zero_grad();
      survivor.backward();
      CHECK(at(x.grad(), 0) == (second ? 5 : 3));
    }
}

TEST_CASE("an exception in a hook leaves the graph usable") {
  const Tensor x = leaf({2});
  const Tensor y = x * x;
  bool fail_now = true;
  y.register_hook([&](const Tensor&) -> Tensor {
    if (fail_now) throw std::runtime_error("from the hook");
    return {};
  });
  CHECK_THROWS_WITH(y.sum().backward({}, true), "from the hook");
  fail_now = false;
  y.sum().backward();
  CHECK(at(x.grad(), 0) == 4);
}

TEST_CASE("autograd::grad returns gradients and leaves grad() alone") {
  const Tensor x = leaf({2}), w = leaf({3}), unused = leaf({1});
  const Tensor h = x * w;
  const Tensor y = h * h;
  auto g = autograd::grad({y}, {x, h}, {}, true);
  CHECK(at(g[0], 0) == 2 * 6 * 3);
  CHECK(at(g[1], 0) == 12);
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
  CHECK_THROWS_WITH(autograd::grad({y}, {unused}, {}, true), ContainsSubstring("allow_unused"));
  CHECK_FALSE(autograd::grad({y}, {unused}, {}, true, true)[0].defined());
  CHECK_THROWS_WITH(autograd::grad({y}, {x.detach()}, {}, true), ContainsSubstring("does not require"));
  // The outputs have different weights: 1 for y and 10 for h.
  g = autograd::grad({y, h}, {w}, {tensor({1.0}, DType::f64), tensor({10.0}, DType::f64)});
  CHECK(at(g[0], 0) == 2 * 6 * 2 + 10 * 2);
}

TEST_CASE("autograd::grad does not free the graph of its inputs, so backward can continue from there") {
  const Tensor x = leaf({2, 3}), h = x.exp();  // exp's backward needs its saved output
  const auto g = autograd::grad({h.log().sum()}, {h});
  h.backward(g[0]);
  CHECK(allclose(x.grad(), ones({2}, DType::f64), 1e-14));
}

TEST_CASE("backward_inputs and accumulate give the same gradients as backward") {
  const Tensor x = leaf({1.5, -2}), w1 = leaf({2, 3}), w2 = leaf({0.5, 4});
  const auto forward = [&](const Tensor& in) {
    const Tensor h = (in * (w1 * w1)).tanh();  // w1 reaches h through another operation
    return h * w2 + w1;  // w1 is also an input of the last node, which leads to the input too
  };
  const Tensor seed = tensor({1.0, -1.0}, DType::f64);
  forward(x).backward(seed);
  const Tensor gx = x.grad().clone(), g1 = w1.grad().clone(), g2 = w2.grad().clone();
  for (const Tensor* t : {&x, &w1, &w2}) t->zero_grad();

  int fired = 0;
  w1.register_post_accumulate_grad_hook([&](const Tensor&) { ++fired; });
  WeightGradients weights;
  const Tensor y = forward(x);
  const auto g = autograd::backward_inputs({y}, {x}, {seed}, weights);
  CHECK(allclose(g[0], gx, 1e-14));
  CHECK_FALSE(w1.grad().defined());
  CHECK(fired == 0);
  weights.accumulate();
  CHECK(fired == 1);
  CHECK(allclose(w1.grad(), g1, 1e-14));
  CHECK(allclose(w2.grad(), g2, 1e-14));
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(weights.accumulate(), ContainsSubstring("once"));
  CHECK_THROWS_WITH(y.backward(seed), ContainsSubstring("retain_graph"));
}

TEST_CASE("saved tensors pass through the saved-tensor hooks") {
  const Tensor x = leaf({2, 3});
  int packed = 0, unpacked = 0;
  Tensor y;
  {
    autograd::SavedTensorHooks hooks(
        [&](const Tensor& t) {
          ++packed;
          return std::make_shared<Tensor>(t.clone());
        },
        [&](const std::shared_ptr<void>& p) {
          ++unpacked;
          return *std::static_pointer_cast<Tensor>(p);
        });
    y = x * x;
  }
  CHECK(packed == 2);
  y.sum().backward();
  CHECK(unpacked == 2);
  CHECK(at(x.grad(), 1) == 6);
}

TEST_CASE("the result of an unpack hook is checked and converted to the saved layout") {
  const auto gradient = [](const std::function<Tensor(const Tensor&)>& unpack, const auto& f) {
    const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}}, DType::f64).set_requires_grad();
    Tensor y;
    {
      autograd::SavedTensorHooks hooks(
          [](const Tensor& t) { return std::make_shared<Tensor>(t.clone()); },
          [&](const std::shared_ptr<void>& p) { return unpack(*std::static_pointer_cast<Tensor>(p)); });
      y = f(x);
    }
    y.backward(tensor({{1, 0, 2}, {0, 3, 0}}, DType::f64));
    return x.grad();
  };
  const auto softmax = [](const Tensor& x) { return x.softmax(1); };
  CHECK_THROWS_WITH(gradient([](const Tensor&) { return Tensor(); }, softmax),
                    ContainsSubstring("[softmax]") && ContainsSubstring("undefined"));
  CHECK_THROWS_WITH(
      gradient([](const Tensor&) { return ones({2}, DType::f64); }, softmax),
      ContainsSubstring("[softmax]") && ContainsSubstring("expected what was packed, float64 [2, 3]"));
  CHECK_THROWS_AS(gradient([](const Tensor& t) { return t.to(DType::f32); }, softmax), AutogradError);
  CHECK_THROWS_WITH(gradient([](const Tensor&) -> Tensor { throw std::runtime_error("lost"); }, softmax),
                    "lost");
  const Tensor same = gradient([](const Tensor& t) { return t; }, softmax);
  CHECK(equal(gradient([](const Tensor& t) { return t.t().contiguous().t(); }, softmax), same));
}

TEST_CASE("a recorded in-place change of a tensor made in inference mode is refused") {
  Tensor t;
  {
    InferenceMode inference;
    t = ones({2}, DType::f64);
  }
  CHECK_THROWS_WITH(t.add_(leaf({1, 2})), ContainsSubstring("made in inference mode"));
  NoGradGuard no_grad;
  t.add_(leaf({1, 2}));
  CHECK(at(t, 1) == 3);
}

TEST_CASE("the gradient methods of an undefined tensor throw ValueError") {
  const Tensor none;
  CHECK_FALSE(none.requires_grad());
  CHECK_THROWS_AS(none.is_leaf(), ValueError);
  CHECK_THROWS_AS(none.grad(), ValueError);
  CHECK_THROWS_AS(none.zero_grad(), ValueError);
  CHECK_THROWS_AS(none.set_grad({}), ValueError);
  CHECK_THROWS_AS(none.backward(), ValueError);
}

TEST_CASE("anomaly mode names the operation of the first NaN") {
  const Tensor x = leaf({-1.0});
  CHECK_NOTHROW(x.log());
  autograd::DetectAnomaly anomaly;
  CHECK_THROWS_WITH(x.log(), ContainsSubstring("[log]"));
  const Tensor zero = leaf({0.0});
  const Tensor y = zero.sqrt() * 0;  // forward has no NaN; backward multiplies 0 by infinity
  CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("[sqrt]"));
}

namespace {
void on_small_stack(void* (*fn)(void*)) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, &attributes, fn, nullptr) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}
}  // namespace

TEST_CASE("a chain of a million nodes neither overflows a small stack nor leaks") {
  const std::int64_t slabs = autograd::slabs_in_use(), bytes = memory_stats(kCPU).allocated;
  static double gradient;
  static constexpr int kNodes = kSanitized ? 100'000 : 1'000'000;
  on_small_stack([](void*) -> void* {
    const Tensor x = tensor({1.0}, DType::f64).set_requires_grad();
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = y + 1;
    y.sum().backward();
    gradient = x.grad()[0].item();
    Tensor dropped = x;  // a graph without a backward pass must be freed without recursion too
    for (int i = 0; i < kNodes; ++i) dropped = dropped * 1;
    return nullptr;
  });
  CHECK(gradient == 1);
  CHECK(memory_stats(kCPU).allocated == bytes);
  CHECK(autograd::slabs_in_use() <= slabs);
}

TEST_CASE("a node that outlives its step keeps only one slab in use") {
  const Tensor x = leaf({1});
  std::vector<Tensor> kept;
  const std::int64_t before = autograd::slabs_in_use();
  for (int step = 0; step < 20; ++step) {
    Tensor y = x;
    for (int i = 0; i < 2000; ++i) y = y * 1;
    kept.push_back(x * 2);  // this node is in a slab with nodes of this step, and outlives them
    y.backward();
  }
  // A step fills about ten slabs, and each of the 20 surviving nodes may keep one slab.
  CHECK(autograd::slabs_in_use() - before <= 20 + 12);
}

TEST_CASE("nodes may be freed on another thread") {
  const Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 1000; ++i) y = y * 1;
  std::thread([moved = std::move(y)]() mutable { moved = Tensor(); }).join();
  (x * 2).backward();
  CHECK(at(x.grad(), 0) == 2);
}

TEST_CASE("a slab is given back whoever frees its nodes, and before or after its thread has ended") {
  const Tensor x = leaf({1});
  const std::int64_t before = autograd::slabs_in_use();
  Tensor later;
  std::thread([&] {
    for (int i = 0; i < 10; ++i) (x * 2).sum();  // freed by the thread that fills the slab
    later = x * 4;
    std::thread([moved = x * 3]() mutable { moved = Tensor(); }).join();
    for (int i = 0; i < 10; ++i) x * 2;
  }).join();
  CHECK(autograd::slabs_in_use() == before + 1);
  later = Tensor();
  CHECK(autograd::slabs_in_use() == before);
}

TEST_CASE("a hook of a leaf that was destroyed before backward is harmless") {
  Tensor y;
  int calls = 0;
  const Tensor x = leaf({2});
  {
    const Tensor w = leaf({3});
    w.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
    y = x * w;
  }
  y.backward();
  CHECK(at(x.grad(), 0) == 3);
  CHECK(calls <= 1);  // mul saved w as its input, so w may still be alive and its hook may run
}

TEST_CASE(
    "in a hook, current_backward identifies the pass, and backward_reaches tells which leaves it reaches") {
  const Tensor a = full({2}, 3.0).set_requires_grad(), b = full({2}, 4.0).set_requires_grad();
  const Tensor frozen = full({2}, 5.0);
  CHECK_THROWS_AS(autograd::current_backward(), AutogradError);
  CHECK_THROWS_AS(autograd::backward_reaches(a), AutogradError);
  std::vector<std::uint64_t> passes;
  std::vector<bool> reached;
  const auto before = std::chrono::steady_clock::now();
  a.register_post_accumulate_grad_hook([&](const Tensor&) {
    const autograd::BackwardPass pass = autograd::current_backward();
    CHECK(pass.began >= before);
    CHECK(pass.began <= std::chrono::steady_clock::now());
    passes.push_back(pass.id);
    for (const Tensor& t : {a, b, frozen}) reached.push_back(autograd::backward_reaches(t));
  });
  (a * b).sum().backward();
  (a * frozen).sum().backward();
  REQUIRE(passes.size() == 2);
  CHECK(passes[0] != passes[1]);
  CHECK(reached == std::vector<bool>{true, true, false, true, false, false});
}

TEST_CASE("a leaf may be destroyed on one thread while a pass on another thread calls its hook") {
  std::atomic<int> turn{0};
  std::atomic<std::int64_t> seen{0};
  constexpr int rounds = 2000;
  Tensor y;
  std::thread backward([&] {
    for (int i = 0; i < rounds; ++i) {
      while (turn.load() != 2 * i + 1) std::this_thread::yield();
      y.backward();
      turn.store(2 * i + 2);
    }
  });
  for (int i = 0; i < rounds; ++i) {
    Tensor w = leaf({3});
    w.register_post_accumulate_grad_hook([&](const Tensor& t) { seen += t.numel(); });
    y = w * 2;
    turn.store(2 * i + 1);
    w = Tensor();
    while (turn.load() != 2 * i + 2) std::this_thread::yield();
  }
  backward.join();
  CHECK(seen.load() <= rounds);
}
