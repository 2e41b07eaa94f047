// Compares optimizers with PyTorch's over 25 steps (tests/golden/nn.py), and tests their other functions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

constexpr double kTolerance = 1e-13;

const NnGolden& golden() {
  static const NnGolden recorded("optim");
  return recorded;
}
std::set<std::string>& tested() {
  static std::set<std::string> labels;
  return labels;
}

struct TwoParameters {
  nn::Parameter a{"a", formula({5, 3}, 1)}, b{"b", formula(7, 2)};
  std::vector<nn::Parameter> both() const { return {a, b}; }
  // Sets the same gradients as tests/golden/nn.py. `b` has no gradient in every fourth step.
  void set_grads(int step) const {
    a->set_grad(formula({5, 3}, 1000 + step));
    b->set_grad(step % 4 == 2 ? Tensor() : formula(7, 2000 + step) + 0.25);
  }
};

void run(const std::string& label, const TwoParameters& p, optim::Optimizer& optimizer) {
  INFO(label);
  tested().insert(label);
  for (int step = 0; step < 25; ++step) {
    p.set_grads(step);
    optimizer.step();
    if (step != 0 && step != 4 && step != 24) continue;
    CHECK(difference(p.a, golden().at(label + "/a/" + std::to_string(step)), kTolerance) == "");
    CHECK(difference(p.b, golden().at(label + "/b/" + std::to_string(step)), kTolerance) == "");
  }
  const auto recorded = golden().under(label + "/state/");
  const nn::StateDict state = optimizer.state_dict();
  for (const auto& [key, value] : recorded) {
    std::string name = "state." + key;
    name.replace(name.find('/'), 1, ".");
    INFO(name);
    const Tensor* t = nn::find(state, name);
    REQUIRE(t != nullptr);
    CHECK(difference(*t, value, kTolerance) == "");
  }
}

template <class T>
void check_one(const std::string& label, const typename T::Options& options) {
  const TwoParameters p;
  T optimizer(p.both(), options);
  run(label, p, optimizer);
}

void check_sgd(const std::string& label, const optim::SGD::Options& options) {
  const TwoParameters p;
  optim::SGD optimizer(p.both(), options);
  run("sgd_" + label, p, optimizer);
}

template <class T>
void check_adams(const std::string& kind) {
  const auto check_kind = [&](const std::string& label, const typename T::Options& options) {
    check_one<T>(kind + "_" + label, options);
  };
  check_kind("default", {});
  check_kind("lr", {.lr = 0.05});
  check_kind("betas", {.lr = 0.05, .betas = {0.7, 0.95}});
  check_kind("eps", {.lr = 0.05, .eps = 0.1});
  check_kind("decay", {.lr = 0.05, .weight_decay = 0.3});
  check_kind("no_decay", {.lr = 0.05, .weight_decay = 0});
  check_kind("amsgrad", {.lr = 0.05, .betas = {0.5, 0.6}, .amsgrad = true});
  check_kind("maximize", {.lr = 0.05, .maximize = true});
  check_kind("all",
             {.lr = 0.02, .betas = {0.8, 0.9}, .weight_decay = 0.1, .amsgrad = true, .maximize = true});
}

}  // namespace

TEST_CASE("SGD gives PyTorch's steps for every option") {
  check_sgd("plain", {.lr = 0.1});
  check_sgd("default", {});
  check_sgd("momentum", {.lr = 0.1, .momentum = 0.9});
  check_sgd("dampening", {.lr = 0.1, .momentum = 0.9, .dampening = 0.4});
  check_sgd("nesterov", {.lr = 0.1, .momentum = 0.9, .nesterov = true});
  check_sgd("decay", {.lr = 0.1, .weight_decay = 0.2});
  check_sgd("maximize", {.lr = 0.1, .maximize = true});
  check_sgd("all", {.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .maximize = true});
  check_sgd("damped_decay", {.lr = 0.05, .momentum = 0.8, .dampening = 0.2, .weight_decay = 0.1});
}

TEST_CASE("Adam gives PyTorch's steps for every option") { check_adams<optim::Adam>("adam"); }
TEST_CASE("AdamW gives PyTorch's steps for every option") { check_adams<optim::AdamW>("adamw"); }

