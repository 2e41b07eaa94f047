// Compares Muon and LBFGS with PyTorch's (tests/golden/nn.py), and tests their states and errors.
#include <cmath>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

const std::vector<Shape> kShapes = {{6, 4}, {3, 5}, {4, 4}};

struct Matrices {
  std::vector<nn::Parameter> params;
  Matrices() {
    for (std::size_t k = 0; k < kShapes.size(); ++k)
      params.emplace_back("p", formula(kShapes[k], 1 + static_cast<int>(k)));
  }
  void train(optim::Optimizer& optimizer, int begin, int end) const {
    for (int step = begin; step < end; ++step) {
      for (std::size_t k = 0; k < params.size(); ++k)
        params[k]->set_grad(formula(kShapes[k], 100 * static_cast<int>(k) + step));
      optimizer.step();
    }
  }
};

void check_muon(const std::string& label, const optim::Muon::Options& options, double tolerance = 1e-12) {
  static const NnGolden golden("muon");
  INFO(label);
  const Matrices m;
  optim::Muon optimizer(m.params, options);
  m.train(optimizer, 0, 8);
  const nn::StateDict state = optimizer.state_dict();
  for (std::size_t k = 0; k < m.params.size(); ++k) {
    const std::string n = std::to_string(k);
    CHECK(difference(m.params[k], golden.at(label + "/p/" + n), tolerance) == "");
    CHECK(difference(*nn::find(state, "state." + n + ".momentum_buffer"), golden.at(label + "/state/" + n),
                     1e-14) == "");
  }
}

// Rosenbrock's function of eight variables.
struct Rosenbrock {
  nn::Parameter a{"a", formula({2, 2}, 1, 3)}, b{"b", formula({4}, 2, 3)};
  double sign = 1;
  std::vector<nn::Parameter> both() const { return {a, b}; }
  Tensor loss() const {
    const Tensor x = cat({a->reshape({4}), b}), left = x.narrow(0, 0, 7), right = x.narrow(0, 1, 7);
    const Tensor step = right - left * left;
    return (step * step * 10 + (1 - left) * (1 - left)).sum() * sign;
  }
  optim::LBFGS::Closure closure(optim::LBFGS& optimizer) const {
    return [this, &optimizer] {
      optimizer.zero_grad();
      const Tensor value = loss();
      value.backward();
      return value;
    };
  }
};

void check_lbfgs(const std::string& label, const optim::LBFGS::Options& options) {
  static const NnGolden golden("lbfgs");
  INFO(label);
  Rosenbrock f;
  if (options.maximize) f.sign = -1;
  optim::LBFGS optimizer(f.both(), options);
  const Record& losses = golden.at(label + "/losses");
  // The curvature of the function amplifies rounding errors from step to step.
  constexpr double tolerance = 1e-8;
  for (const double wanted : losses.values)
    CHECK(optimizer.step(f.closure(optimizer)).item() == Approx(wanted).epsilon(tolerance).margin(1e-12));
  CHECK(difference(f.a, golden.at(label + "/a"), tolerance) == "");
  CHECK(difference(f.b, golden.at(label + "/b"), tolerance) == "");
  const nn::StateDict state = optimizer.state_dict();
  const Record& counts = golden.at(label + "/counts");
  CHECK(nn::find(state, "state.0.func_evals")->item() == counts.values[0]);
  CHECK(nn::find(state, "state.0.n_iter")->item() == counts.values[1]);
  CHECK(difference(*nn::find(state, "state.0.d"), golden.at(label + "/d"), 1e-6) == "");
}

constexpr auto kWolfe = optim::LineSearch::strong_wolfe;

}  // namespace

TEST_CASE("Muon follows PyTorch's") {
  check_muon("default", {.bf16 = false});
  check_muon("plain", {.lr = 0.1, .weight_decay = 0, .momentum = 0.8, .nesterov = false, .bf16 = false});
  check_muon("adamw",
             {.lr = 0.1, .ns_steps = 3, .adjust_lr_fn = optim::AdjustLr::match_rms_adamw, .bf16 = false});
  check_muon("spectral", {.lr = 0.1,
                          .ns_coefficients = {2, -1.5, 0.5},
                          .eps = 0.1,
                          .adjust_lr_fn = optim::AdjustLr::spectral_unclamped,
                          .bf16 = false});
  // The iteration amplifies rounding errors of bf16 in the directions of small singular values. The second
  // matrix has such a direction: each of the 8 updates of about lr = 1e-3 may differ by a fifth.
  check_muon("bf16", {}, 8 * 1e-3 * 0.2);
}

