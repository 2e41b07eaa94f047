// Tests optimizers over f16 and bf16 parameters: masters, stochastic rounding, and their state.
#include <cmath>
#include <functional>
#include <memory>

#include "tapestry/kernels/ops/optim.h"
#include "tapestry/kernels/stochastic_rounding.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/sharded.h"

using namespace tapestry;
using optim::LowPrecision;

namespace {

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::Parameter>, LowPrecision)>;
struct Kind {
  std::string name;
  Make make;
};

// Every optimizer with fused kernels, with the options that give it most states.
std::vector<Kind> kinds() {
  const auto kind = []<class T>(const std::string& name, typename T::Options options) {
    return Kind{name, [options](std::vector<nn::Parameter> params, LowPrecision how) {
                  typename T::Options own = options;
                  own.low_precision = how;
                  return std::make_unique<T>(std::move(params), own);
                }};
  };
  return {kind.operator()<optim::SGD>("SGD", {.lr = 0.01}),
          kind.operator()<optim::SGD>("SGD momentum", {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1}),
          kind.operator()<optim::Adam>("Adam", {.lr = 0.01, .amsgrad = true}),
          kind.operator()<optim::AdamW>("AdamW", {.lr = 0.01}),
          kind.operator()<optim::RMSprop>("RMSprop", {.momentum = 0.9, .centered = true}),
          kind.operator()<optim::Adagrad>("Adagrad", {}),
          kind.operator()<optim::Adadelta>("Adadelta", {}),
          kind.operator()<optim::Adamax>("Adamax", {}),
          kind.operator()<optim::NAdam>("NAdam", {}),
          kind.operator()<optim::RAdam>("RAdam", {}),
          kind.operator()<optim::Lion>("Lion", {.lr = 0.01})};
}

Tensor formula(const Shape& shape, int salt) {
  const Tensor t = empty(shape, {DType::f32, kCPU});
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i + 1) * (salt + 1)));
  return t;
}

// Sizes that need several pieces and blocks, with ragged ends.
std::vector<nn::Parameter> parameters(DType dtype) {
  return {nn::Parameter("a", formula({9, 500}, 1).to(dtype)), nn::Parameter("b", formula({7}, 2).to(dtype))};
}
void set_gradients(const std::vector<nn::Parameter>& params, int step) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i].replica(0);
    p.set_grad((formula(p.sizes(), 5 * step + static_cast<int>(i)) * 0.5).to(DType::bf16).to(p.dtype()));
  }
}
bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && all(a == b).item() != 0;
}

}  // namespace

TEST_CASE("masters: training is that of f32 parameters, whose values are rounded for forward") {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name, dtype);
      const auto low = parameters(dtype), wide = parameters(dtype);
      for (const nn::Parameter& p : wide) {
        nn::Parameter slot = p;
        const Tensor t = p.replica(0).detach().to(DType::f32);
        t.set_requires_grad(true);
        slot.set_replica(0, t);
      }
      const auto a = kind.make(low, LowPrecision::master), b = kind.make(wide, LowPrecision::master);
      for (int step = 0; step < 4; ++step) {
        set_gradients(low, step);
        set_gradients(wide, step);
        a->set_grad_scale(0.75);
        b->set_grad_scale(0.75);
        a->step();
        b->step();
      }
      const nn::StateDict state = a->state_dict(), expected = b->state_dict();
      for (std::size_t i = 0; i < low.size(); ++i) {
        CHECK(same(low[i].replica(0).detach(), wide[i].replica(0).detach().to(dtype)));
        const Tensor* master = nn::find(state, concat({"state.", i, ".master_param"}));
        REQUIRE(master != nullptr);
        CHECK(same(*master, wide[i].replica(0).detach()));
      }
      for (const auto& [key, value] : expected) {
        CAPTURE(key);
        const Tensor* own = nn::find(state, key);
        REQUIRE(own != nullptr);
        CHECK(same(*own, value));
      }
    }
}