TEST_CASE("RMSprop") {
  using T = optim::RMSprop;
  check_one<T>("rmsprop_default", {});
  check_one<T>("rmsprop_alpha", {.alpha = 0.7, .eps = 0.1});
  check_one<T>("rmsprop_decay", {.weight_decay = 0.3});
  check_one<T>("rmsprop_momentum", {.momentum = 0.9});
  check_one<T>("rmsprop_centered", {.centered = true});
  check_one<T>("rmsprop_maximize", {.maximize = true});
  check_one<T>(
      "rmsprop_all",
      {.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8, .centered = true, .maximize = true});
}

TEST_CASE("Adagrad") {
  using T = optim::Adagrad;
  check_one<T>("adagrad_default", {});
  check_one<T>("adagrad_lr_decay", {.lr = 0.1, .lr_decay = 0.2});
  check_one<T>("adagrad_eps", {.eps = 0.1});
  check_one<T>("adagrad_initial", {.lr = 0.1, .initial_accumulator_value = 0.5});
  check_one<T>("adagrad_maximize", {.maximize = true});
  check_one<T>(
      "adagrad_all",
      {.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.2, .initial_accumulator_value = 0.1, .maximize = true});
}

TEST_CASE("Adadelta") {
  using T = optim::Adadelta;
  check_one<T>("adadelta_default", {});
  check_one<T>("adadelta_options", {.lr = 0.5, .rho = 0.75, .eps = 1e-3, .weight_decay = 0.1});
  check_one<T>("adadelta_maximize", {.maximize = true});
}

TEST_CASE("Adamax") {
  using T = optim::Adamax;
  check_one<T>("adamax_default", {});
  check_one<T>("adamax_betas", {.betas = {0.7, 0.6}});
  check_one<T>("adamax_eps", {.lr = 0.05, .eps = 0.1});
  check_one<T>("adamax_all", {.lr = 0.05, .betas = {0.8, 0.9}, .weight_decay = 0.1, .maximize = true});
}

TEMPLATE_TEST_CASE("NAdam and RAdam", "", optim::NAdam, optim::RAdam) {
  const std::string kind = std::is_same_v<TestType, optim::NAdam> ? "nadam_" : "radam_";
  check_one<TestType>(kind + "default", {});
  check_one<TestType>(kind + "betas", {.lr = 0.05, .betas = {0.7, 0.8}});
  check_one<TestType>(kind + "eps", {.lr = 0.05, .eps = 0.1});
  check_one<TestType>(kind + "decay", {.lr = 0.05, .weight_decay = 0.3});
  check_one<TestType>(kind + "decoupled", {.lr = 0.05, .weight_decay = 0.3, .decoupled_weight_decay = true});
  check_one<TestType>(kind + "all", {.lr = 0.02,
                                     .betas = {0.8, 0.9},
                                     .weight_decay = 0.1,
                                     .decoupled_weight_decay = true,
                                     .maximize = true});
}
TEST_CASE("NAdam's momentum decay") {
  check_one<optim::NAdam>("nadam_momentum_decay", {.lr = 0.05, .momentum_decay = 0.1});
}

