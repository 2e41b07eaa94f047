#include "tapestry/autograd/checkpoint.h"

#include <array>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "tapestry/autograd/function.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using autograd::WeightGradients;
using Tensors = std::vector<Tensor>;

namespace {

/// Element i is sin(0.7 i + seed).
Tensor wave(const Shape& sizes, double seed, DType dtype = DType::f64) {
  const Tensor t = empty(sizes, DType::f64);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = std::sin(0.7 * static_cast<double>(i) + seed);
  return t.to(dtype);
}
Tensor leaf(const Shape& sizes, double seed, DType dtype = DType::f64) {
  return wave(sizes, seed, dtype).set_requires_grad();
}

// A function whose operations save inputs, outputs, statistics and intermediate results.
Tensor block(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Tensor h = linear(x, w, b).gelu();
  return layer_norm(h * h.tanh() + x, {x.size(1)}, {}, {}).softmax(1) / (x.exp() + 1);
}

// Calls a function through checkpoint() or directly, so that a test can compare both.
struct Call {
  bool checkpointed;
  template <class F, class... Args>
  auto operator()(F&& f, Args&&... args) const {
    if (checkpointed) return checkpoint(std::forward<F>(f), std::forward<Args>(args)...);
    return f(std::forward<Args>(args)...);
  }
};
constexpr Call kPlain{false}, kCheckpointed{true};

// Checks that the gradient of the sum of f is the same with and without checkpoint().
template <class F>
void check_same_gradient(const F& f, const Tensor& x) {
  checkpoint(f, x).sum().backward();
  const Tensor g = x.grad();
  x.zero_grad();
  f(x).sum().backward();
  CHECK(equal(x.grad(), g));
}

}  // namespace

TEST_CASE("values and gradients are bitwise equal to those of the plain call") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(dtype_name(dtype));
    const auto run = [&](Call call) {
      const Tensor x = leaf({3, 4}, 1, dtype), w = leaf({4, 4}, 2, dtype), b = leaf({4}, 3, dtype);
      const Tensor h = call(block, x, w, b);
      const Tensor y = call(block, h, w, b);
      y.backward(wave({3, 4}, 4, dtype));
      return Tensors{y, x.grad(), w.grad(), b.grad()};
    };
    const Tensors plain = run(kPlain), again = run(kCheckpointed);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
  }
}

TEST_CASE("gradients agree with finite differences") {
  autograd::gradcheck([](const Tensors& in) { return checkpoint(block, in[0], in[1], in[2]); },
                      {leaf({2, 3}, 1), leaf({3, 3}, 2), leaf({3}, 3)});
}