TEST_CASE("Muon: maximize is the negated gradient, and a restored optimizer continues with the same bits") {
  const Matrices p, q;
  optim::Muon first(p.params, {.lr = 0.1}), second(q.params, {.lr = 0.3});
  p.train(first, 0, 3);
  second.load_state_dict(first.state_dict());
  CHECK(second.lr() == 0.1);
  {
    const NoGradGuard no_grad;
    for (std::size_t k = 0; k < kShapes.size(); ++k) q.params[k]->copy_(p.params[k]);
  }
  p.train(first, 3, 6);
  q.train(second, 3, 6);
  for (std::size_t k = 0; k < kShapes.size(); ++k) CHECK(values_of(p.params[k]) == values_of(q.params[k]));

  const nn::Parameter up("p", formula({3, 4}, 1)), down("p", formula({3, 4}, 1));
  up->set_grad(formula({3, 4}, 9));
  down->set_grad(-formula({3, 4}, 9));
  optim::Muon({up}, {.maximize = true}).step();
  optim::Muon({down}).step();
  CHECK(values_of(up) == values_of(down));
}

TEST_CASE("Muon refuses parameters that are not matrices") {
  CHECK_THROWS_WITH(optim::Muon({nn::Parameter("b", zeros({3}))}),
                    ContainsSubstring("a parameter has shape [3]; Muon trains 2-d weights only"));
  const nn::Parameter w("w", zeros({2, 3}));
  CHECK_THROWS_WITH(optim::Muon({w}, {.ns_steps = 100}), ContainsSubstring("ns_steps"));
  CHECK_THROWS_WITH(optim::Muon({w}, {.momentum = -1}), ContainsSubstring("momentum"));
  const nn::Parameter empty("e", zeros({0, 3}));
  empty->set_grad(zeros({0, 3}));
  CHECK_NOTHROW(optim::Muon({empty}).step());
}

TEST_CASE("LBFGS follows PyTorch's") {
  check_lbfgs("fixed", {.lr = 0.01});
  check_lbfgs("fixed_options", {.lr = 0.02, .max_iter = 6, .max_eval = 5, .history_size = 2});
  check_lbfgs("wolfe", {.line_search_fn = kWolfe});
  check_lbfgs("wolfe_options",
              {.lr = 0.9, .max_iter = 4, .max_eval = 9, .history_size = 3, .line_search_fn = kWolfe});
  check_lbfgs("wolfe_maximize", {.max_iter = 5, .line_search_fn = kWolfe, .maximize = true});
  check_lbfgs("tolerance", {.tolerance_change = 0.5, .line_search_fn = kWolfe});
}

TEST_CASE("LBFGS: a restored optimizer continues with the same bits") {
  const Rosenbrock f, g;
  const optim::LBFGS::Options options{.lr = 0.5, .max_iter = 3, .line_search_fn = kWolfe};
  optim::LBFGS first(f.both(), options), second(g.both(), options);
  second.load_state_dict(first.state_dict());  // the state of an optimizer that has made no step
  for (int step = 0; step < 3; ++step) first.step(f.closure(first));
  second.load_state_dict(first.state_dict());
  {
    const NoGradGuard no_grad;
    g.a->copy_(f.a);
    g.b->copy_(f.b);
  }
  for (int step = 0; step < 2; ++step) {
    first.step(f.closure(first));
    second.step(g.closure(second));
  }
  CHECK(values_of(f.a) == values_of(g.a));
  CHECK(values_of(f.b) == values_of(g.b));

  const nn::StateDict good = first.state_dict();
  const auto refused = [&](const std::string& key, const Tensor& value) {
    nn::StateDict bad = good;
    std::erase_if(bad, [&](const auto& entry) { return entry.first == key; });
    if (value.defined()) bad.emplace_back(key, value);
    CHECK_THROWS_WITH(first.load_state_dict(bad), ContainsSubstring("nothing was loaded"));
  };
  refused("state.0.d", {});
  refused("state.0.d", zeros({7}, DType::f64));
  refused("state.0.n_iter", scalar_tensor(std::int64_t{-1}));
  refused("state.0.n_iter", scalar_tensor(1.0));
  refused("state.0.old_dirs.0", {});
  refused("state.0.other", zeros({1}));
  nn::StateDict negative = good;
  negative[0].second = scalar_tensor(-1.0);
  CHECK_THROWS_WITH(first.load_state_dict(negative), ContainsSubstring("lr must not be negative but is -1"));
  CHECK(first.lr() == 0.5);
}

TEST_CASE("LBFGS stops at a minimum, and refuses a step without a closure") {
  const nn::Parameter w("w", zeros({3}, DType::f64));
  optim::LBFGS optimizer({w});
  int calls = 0;
  const Tensor loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    const Tensor value = (w.tensor() * w.tensor()).sum();
    value.backward();
    return value;
  });
  CHECK(calls == 1);
  CHECK(loss.item() == 0);
  CHECK_THROWS_WITH(static_cast<optim::Optimizer&>(optimizer).step(),
                    ContainsSubstring("call step(closure)"));
  CHECK_THROWS_WITH(optimizer.step([] { return zeros({2}); }), ContainsSubstring("a loss of shape [2]"));
  CHECK_THROWS_WITH(optimizer.add_param_group({{nn::Parameter("v", zeros({1}))}, {}}),
                    ContainsSubstring("LBFGS has one group"));
  CHECK_THROWS_WITH(optim::LBFGS({w}, {.max_iter = 0}), ContainsSubstring("max_iter"));
  CHECK_THROWS_WITH(optim::LBFGS({w}, {.history_size = 0}), ContainsSubstring("history_size"));
}