TEST_CASE("Lion follows the paper's algorithm") {
  using T = optim::Lion;
  check_one<T>("lion_default", {});
  check_one<T>("lion_betas", {.lr = 0.01, .betas = {0.5, 0.7}});
  check_one<T>("lion_decay", {.lr = 0.01, .weight_decay = 0.3});
  check_one<T>("lion_maximize", {.lr = 0.01, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("each parameter group uses its own options") {
  const TwoParameters p;
  optim::SGD optimizer({{{p.a}, {.lr = 0.1, .momentum = 0.9}}, {{p.b}, {.lr = 0.01, .momentum = 0.5}}});
  CHECK(optimizer.num_groups() == 2);
  CHECK(optimizer.lr(1) == 0.01);
  run("sgd_groups", p, optimizer);
}

TEST_CASE("all recorded optimizers are tested") {
  if (tested().size() < 60) return;  // skip the check if only some tests of this file run
  std::set<std::string> recorded;
  for (const auto& [key, record] : golden().under("")) recorded.insert(key.substr(0, key.find('/')));
  CHECK(recorded == tested());
}

TEMPLATE_TEST_CASE("an f32 step is close to the f64 step, also in the last elements of a block", "",
                   optim::RMSprop, optim::Adagrad, optim::Adadelta, optim::Adamax, optim::NAdam,
                   optim::RAdam) {
  // 4099 elements fill one block of the kernel and a part of another. The gradients are well above eps, so
  // that each step changes a weight by about lr, with a relative error of a few f32 units.
  const nn::Parameter narrow("p", formula({4099}, 7, 1, DType::f32)), wide("p", formula({4099}, 7));
  typename TestType::Options options;
  options.lr = 0.01;
  TestType first({narrow}, options), second({wide}, options);
  for (int step = 0; step < 8; ++step) {
    const Tensor grad = formula({4099}, 3) + (formula({4099}, 3) > 0).to(DType::f64) * 0.5 - 0.25;
    narrow->set_grad(grad.to(DType::f32));
    wide->set_grad(grad);
    first.step();
    second.step();
  }
  CHECK(distance(values_of(narrow), values_of(wide)) < 8 * 20 * 1.2e-7);
}

TEST_CASE("f32 stays close to f64") {
  for (const bool adam : {false, true}) {
    const nn::Parameter narrow("p", formula({300, 41}, 7, 1, DType::f32)), wide("p", formula({300, 41}, 7));
    std::unique_ptr<optim::Optimizer> first, second;
    if (adam) {
      first = std::make_unique<optim::AdamW>(std::vector{narrow});
      second = std::make_unique<optim::AdamW>(std::vector{wide});
    } else {
      const optim::SGD::Options options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
      first = std::make_unique<optim::SGD>(std::vector{narrow}, options);
      second = std::make_unique<optim::SGD>(std::vector{wide}, options);
    }
    for (int step = 0; step < 20; ++step) {
      narrow->set_grad(formula({300, 41}, step, 1, DType::f32));
      wide->set_grad(formula({300, 41}, step));
      first->step();
      second->step();
    }
    // Each step adds rounding errors of a few f32 units to weights near 1. With a momentum of 0.9, ten such
    // errors add up.
    CHECK(distance(values_of(narrow), values_of(wide)) < 20 * 10 * 1.2e-7);
  }
}

TEST_CASE("a step gives the same bits for any number of threads and any other parameters") {
  const auto train = [](int threads, const std::vector<Shape>& sizes) {
    const int before = get_num_threads();
    set_num_threads(threads);
    std::vector<nn::Parameter> params;
    for (const Shape& s : sizes) params.emplace_back("p", formula(s, 3, 1, DType::f32));
    optim::AdamW optimizer(params, {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      for (const nn::Parameter& p : params) p->set_grad(formula(p->sizes(), step, 1, DType::f32));
      optimizer.step();
    }
    set_num_threads(before);
    return values_of(params.back());
  };
  const std::vector<double> alone = train(1, {{50001}});
  CHECK(train(2, {{50001}}) == alone);
  CHECK(train(2, {{1}, {4096}, {0}, {4097}, {}, {50001}}) == alone);
}

TEST_CASE("channels-last parameters and transposed gradients step correctly") {
  const Tensor init = formula({2, 3, 4, 5}, 1), grad = formula({2, 3, 4, 5}, 2);
  const nn::Parameter plain("p", init.clone()), last("p", init.contiguous(MemoryFormat::channels_last));
  optim::SGD optimizer({plain, last}, {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 3; ++step) {
    plain->set_grad(grad.contiguous(MemoryFormat::channels_last));
    last->set_grad(grad);
    optimizer.step();
  }
  CHECK(equal(plain->detach(), last->detach().contiguous()));
  CHECK(last->is_contiguous(MemoryFormat::channels_last));

  nn::Parameter strided("p", formula({3, 4}, 1));
  strided.set_replica(0, formula({4, 3}, 1).t());
  strided->set_grad(formula({3, 4}, 1));
  optim::SGD other({strided}, {.lr = 0.1});
  CHECK_THROWS_WITH(other.step(), ContainsSubstring("not dense"));
}

TEST_CASE("backward through a parameter changed by step() is an error") {
  const nn::Parameter w("w", ones({3}, DType::f64));
  const Tensor y = (w.tensor() * w.tensor()).sum();
  w->set_grad(ones({3}, DType::f64));
  optim::SGD({w}, {.lr = 0.1}).step();
  CHECK_THROWS_AS(y.backward(), AutogradError);
}

TEST_CASE("gradients are scaled in the step") {
  const TwoParameters p, q;
  optim::Adam scaled(p.both(), {.lr = 0.1}), plain(q.both(), {.lr = 0.1});
  scaled.set_grad_scale(0.25);
  for (int step = 0; step < 3; ++step) {
    p.set_grads(step);
    q.set_grads(step);
    for (const auto& x : p.both())
      if (x->grad().defined()) x->set_grad(x->grad() * 4.0);
    scaled.step();
    plain.step();
  }
  CHECK(equal(p.a->detach(), q.a->detach()));
}

TEST_CASE("zero_grad() removes or zeroes gradients, and a step without gradients changes nothing") {
  const TwoParameters p;
  optim::SGD optimizer(p.both());
  p.set_grads(0);
  optimizer.zero_grad(false);
  CHECK(p.a->grad().abs().sum().item() == 0);
  optimizer.zero_grad();
  CHECK_FALSE(p.a->grad().defined());
  const std::vector<double> before = values_of(p.a);
  optimizer.step();  // no gradient exists, so step() must do nothing
  CHECK(values_of(p.a) == before);
}

TEST_CASE("a restored optimizer continues with the same bits") {
  const auto make = [](const TwoParameters& p, int kind) -> std::unique_ptr<optim::Optimizer> {
    if (kind == 0)
      return std::make_unique<optim::SGD>(p.both(), optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
    if (kind == 1)
      return std::make_unique<optim::Adam>(p.both(), optim::Adam::Options{.lr = 0.1, .amsgrad = true});
    if (kind == 2)
      return std::make_unique<optim::RMSprop>(p.both(), optim::RMSprop::Options{.lr = 0.1, .momentum = 0.9});
    if (kind == 3) return std::make_unique<optim::NAdam>(p.both(), optim::NAdam::Options{.lr = 0.1});
    if (kind == 4) return std::make_unique<optim::Lion>(p.both(), optim::Lion::Options{.lr = 0.1});
    return std::make_unique<optim::AdamW>(p.both());
  };
  for (const int kind : {0, 1, 2, 3, 4, 5}) {
    const TwoParameters p, q;
    const auto first = make(p, kind), second = make(q, kind);
    for (int step = 0; step < 5; ++step) {
      p.set_grads(step);
      first->step();
    }
    first->set_lr(0.03);
    second->load_state_dict(first->state_dict());
    CHECK(second->lr() == 0.03);
    {
      const NoGradGuard no_grad;
      q.a->copy_(p.a);
      q.b->copy_(p.b);
    }
    for (int step = 5; step < 12; ++step) {
      p.set_grads(step);
      q.set_grads(step);
      first->step();
      second->step();
    }
    CHECK(values_of(p.a) == values_of(q.a));
    CHECK(values_of(p.b) == values_of(q.b));
  }
}

TEST_CASE("a state dict that does not match changes nothing") {
  const TwoParameters p;
  optim::SGD optimizer(p.both(), {.lr = 0.1, .momentum = 0.9});
  p.set_grads(0);
  optimizer.step();
  const nn::StateDict good = optimizer.state_dict();
  const auto broken = [&](const std::string& key, const Tensor& value) {
    nn::StateDict dict = good;
    std::erase_if(dict, [&](const auto& entry) { return entry.first == key; });
    if (value.defined()) dict.emplace_back(key, value);
    dict[0].second = scalar_tensor(0.5, DType::f64);  // the failed load must not apply this value
    return dict;
  };
  REQUIRE(good[0].first == "groups.0.lr");
  const auto refused = [&](const std::string& key, const Tensor& value, const std::string& text) {
    CHECK_THROWS_WITH(optimizer.load_state_dict(broken(key, value)), ContainsSubstring(text));
    CHECK(optimizer.lr() == 0.1);
  };
  refused("groups.0.momentum", {}, "missing: groups.0.momentum");
  refused("groups.0.momentum", zeros({2}), "not a number: groups.0.momentum");
  refused("groups.0.momentum", scalar_tensor(-1.0), "momentum must not be negative");
  refused("groups.0.momentum", scalar_tensor(std::int64_t{0}),
          "not a floating-point number: groups.0.momentum is int64");
  refused("state.0.step", scalar_tensor(std::int64_t{1}),
          "not a floating-point number: state.0.step is int64");
  refused("groups.0.num_params", scalar_tensor(std::int64_t{3}), "has 3 parameters in the state and 2 here");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused("groups.0.num_params", scalar_tensor(nan, DType::f64), "has nan parameters in the state");
  for (const double steps : {nan, -1.0, std::numeric_limits<double>::infinity()})
    refused("state.0.step", scalar_tensor(steps, DType::f64), "not a number of steps: state.0.step is");
  refused("state.0.momentum_buffer", zeros({3, 5}), "expected [5, 3] but got [3, 5]");
  refused("state.0.momentum_buffer", {}, "state.0.momentum_buffer is missing");
  refused("state.2.step", scalar_tensor(1.0), "unexpected: state.2.step");
  refused("state.0.exp_avg", zeros({5, 3}), "unexpected: state.0.exp_avg");
  CHECK_NOTHROW(optimizer.load_state_dict(good));
}

TEST_CASE("optimizers refuse bad options and parameters by name") {
  const TwoParameters p;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.lr = -0.1}),
                    ContainsSubstring("[SGD] lr must not be negative but is -0.1"));
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.lr = nan}), ContainsSubstring("lr"));
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.momentum = -1}), ContainsSubstring("momentum"));
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.weight_decay = -1}), ContainsSubstring("weight_decay"));
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.nesterov = true}), ContainsSubstring("nesterov"));
  CHECK_THROWS_WITH(optim::SGD(p.both(), {.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
                    ContainsSubstring("nesterov"));
  CHECK_THROWS_WITH(optim::Adam(p.both(), {.betas = {1.0, 0.9}}), ContainsSubstring("betas"));
  CHECK_THROWS_WITH(optim::Adam(p.both(), {.betas = {0.9, -0.1}}), ContainsSubstring("betas"));
  CHECK_THROWS_WITH(optim::Adam(p.both(), {.eps = -1e-8}), ContainsSubstring("eps"));
  CHECK_THROWS_WITH(optim::AdamW(p.both(), {.weight_decay = -1}), ContainsSubstring("weight_decay"));
  CHECK_THROWS_WITH(optim::AdamW(p.both(), {.lr = -1}), ContainsSubstring("[AdamW] lr"));
  CHECK_THROWS_WITH(optim::RMSprop(p.both(), {.alpha = -1}), ContainsSubstring("[RMSprop] alpha"));
  CHECK_THROWS_WITH(optim::RMSprop(p.both(), {.momentum = -1}), ContainsSubstring("momentum"));
  CHECK_THROWS_WITH(optim::Adadelta(p.both(), {.rho = 2}), ContainsSubstring("[Adadelta] rho"));
  CHECK_THROWS_WITH(optim::Adagrad(p.both(), {.lr_decay = -1}), ContainsSubstring("[Adagrad] lr_decay"));
  CHECK_THROWS_WITH(optim::Adagrad(p.both(), {.initial_accumulator_value = nan}),
                    ContainsSubstring("initial_accumulator_value"));
  CHECK_THROWS_WITH(optim::Adamax(p.both(), {.eps = -1}), ContainsSubstring("[Adamax] eps"));
  CHECK_THROWS_WITH(optim::NAdam(p.both(), {.momentum_decay = -1}), ContainsSubstring("momentum_decay"));
  CHECK_THROWS_WITH(optim::RAdam(p.both(), {.betas = {1, 0}}), ContainsSubstring("[RAdam] betas"));
  CHECK_THROWS_WITH(optim::Lion(p.both(), {.lr = nan}), ContainsSubstring("[Lion] lr"));
  CHECK_THROWS_WITH(optim::SGD(std::vector<nn::Parameter>{}), ContainsSubstring("empty"));
  CHECK_THROWS_WITH(optim::SGD({p.a, p.b, p.a}, {.lr = 0.1}), ContainsSubstring("given twice"));
  CHECK_THROWS_WITH(optim::SGD({p.a, nn::Parameter()}, {.lr = 0.1}), ContainsSubstring("undefined"));
  optim::SGD optimizer(p.both());
  CHECK_THROWS_WITH(optimizer.set_lr(-1), ContainsSubstring("lr"));
  CHECK(optimizer.lr() == 1e-3);
  CHECK_THROWS_WITH(optimizer.option(0, "beta1"), ContainsSubstring("no option 'beta1'"));
  CHECK_THROWS_AS(optimizer.option(1, "lr"), IndexError);
  CHECK_THROWS_WITH(optimizer.add_param_group({{p.a}, {}}), ContainsSubstring("given twice"));
  CHECK(optimizer.num_groups() == 1);
}

TEST_CASE("an optimizer steps parameters that outlive their module") {
  std::unique_ptr<optim::SGD> optimizer;
  Tensor weight;
  {
    nn::Linear layer({.in_features = 2, .out_features = 2});
    optimizer = std::make_unique<optim::SGD>(layer.parameters(), optim::SGD::Options{.lr = 1});
    layer(ones({1, 2})).sum().backward();
    weight = layer.weight;
  }
  const Tensor before = weight.detach().clone();
  optimizer->step();
  CHECK(allclose(weight.detach(), before - 1.0));
}

TEST_CASE("clip_grad_norm_ scales gradients to the limit and returns the norm") {
  const TwoParameters p;
  p.a->set_grad(full({5, 3}, 2.0, DType::f64));
  p.b->set_grad(full(7, -3.0, DType::f64));
  const double norm = std::sqrt(15 * 4 + 7 * 9);
  SECTION("above the limit") {
    CHECK(nn::clip_grad_norm_(p.both(), 1).item() == Approx(norm).epsilon(1e-14));
    // As in PyTorch, the divisor is norm + 1e-6.
    CHECK(p.a->grad().norm().item() == Approx(std::sqrt(60.0) / (norm + 1e-6)).epsilon(1e-14));
    CHECK(p.b->grad().select(0, 0).item() == Approx(-3 / (norm + 1e-6)).epsilon(1e-14));
  }
  SECTION("below the limit nothing changes") {
    nn::clip_grad_norm_(p.both(), 100);
    CHECK(p.b->grad().select(0, 0).item() == -3);
  }
  SECTION("other norms") {
    CHECK(nn::clip_grad_norm_(p.both(), 1, 1).item() == Approx(30 + 21).epsilon(1e-14));
  }
  SECTION("the largest") {
    CHECK(nn::clip_grad_norm_(p.both(), 1.5, std::numeric_limits<double>::infinity()).item() == 3);
    CHECK(p.b->grad().select(0, 0).item() == Approx(-1.5).epsilon(1e-6));
  }
  SECTION("missing gradients") {
    p.a->set_grad({});
    CHECK(nn::clip_grad_norm_(p.both(), 1).item() == Approx(std::sqrt(63.0)));
    p.b->set_grad({});
    CHECK(nn::clip_grad_norm_(p.both(), 1).item() == 0);
  }
  SECTION("not finite") {
    p.a->grad().fill_(std::numeric_limits<double>::quiet_NaN());
    CHECK_THROWS_WITH(nn::clip_grad_norm_(p.both(), 1, 2, true),
                      ContainsSubstring("the norm of the gradients is nan"));
    // Clipping must not scale a gradient if the norm is not finite.
    CHECK(p.b->grad().select(0, 0).item() == -3);
    CHECK(std::isnan(nn::clip_grad_norm_(p.both(), 1).item()));
    CHECK(std::isnan(p.b->grad().select(0, 0).item()));
  }
  SECTION("NaN in any place makes every norm NaN") {
    constexpr double inf = std::numeric_limits<double>::infinity(),
                     nan = std::numeric_limits<double>::quiet_NaN();
    for (const double type : {inf, 2.0, 1.0, 3.0})
      for (const bool in_last : {false, true})
        for (const std::int64_t at : {0, 3, 6}) {
          CAPTURE(type, in_last, at);
          p.a->set_grad(full({5, 3}, 2.0, DType::f64));
          p.b->set_grad(full(7, -3.0, DType::f64));
          (in_last ? p.b : p.a)->grad().flatten()[at].fill_(nan);
          CHECK_THROWS_WITH(nn::clip_grad_norm_(p.both(), 1, type, true),
                            ContainsSubstring("gradients is nan"));
          CHECK(std::isnan(nn::clip_grad_norm_(p.both(), 1, type).item()));
          CHECK(std::isnan(p.a->grad()[0][0].item()));
          CHECK(std::isnan(p.b->grad()[0].item()));
        }
  }
  SECTION("bad limits") {
    CHECK_THROWS_AS(nn::clip_grad_norm_(p.both(), -1), ValueError);
    CHECK_THROWS_AS(nn::clip_grad_norm_(p.both(), 1, 0), ValueError);
  }
}

TEST_CASE("clip_grad_value_ clamps every element of the gradients") {
  const TwoParameters p;
  p.a->set_grad(formula({5, 3}, 4, 8));
  const std::vector<double> before = values_of(p.a->grad());
  nn::clip_grad_value_(p.both(), 1.5);
  const std::vector<double> after = values_of(p.a->grad());
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] == std::clamp(before[i], -1.5, 1.5));
  CHECK_THROWS_AS(nn::clip_grad_value_(p.both(), -1), ValueError);
}