TEST_CASE("arguments and results of any type give the gradients of the plain call") {
  const Tensor x = leaf({2, 3}, 1), w = leaf({3}, 2);
  const auto gradients = [&](const Tensor& loss) {
    loss.backward();
    Tensors g{x.grad(), w.grad()};
    x.zero_grad();
    w.zero_grad();
    return g;
  };
  const Tensors expected = gradients((x.exp() * w + x.tanh()).sum());
  const auto check_same = [&](const Tensor& loss) {
    const Tensors g = gradients(loss);
    CHECK(allclose(g[0], expected[0], 1e-14));
    CHECK(allclose(g[1], expected[1], 1e-14));
  };
  SECTION("a pair") {
    const auto [a, b] =
        checkpoint([](const Tensor& s, const Tensor& t) { return std::pair(s.exp() * t, s.tanh()); }, x, w);
    check_same((a + b).sum());
  }
  SECTION("a tuple that contains a number") {
    const auto [a, n, b] =
        checkpoint([](Tensor s, Tensor t) { return std::tuple(s.exp() * t, 3, s.tanh()); }, x, w);
    CHECK(n == 3);
    check_same((a + b).sum());
  }
  SECTION("vectors, numbers and an undefined tensor as arguments") {
    const auto f = [](const Tensors& in, double scale, const Tensor& none, std::pair<Tensor, int> p) {
      CHECK_FALSE(none.defined());
      return Tensors{in[0].exp() * in[1] * scale, p.first.tanh() * p.second};
    };
    const Tensors out = checkpoint(f, Tensors{x, w}, 1.0, Tensor(), std::pair(x, 1));
    check_same((out[0] + out[1]).sum());
  }
  SECTION("tensors that the function captures") {
    check_same(checkpoint([&] { return (x.exp() * w + x.tanh()).sum(); }));
  }
  SECTION("a callable that cannot be copied is moved or held by reference") {
    struct Owner {
      std::unique_ptr<double> one = std::make_unique<double>(1);
      Tensor operator()(const Tensor& s, const Tensor& t) const { return s.exp() * t * *one + s.tanh(); }
    };
    check_same(checkpoint(Owner(), x, w).sum());
    const Owner owner;
    check_same(checkpoint(owner, x, w).sum());
  }
  SECTION("a result that is an argument, a result without a gradient, and no result") {
    const auto [same, index, y] = checkpoint(
        [](const Tensor& s, const Tensor& t) { return std::tuple(s, s.argmax(1), s.exp() * t + s.tanh()); },
        x, w);
    CHECK(same.is_same(x));
    CHECK_FALSE(index.requires_grad());
    check_same(y.sum());
    bool called = false;
    checkpoint([&](const Tensor&) { called = true; }, x);
    CHECK(called);
  }
  SECTION("inputs without a gradient, of another dtype, strided and empty") {
    const Tensor rows = tensor({1, 0, 1}, DType::i64),
                 nothing = empty({0, 3}, DType::f64).set_requires_grad();
    const auto f = [](const Tensor& s, const Tensor& r, const Tensor& e) {
      return cat({s.index_select(1, r).tanh(), e.exp()}, 0).tanh();
    };
    const Tensor across = wave({3, 2}, 1).t().set_requires_grad();
    const auto run = [&](Call call) {
      across.zero_grad();
      call(f, across, rows, nothing).sum().backward();
      return across.grad();
    };
    CHECK(equal(run(kPlain), run(kCheckpointed)));
  }
}

TEST_CASE("backward runs the function again once, and only as far as needed") {
  int calls = 0, ends = 0;
  bool again = false;
  const Tensor x = leaf({3}, 1);
  const auto f = [&](const Tensor& t) {
    ++calls;
    again = autograd::recomputing();
    const Tensor y = t.exp().tanh();
    ++ends;
    return y + 1;
  };
  SECTION("early stop") {
    const Tensor y = checkpoint(f, x);
    CHECK((calls == 1 && ends == 1 && !again));
    y.sum().backward();
    CHECK((calls == 2 && ends == 1 && again));
    CHECK_FALSE(autograd::recomputing());
  }
  SECTION("no early stop") {
    checkpoint({.early_stop = false}, f, x).sum().backward();
    CHECK((calls == 2 && ends == 2));
  }
  SECTION("no recomputation if backward needs nothing") {
    { const Tensor y = checkpoint(f, x); }
    CHECK(calls == 1);
    // An addition saves no tensor for backward.
    const Tensor y = checkpoint([&](const Tensor& t) { return ++calls, t + 1; }, x);
    y.sum().backward();
    CHECK(calls == 2);
  }
  SECTION("a plain call if grad mode is off") {
    const NoGradGuard no_grad;
    CHECK_FALSE(checkpoint(f, x).requires_grad());
    CHECK(calls == 1);
  }
  SECTION("a NoGradGuard inside the function") {
    const auto part = [](const Tensor& t) {
      Tensor factor;
      {
        NoGradGuard no_grad;
        factor = t.exp();
      }
      return factor * t.tanh();
    };
    check_same_gradient(part, x);
  }
}