TEST_CASE("updates below half an ulp: nearest rounding stalls, masters and stochastic rounding do not") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    // 200 steps of ulp / 8 down from 1.5 are 25 units in the last place.
    const double ulp = dtype == DType::bf16 ? 0x1p-7 : 0x1p-10, expected = 1.5 - 200 * ulp / 8;
    for (const LowPrecision how : {LowPrecision::none, LowPrecision::master, LowPrecision::stochastic}) {
      const nn::Parameter p("p", full({4096}, 1.5, {dtype, kCPU}));
      optim::SGD optimizer({p}, {.lr = ulp / 8, .low_precision = how});
      for (int step = 0; step < 200; ++step) {
        p->set_grad(ones({4096}, {dtype, kCPU}));
        optimizer.step();
      }
      const double mean = tapestry::mean(p->detach().to(DType::f64)).item();
      CAPTURE(dtype, int(how), mean);
      if (how == LowPrecision::none) CHECK(mean == 1.5);
      if (how == LowPrecision::master) CHECK(mean == expected);
      // The variance of one rounding is at most ulp^2 / 4, so six standard deviations of the mean of 4096
      // sums of 200 roundings are 6 sqrt(200 / 4 / 4096) ulp.
      if (how == LowPrecision::stochastic)
        CHECK(std::abs(mean - expected) < 6 * ulp * std::sqrt(200 / 4.0 / 4096));
      if (how == LowPrecision::stochastic) CHECK(mean != expected);
    }
  }
}

TEST_CASE("stochastic rounding: every random number counts, and the mean is exact") {
  const auto mean = []<class T>(float x) {
    double sum = 0;
    for (std::uint32_t r = 0; r < 0x10000; ++r)
      sum += static_cast<double>(static_cast<float>(kernels::round_stochastically<T>(x, r)));
    return sum / 0x10000;
  };
  for (const float x : {1.0f, 1.00001f, -3.14159265f, 0x1.fffffep20f, 1e-30f, -1e-39f, 0.0f, 0x1.234568p-14f})
    CHECK(mean.operator()<BFloat16>(x) == static_cast<double>(x));
  for (const float x : {1.0f, 1.00001f, -3.14159265f, 60000.123f, 0x1.234568p-14f, 0.0f, 0x1p-24f})
    CHECK(mean.operator()<Half>(x) == static_cast<double>(x));
  // Subnormal f16: the mean is at most 2^-16 units of 2^-24 too large.
  for (const float x : {0x1.234568p-15f, 0x1.fffffep-16f, 0x1.8p-26f, -0x1.777776p-18f, 1e-30f}) {
    CHECK(std::abs(mean.operator()<Half>(x)) >= std::abs(static_cast<double>(x)));
    CHECK(std::abs(mean.operator()<Half>(x)) <= std::abs(static_cast<double>(x)) + 0x1p-40);
  }
  // Only the two neighbours occur.
  for (std::uint32_t r = 0; r < 0x10000; r += 0xff) {
    const float y = static_cast<float>(kernels::round_stochastically<BFloat16>(1 + 0x1.3p-9f, r));
    CHECK((y == 1.0f || y == 1 + 0x1p-7f));
  }
  // Overflow, infinities and NaN.
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t r : {0u, 0x1fffu, 0xffffu}) {
    CHECK(static_cast<float>(kernels::round_stochastically<Half>(70000.0f, r)) == infinity);
    CHECK(static_cast<float>(kernels::round_stochastically<Half>(-infinity, r)) == -infinity);
    CHECK(static_cast<float>(kernels::round_stochastically<BFloat16>(infinity, r)) == infinity);
    CHECK(std::isnan(static_cast<float>(kernels::round_stochastically<Half>(infinity - infinity, r))));
    CHECK(std::isnan(
        static_cast<float>(kernels::round_stochastically<BFloat16>(std::bit_cast<float>(0x7f800001u), r))));
    CHECK(static_cast<float>(kernels::round_stochastically<Half>(65504.0f, r)) == 65504.0f);
  }
  CHECK(static_cast<float>(kernels::round_stochastically<Half>(65520.0f, 0)) == 65504.0f);
  CHECK(static_cast<float>(kernels::round_stochastically<Half>(65520.0f, 0x1fff)) == infinity);
}

TEST_CASE("stochastic rounding: random bits are uniform, and differ between parameters, elements and steps") {
  double sum = 0;
  int equal_steps = 0, equal_parameters = 0, equal_neighbours = 0;
  constexpr int kCount = 1 << 15;
  const auto bits = [](std::uint64_t parameter, std::uint64_t step, std::int64_t element) {
    return kernels::rounding_bits(
        kernels::rounding_words(parameter, step, static_cast<std::uint64_t>(element / 8)), element);
  };
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::uint32_t own = bits(0, 1, i);
    sum += own;
    equal_steps += own == bits(0, 2, i);
    equal_parameters += own == bits(1, 1, i);
    equal_neighbours += own == bits(0, 1, i + 1);
  }
  // The standard deviation of the mean is 65536 / sqrt(12 * 32768) = 105.
  CHECK(std::abs(sum / kCount - 32767.5) < 6 * 105);
  CHECK(equal_steps < 10);
  CHECK(equal_parameters < 10);
  CHECK(equal_neighbours < 10);
}