TEST_CASE("hooks fire once and get the gradients of the plain call") {
  const auto run = [](Call call) {
    const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
    Tensors seen;
    const auto note = [&](const Tensor& g) { return seen.push_back(g), Tensor(); };
    w.register_post_accumulate_grad_hook([&](const Tensor& t) { seen.push_back(t.grad()); });
    const Tensor y = call(
        [&](const Tensor& t) {
          const Tensor h = t.exp() * w;
          if (!autograd::recomputing()) h.register_hook(note);
          return h.tanh();
        },
        x);
    y.register_hook([](const Tensor& g) { return g * 2; });
    y.retain_grad();
    y.sum().backward();
    seen.push_back(y.grad());
    seen.push_back(x.grad());
    return seen;
  };
  const Tensors plain = run(kPlain), again = run(kCheckpointed);
  REQUIRE(plain.size() == 4);
  REQUIRE(again.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(equal(plain[i], again[i]));
}

TEST_CASE("grad() gives the gradients of the plain call for all or some inputs") {
  const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
  for (const auto& wanted : {Tensors{x}, Tensors{w}, Tensors{x, w}}) {
    const auto run = [&](Call call) {
      const Tensor h = x * 2;
      const Tensor y = call([&](const Tensor& t) { return (t.exp() * w).tanh() * w; }, h);
      return autograd::grad({y.sum()}, wanted);
    };
    const Tensors plain = run(kPlain), again = run(kCheckpointed);
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(equal(plain[i], again[i]));
  }
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("with retain_graph, each pass recomputes the function once") {
  int calls = 0;
  const auto run = [&](Call call) {
    const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
    const Tensor y =
        call([&](const Tensor& a, const Tensor& b) { return ++calls, (a / b).tanh() * b; }, x, w);
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("retain_graph"));
    return Tensors{x.grad(), w.grad()};
  };
  const Tensors plain = run(kPlain);
  calls = 0;
  const Tensors again = run(kCheckpointed);
  CHECK(calls == 1 + 3);  // one recomputation per pass, although the backward of a / b uses b twice
  CHECK(equal(plain[0], again[0]));
  CHECK(equal(plain[1], again[1]));
}

TEST_CASE("a split backward pass recomputes the function in each half") {
  int calls = 0;
  const auto run = [&](Call call) {
    const Tensor x = leaf({2, 3}, 1), w = leaf({3, 3}, 2);
    const Tensor y =
        call([&](const Tensor& t) { return ++calls, linear(linear(t, w, {}).tanh(), w, {}); }, x);
    WeightGradients weights;
    Tensors g = autograd::backward_inputs({y}, {x}, {wave({2, 3}, 3)}, weights);
    CHECK_FALSE(w.grad().defined());
    weights.accumulate();
    g.push_back(w.grad());
    return g;
  };
  const Tensors plain = run(kPlain);
  calls = 0;
  const Tensors again = run(kCheckpointed);
  CHECK(calls == 3);
  CHECK(equal(plain[0], again[0]));
  CHECK(equal(plain[1], again[1]));
}

TEST_CASE("the recomputation draws the same random numbers") {
  // The gradient depends on the random noise and on the dropout mask. So equal gradients show that both were
  // drawn again identically.
  const auto f = [](const Tensor& t) {
    const Tensor noise = empty(t.sizes(), t.dtype()).uniform_();
    return dropout(-((t + noise) * (t + noise)), 0.5, true).exp();
  };
  const Tensor x = leaf({64}, 1);
  const auto run = [&](auto call) {
    x.zero_grad();
    const Tensor y = call();
    manual_seed(99);  // the recomputation must not depend on this new seed
    y.sum().backward();
    return x.grad();
  };
  manual_seed(5);
  const Tensor expected = run([&] { return f(x); });
  const auto after = default_generator(kCPU).state();

  SECTION("from the default generator, whose state is restored afterwards") {
    manual_seed(5);
    CHECK(equal(run([&] { return checkpoint(f, x); }), expected));
    CHECK(default_generator(kCPU).state() == after);
  }
  SECTION("from the context's generator, even if it was destroyed") {
    std::optional<Generator> own(5);
    const Tensor g = run([&] {
      Context context = current_context();
      context.generator = &*own;
      Tensor y;
      {
        const ContextGuard guard(context);
        y = checkpoint(f, x);
      }
      own.reset();
      return y;
    });
    CHECK(equal(g, expected));
    CHECK(default_generator(kCPU).state() == after);
  }
  SECTION("without rewinding the generators of other devices, which other threads may use") {
    const testing::FakeGpus gpus;
    manual_seed(5);
    const Tensor g = run([&] {
      const auto watched = [&](const Tensor& t) {
        if (autograd::recomputing()) {
          CHECK(default_generator(kCPU).seed() == 5);
          CHECK(default_generator("cuda:0").seed() == 99);
        }
        return f(t);
      };
      return checkpoint(watched, x);
    });
    CHECK(equal(g, expected));
  }
  SECTION("but not if preserve_rng_state is false") {
    manual_seed(5);
    CHECK_FALSE(equal(run([&] { return checkpoint({.preserve_rng_state = false}, f, x); }), expected));
    CHECK(default_generator(kCPU).state() != after);
  }
  SECTION("but not if preserve_rng_state is false and the context's generator was destroyed") {
    std::optional<Generator> own(5);
    const Tensor g = run([&] {
      Context context = current_context();
      context.generator = &*own;
      Tensor y;
      {
        const ContextGuard guard(context);
        y = checkpoint({.preserve_rng_state = false}, f, x);
      }
      own.reset();
      return y;
    });
    CHECK_FALSE(equal(g, expected));
    CHECK(default_generator(kCPU).state()[1] > 0);
  }
}

TEST_CASE("calls may be nested") {
  int inner = 0, outer = 0;
  const auto run = [&](Call outside, Call inside, bool retain) {
    inner = outer = 0;
    const Tensor x = leaf({4}, 1), w = leaf({4}, 2);
    const auto small = [&](const Tensor& t) { return ++inner, (t.exp() * w).tanh(); };
    const auto large = [&](const Tensor& t) {
      ++outer;
      const Tensor h = inside(small, t * t);
      return inside(small, inside(small, h.sigmoid())).exp();
    };
    const Tensor y = outside(large, outside(large, x));
    if (retain) y.sum().backward({}, true);
    y.sum().backward();
    return Tensors{y, x.grad(), w.grad()};
  };
  for (const bool retain : {false, true}) {
    const Tensors plain = run(kPlain, kPlain, retain);
    for (const Call inside : {kPlain, kCheckpointed}) {
      const Tensors again = run(kCheckpointed, inside, retain);
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
    }
    const int passes = retain ? 2 : 1;
    CHECK(outer == 2 + 2 * passes);
    CHECK(inner == 6 + 12 * passes);  // in each pass, each inner call runs twice: in its outer function's
                                      // recomputation, and in its own
  }
}

TEST_CASE("batch norm's running statistics are updated once") {
  const auto run = [](Call call) {
    const Tensor x = leaf({5, 3}, 1), mean = zeros({3}, DType::f64), var = ones({3}, DType::f64);
    const Tensor y =
        call([&](const Tensor& t) { return batch_norm(t.exp(), mean, var, {}, {}, true, 0.1).tanh(); }, x);
    y.sum().backward();
    return Tensors{x.grad(), mean, var};
  };
  const Tensors plain = run(kPlain), again = run(kCheckpointed);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
}

TEST_CASE("backward refuses in-place changes after the forward pass") {
  const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
  const auto change = [](const Tensor& t) {
    const NoGradGuard no_grad;
    t.add_(1);
  };
  SECTION("of an input") {
    const Tensor h = x * 2, y = checkpoint([](const Tensor&t) { return t.exp() + t; }, h);
    change(h);
    CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("[checkpoint] input 0") &&
                                              ContainsSubstring("[3]") && ContainsSubstring("in place"));
  }
  SECTION("of an input, by the function itself") {
    const Tensor h = x * 2, y = checkpoint([](const Tensor&t) { return t.mul_(2).exp(); }, h);
    CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("[checkpoint] input 0"));
  }
  SECTION("of a parameter") {
    const Tensor y = checkpoint([&](const Tensor& t) { return (t * w).exp(); }, x);
    change(w);
    CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("[checkpoint]") &&
                                              ContainsSubstring("changed in place after the forward"));
  }
  SECTION("of a tensor that the function saved, by the function itself") {
    const Tensor y = checkpoint(
        [&](const Tensor& t) {
          const Tensor h = t.exp();
          const Tensor square = h * h;
          change(h);
          return square.tanh();
        },
        x);
    CHECK_THROWS_WITH(y.sum().backward(),
                      ContainsSubstring("[checkpoint] a saved") && ContainsSubstring("in place"));
  }
  SECTION("but recorded in-place operations inside the function are allowed") {
    const auto f = [](const Tensor& t) {
      Tensor h = t * 2;
      h.tanh_();
      return h.mul(t).add_(t).exp();
    };
    check_same_gradient(f, x);
  }
}

TEST_CASE("backward refuses a recomputation that differs from the forward pass") {
  const Tensor x = leaf({4}, 1);
  const auto message = [&](const CheckpointOptions& options, const auto& second) {
    const Tensor y = checkpoint(
        options,
        [second, first = true](const Tensor& t) mutable {
          return std::exchange(first, false) ? t.exp().tanh() : second(t);
        },
        x);
    try {
      y.sum().backward();
    } catch (const AutogradError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const CheckpointOptions early, late{.early_stop = false};
  const auto refused = [&](const CheckpointOptions& options, const char* text, const auto& second) {
    CHECK_THAT(message(options, second), ContainsSubstring("[checkpoint]") && ContainsSubstring(text));
  };
  for (const CheckpointOptions& options : {early, late}) {
    refused(options, "saved 1 tensors; the forward pass saved 2", [](const Tensor& t) { return t.exp(); });
    refused(options, "saved 0 tensors", [](const Tensor& t) { return t + 1; });
    refused(options, "as tensor 0 a float64 [2] on cpu:0; in the forward pass it was a float64 [4] on cpu:0",
            [](const Tensor& t) { return t.narrow(0, 0, 2).exp().tanh(); });
    refused(options, "a float32 [4]", [](const Tensor& t) { return t.to(DType::f32).exp().tanh(); });
    CHECK(message(options, [](const Tensor& t) { return t.exp().tanh(); }).empty());
  }
  const auto more = [](const Tensor& t) { return t.exp().tanh().exp(); };
  refused(late, "saved 3 tensors; the forward pass saved 2", more);
  // early_stop ends the recomputation before it saves the third tensor, so there must be no error.
  CHECK(message(early, more).empty());
}

TEST_CASE("after an exception in the recomputation, state is restored and backward can run again") {
  const Tensor x = leaf({4}, 1);
  int calls = 0;
  std::array<std::uint64_t, 2> drawn{};
  const Tensor y = checkpoint(
      [&](const Tensor& t) {
        const Tensor h = dropout(t.exp(), 0.5, true).tanh();
        if (++calls == 2) throw std::runtime_error("out of luck");
        return h.exp();
      },
      x);
  drawn = default_generator(kCPU).state();
  CHECK_THROWS_WITH(y.backward(ones({4}, DType::f64)), "out of luck");
  CHECK(default_generator(kCPU).state() == drawn);
  CHECK_FALSE(autograd::recomputing());
  CHECK(autograd::SavedTensorHooks::current() == nullptr);
  CHECK(grad_enabled());
  CHECK_FALSE(x.grad().defined());
  y.backward(ones({4}, DType::f64));
  CHECK(calls == 3);
  CHECK(x.grad().defined());

  // An exception in the forward pass must restore the state too.
  const auto failing = [](const Tensor& t) -> Tensor {
    t.exp();
    throw std::runtime_error("no");
  };
  CHECK_THROWS_WITH(checkpoint(failing, x), "no");
  CHECK(autograd::SavedTensorHooks::current() == nullptr);
}

TEST_CASE("the caller's saved-tensor hooks are used for the inputs") {
  const Tensor x = leaf({3}, 1), w = leaf({3}, 2), across = wave({2, 3}, 1).t().set_requires_grad();
  int packed = 0, unpacked = 0;
  const auto offload = [&](const Tensor& t) { return ++packed, std::make_shared<Tensor>(t.clone()); };
  const auto load = [&](const std::shared_ptr<void>& p) {
    return ++unpacked, *std::static_pointer_cast<Tensor>(p);
  };
  const auto f = [&](const Tensor& a, const Tensor& b) { return (a.exp() * w).unsqueeze(1).mul(b).tanh(); };
  f(x, across).sum().backward();
  const Tensors expected{x.grad(), w.grad(), across.grad()};
  for (const Tensor& t : {x, w, across}) t.zero_grad();
  Tensor y;
  {
    const autograd::SavedTensorHooks hooks(offload, load);
    y = checkpoint(f, x, across);
  }
  CHECK((packed == 2 && unpacked == 0));
  y.sum().backward();
  CHECK((packed == 2 && unpacked == 2));
  CHECK(equal(x.grad(), expected[0]));
  CHECK(equal(w.grad(), expected[1]));
  CHECK(equal(across.grad(), expected[2]));

  const auto with = [&](const autograd::SavedTensorHooks::Unpack& unpack) {
    const autograd::SavedTensorHooks hooks(offload, unpack);
    return checkpoint([](const Tensor& t) { return t.exp(); }, x);
  };
  CHECK_THROWS_WITH(with([](const auto&) { return Tensor(); }).sum().backward(),
                    ContainsSubstring("[checkpoint]") && ContainsSubstring("undefined"));
  CHECK_THROWS_WITH(
      with([](const auto&) { return ones({3}); }).sum().backward(),
      ContainsSubstring("[checkpoint]") && ContainsSubstring("float32 [3]") && ContainsSubstring("input 0"));
}

namespace {
struct Cube : autograd::Function<Cube> {
  static constexpr const char* kName = "cube";
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x) {
    ctx.save_for_backward({x});
    return x * x * x;
  }
  static Tensors backward(autograd::FunctionContext& ctx, const Tensors& grads) {
    return {grads[0] * 3 * ctx.saved(0) * ctx.saved(0)};
  }
};
}  // namespace

TEST_CASE("a checkpointed function may use user-defined functions and run a backward pass") {
  const auto f = [](const Tensor& t) {
    const Tensor h = t.detach().set_requires_grad();
    const Tensor slope = autograd::grad({Cube::apply(h.exp()).sum()}, {h})[0];
    return Cube::apply(t * slope).tanh();
  };
  for (const bool early_stop : {true, false}) {
    const Tensor x = leaf({3}, 0.1);
    f(x).sum().backward();
    const Tensor expected = x.grad();
    x.zero_grad();
    checkpoint({.early_stop = early_stop}, f, x).sum().backward();
    CHECK(equal(x.grad(), expected));
  }
}

TEST_CASE("backward on another thread gives the same gradient") {
  const Tensor x = leaf({8}, 1);
  const auto f = [](const Tensor& t) { return dropout(t.exp(), 0.5, true).tanh(); };
  manual_seed(3);
  f(x).sum().backward();
  const Tensor expected = x.grad();
  x.zero_grad();
  manual_seed(3);
  const Tensor loss = checkpoint(f, x).sum();
  std::thread([&] { loss.backward(); }).join();
  CHECK(equal(x.grad(), expected));
}