TEST_CASE("stochastic rounding repeats, whatever the number of threads, and goes on after a restart") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const auto train = [&](const std::vector<nn::Parameter>& params, optim::Optimizer& optimizer, int from,
                           int to) {
      for (int step = from; step < to; ++step) {
        set_gradients(params, step);
        optimizer.step();
      }
    };
    const auto a = parameters(DType::bf16), b = parameters(DType::bf16), c = parameters(DType::bf16);
    const auto first = kind.make(a, LowPrecision::stochastic);
    train(a, *first, 0, 4);
    {
      const int threads = get_num_threads();
      set_num_threads(3);
      train(b, *kind.make(b, LowPrecision::stochastic), 0, 4);
      set_num_threads(threads);
    }
    const auto before = kind.make(c, LowPrecision::stochastic);
    train(c, *before, 0, 2);
    const auto after = kind.make(c, LowPrecision::stochastic);
    after->load_state_dict(before->state_dict());
    train(c, *after, 2, 4);
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK(same(a[i]->detach(), b[i]->detach()));
      CHECK(same(a[i]->detach(), c[i]->detach()));
    }
    CHECK(nn::find(first->state_dict(), "state.0.master_param") == nullptr);
    for (const auto& [key, value] : first->state_dict())
      if (value.dim() > 0) CHECK(value.dtype() == DType::f32);
  }
}

TEST_CASE("masters are saved, loaded, and follow changes of the parameters") {
  const auto a = parameters(DType::bf16), b = parameters(DType::bf16);
  optim::AdamW first(a, {.lr = 1e-4}), other(b, {.lr = 1e-4});
  const auto step = [](const std::vector<nn::Parameter>& params, optim::Optimizer& optimizer, int at) {
    set_gradients(params, at);
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step(a, first, i);
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < 2; ++i) b[i]->copy_(a[i]->detach());
  other.load_state_dict(first.state_dict());
  for (int i = 3; i < 6; ++i) step(a, first, i), step(b, other, i);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(same(a[i]->detach(), b[i]->detach()));
    const std::string key = concat({"state.", i, ".master_param"});
    CHECK(same(*nn::find(first.state_dict(), key), *nn::find(other.state_dict(), key)));
  }
  // A value that is put back, as AveragedModel's Scope does, leaves the master alone. Another value replaces
  // it.
  const Tensor old = a[0]->detach().clone(), master = *nn::find(first.state_dict(), "state.0.master_param");
  a[0]->detach().zero_();
  a[0]->detach().copy_(old);
  a[0]->detach().narrow(0, 1, 1).fill_(0.5);
  a[0]->set_grad(zeros_like(old));
  first.set_lr(0);
  first.step();
  const Tensor now = *nn::find(first.state_dict(), "state.0.master_param");
  CHECK(same(now.narrow(0, 0, 1), master.narrow(0, 0, 1)));
  CHECK(same(now.narrow(0, 2, 7), master.narrow(0, 2, 7)));
  CHECK(same(now.narrow(0, 1, 1), full({1, 500}, 0.5)));

  // A state with masters does not fit an optimizer without them; one without masters begins with the
  // parameters.
  optim::AdamW stochastic(parameters(DType::bf16), {.low_precision = LowPrecision::stochastic});
  CHECK_THROWS_WITH(stochastic.load_state_dict(first.state_dict()),
                    ContainsSubstring("unexpected: state.0.master_param"));
  const auto wide = parameters(DType::f32), fresh = parameters(DType::bf16);
  optim::AdamW of_wide(wide, {.lr = 1e-4}), of_low(fresh, {});
  set_gradients(wide, 0);
  of_wide.step();
  of_low.load_state_dict(of_wide.state_dict());
  step(fresh, of_low, 1);
  CHECK(nn::find(of_low.state_dict(), "state.0.master_param") != nullptr);
  CHECK(nn::find(of_low.state_dict(), "state.0.exp_avg")->dtype() == DType::f32);
}

TEST_CASE("parameters that change their dtype get and lose masters; f64 and f32 have none") {
  nn::Linear net({.in_features = 3, .out_features = 2});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto step = [&](DType dtype) {
    optimizer.zero_grad();
    mean(net(ones({4, 3}, {dtype, kCPU}))).backward();
    optimizer.step();
    return optimizer.state_dict();
  };
  CHECK(nn::find(step(DType::f32), "state.0.master_param") == nullptr);
  net.to(DType::bf16);
  CHECK(nn::find(step(DType::bf16), "state.0.master_param")->dtype() == DType::f32);
  net.to(DType::f64);
  const nn::StateDict state = step(DType::f64);
  CHECK(nn::find(state, "state.0.master_param") == nullptr);
  CHECK(nn::find(state, "state.0.momentum_buffer")->dtype() == DType::f64);
}

TEST_CASE("shards are rounded like the whole parameter") {
  for (const LowPrecision how : {LowPrecision::stochastic, LowPrecision::master}) {
    const auto whole = parameters(DType::bf16);
    optim::AdamW optimizer(whole, {.low_precision = how});
    for (int step = 0; step < 3; ++step) {
      set_gradients(whole, step);
      optimizer.step();
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto sharded = parameters(DType::bf16);
      for (nn::Parameter slot : sharded) test::cut(slot, std::make_shared<test::SilentRanks>(rank, 2), 0);
      optim::AdamW own(sharded, {.low_precision = how});
      for (int step = 0; step < 3; ++step) {
        const auto full = parameters(DType::bf16);
        set_gradients(full, step);
        for (std::size_t i = 0; i < 2; ++i) {
          const nn::Layout& layout = *sharded[i].layout();
          layout.stored(0).set_grad(layout.region(0).of(full[i]->grad()).clone());
        }
        own.step();
      }
      for (std::size_t i = 0; i < 2; ++i) {
        const nn::Layout& layout = *sharded[i].layout();
        CHECK(same(layout.stored(0).detach(), layout.region(0).of(whole[i]->detach())));
      }
    }
  }
}

TEST_CASE("Muon trains masters, and refuses stochastic rounding") {
  const auto train = [](DType dtype) {
    const nn::Parameter p("p", formula({6, 4}, 1).to(DType::bf16).to(dtype));
    optim::Muon optimizer({p}, {.lr = 1e-4});
    for (int step = 0; step < 20; ++step) {
      p->set_grad(formula({6, 4}, step + 2).to(DType::bf16).to(dtype));
      optimizer.step();
    }
    return p->detach();
  };
  CHECK(same(train(DType::bf16), train(DType::f32).to(DType::bf16)));
  CHECK_FALSE(same(train(DType::bf16), formula({6, 4}, 1).to(DType::bf16)));
  const std::vector<nn::Parameter> p{nn::Parameter("p", zeros({2, 2}, {DType::bf16, kCPU}))};
  CHECK_THROWS_WITH(optim::Muon(p, {.low_precision = LowPrecision::stochastic}),
                    ContainsSubstring("no kernel that rounds stochastically"));
}

namespace {

// Least squares whose Hessian has the eigenvalues 1 to 36. The optimum is no bf16 number.
struct LeastSquares {
  nn::Parameter a, b;
  Tensor scale = cat({linspace(1, 3, 6), linspace(4, 6, 5)}), optimum = formula({11}, 3) + 1.1;
  explicit LeastSquares(DType dtype)
      : a("a", zeros({2, 3}, {dtype, kCPU})), b("b", zeros({5}, {dtype, kCPU})) {}
  Tensor at(const Tensor& x) const { return ((x - optimum) * scale).square().sum(); }
  Tensor loss() const { return at(cat({a->reshape({6}), b.tensor()}).to(DType::f32)); }
  optim::LBFGS::Closure closure(optim::LBFGS& optimizer) const {
    return [this, &optimizer] {
      optimizer.zero_grad();
      const Tensor value = loss();
      value.backward();
      return value;
    };
  }
};

}  // namespace

TEST_CASE("LBFGS trains masters: it finds the optimum that f16 and bf16 can hold, and steps repeat") {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto search : {optim::LineSearch::none, optim::LineSearch::strong_wolfe}) {
      CAPTURE(dtype, int(search));
      const LeastSquares f(dtype), g(dtype);
      const optim::LBFGS::Options options{.lr = 1, .max_iter = 4, .line_search_fn = search};
      optim::LBFGS first({f.a, f.b}, options), second({g.a, g.b}, options);
      const auto repeats = [&] {
        const NoGradGuard no_grad;
        g.a->copy_(f.a);
        g.b->copy_(f.b);
        second.load_state_dict(first.state_dict());
      };
      for (int step = 0; step < 12; ++step) {
        first.step(f.closure(first));
        if (step == 3) repeats();
        if (step > 3) second.step(g.closure(second));
      }
      CHECK(same(f.a->detach(), g.a->detach()));
      CHECK(same(f.b->detach(), g.b->detach()));
      // Elements at their nearest values have an error of at most half an ulp; 2 ulps are allowed.
      const double best = f.at(f.optimum.to(dtype).to(DType::f32)).item();
      CHECK(f.loss().item() <= 16 * best);
      const nn::StateDict state = first.state_dict();
      for (const auto& [key, p] : {std::pair("state.0.master_param", f.a), {"state.1.master_param", f.b}}) {
        const Tensor* const master = nn::find(state, key);
        REQUIRE(master != nullptr);
        CHECK(master->dtype() == DType::f32);
        CHECK(same(master->to(dtype), p->detach()));
        CHECK_FALSE(same(*master, p->detach().to(DType::f32)));
      }
      CHECK(nn::find(state, "state.0.d")->dtype() == DType::f32);
      // No pair of changes without a correct digit is kept: each has a positive product.
      const Tensor* const ro = nn::find(state, "state.0.ro");
      REQUIRE(ro != nullptr);
      CHECK(ro->numel() > 0);
      CHECK(all(*ro > 0).item() != 0);

      // A value that someone else writes replaces the master; the others stay.
      const Tensor before = *nn::find(state, "state.1.master_param");
      f.b->detach().narrow(0, 2, 1).fill_(0.5);
      first.set_lr(0);
      first.step(f.closure(first));
      const Tensor after = *nn::find(first.state_dict(), "state.1.master_param");
      CHECK(after.select(0, 2).item() == 0.5);
      CHECK(same(after.narrow(0, 0, 2), before.narrow(0, 0, 2)));

      nn::StateDict bad = state;
      for (auto& [key, value] : bad)
        if (key == "state.1.master_param") value = zeros({4});
      CHECK_THROWS_WITH(second.load_state_dict(bad), ContainsSubstring("state.1.master_param has shape [4]"));
      bad.emplace_back("state.7.master_param", zeros({1}));
      const LeastSquares wide(DType::f32);
      optim::LBFGS third({wide.a, wide.b});
      CHECK_THROWS_WITH(third.load_state_dict(state), ContainsSubstring("unexpected tensors"));
    }
}

TEST_CASE("LBFGS keeps a bf16 parameter moving where rounding to nearest would stop it") {
  // Each step moves by 0.1, and the neighbours of 256 are 255 and 258.
  const nn::Parameter p("p", full({1}, 256.0, {DType::bf16, kCPU}));
  optim::LBFGS optimizer({p}, {.lr = 0.05, .max_iter = 1});
  for (int step = 0; step < 60; ++step)
    optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor value = (p->to(DType::f32) - 258.0).square().sum() * 0.5;
      value.backward();
      return value;
    });
  CHECK(p->item() == 258);
}

TEST_CASE("LBFGS does not learn curvature from gradients that differ by their rounding") {
  // The product of the changes is 1 ulp times the step, and the two roundings contribute up to 1 ulp.
  const auto pairs = [](DType dtype, double first, double second) {
    const nn::Parameter p("p", zeros({1}, {dtype, kCPU}));
    optim::LBFGS optimizer({p}, {.max_iter = 1});
    for (const double gradient : {first, second})
      optimizer.step([&] {
        p->set_grad(full({1}, gradient, {dtype, kCPU}));
        return full({}, gradient);
      });
    return nn::find(optimizer.state_dict(), "state.0.ro")->numel();
  };
  CHECK(pairs(DType::bf16, 258, 256) == 0);
  CHECK(pairs(DType::bf16, 258, 250) == 1);
  CHECK(pairs(DType::f16, 1025, 1024) == 0);
  CHECK(pairs(DType::f16, 1025, 1021) == 1);
  CHECK(pairs(DType::f32, 1025, 1024) == 1);
}
