// Compares schedules with PyTorch's over whole runs (tests/golden/nn.py).
#include <cmath>
#include <set>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

const NnGolden& golden() {
  static const NnGolden recorded("schedules");
  return recorded;
}
std::set<std::string>& tested() {
  static std::set<std::string> labels;
  return labels;
}

// Two groups with rates 0.2 and 0.05 and momentum 0.5, as in the script.
struct WithSgd {
  nn::Parameter a{"a", zeros(1)}, b{"b", zeros(1)};
  optim::SGD optimizer{{{{a}, {.lr = 0.2, .momentum = 0.5}}, {{b}, {.lr = 0.05, .momentum = 0.5}}}};
};
struct WithAdamW {
  nn::Parameter a{"a", zeros(1)}, b{"b", zeros(1)};
  optim::AdamW optimizer{{{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.05}}}};
};

template <class Setup, class Schedule, class... Args>
void check_schedule(const std::string& label, const char* momentum, const Args&... args) {
  INFO(label);
  tested().insert(label);
  Setup setup;
  Schedule schedule(setup.optimizer, args...);
  const Record &rates = golden().at(label + "/lr"), &momenta = golden().at(label + "/momentum");
  const auto count = static_cast<std::size_t>(rates.sizes[0]);
  nn::StateDict middle;
  for (std::size_t step = 0; step < count; ++step) {
    if (step > 0) schedule.step();
    INFO("step " << step);
    for (std::size_t g = 0; g < 2; ++g) {
      CHECK(std::abs(setup.optimizer.lr(g) - rates.values[2 * step + g]) < 1e-14);
      CHECK(std::abs(setup.optimizer.option(g, momentum) - momenta.values[2 * step + g]) < 1e-14);
      CHECK(schedule.last_lr()[g] == setup.optimizer.lr(g));
    }
    if (step == count / 2) middle = schedule.state_dict();
  }
  // A second schedule is restored from the state in the middle of the run. It must end with the same bits.
  Setup other;
  Schedule restored(other.optimizer, args...);
  restored.load_state_dict(middle);
  CHECK(restored.steps() == static_cast<std::int64_t>(count / 2));
  while (restored.steps() < schedule.steps()) restored.step();
  CHECK(restored.last_lr() == schedule.last_lr());
  CHECK(other.optimizer.option(0, momentum) == setup.optimizer.option(0, momentum));
}

template <class Schedule, class... Args>
void check_sgd(const std::string& label, const Args&... args) {
  check_schedule<WithSgd, Schedule>(label, "momentum", args...);
}

}  // namespace

TEST_CASE("schedules follow PyTorch's") {
  using namespace optim;
  check_sgd<StepLR>("step", StepLROptions{.step_size = 7});
  check_sgd<StepLR>("step_gamma", StepLROptions{.step_size = 4, .gamma = 0.5});
  check_sgd<LinearLR>("linear", LinearLROptions{});
  check_sgd<LinearLR>("linear_options",
                      LinearLROptions{.start_factor = 0.1, .end_factor = 0.7, .total_iters = 9});
  check_sgd<CosineAnnealingLR>("cosine", CosineAnnealingLROptions{.T_max = 20});
  check_sgd<CosineAnnealingLR>("cosine_back", CosineAnnealingLROptions{.T_max = 8, .eta_min = 0.01});
  check_sgd<LambdaLR>("lambda", [](std::int64_t t) { return std::pow(0.95, static_cast<double>(t)); });
  check_sgd<LambdaLR>("lambda_each", std::vector<LambdaLR::Factor>{
                                         [](std::int64_t t) { return 1 / (1 + static_cast<double>(t)); },
                                         [](std::int64_t t) { return 1 - static_cast<double>(t) / 40; }});
}

TEST_CASE("OneCycleLR follows PyTorch's") {
  using namespace optim;
  check_sgd<OneCycleLR>("one_cycle", OneCycleLROptions{.max_lr = 0.4, .total_steps = 40});
  check_sgd<OneCycleLR>("one_cycle_epochs",
                        OneCycleLROptions{.max_lr = 0.4, .epochs = 5, .steps_per_epoch = 7});
  check_sgd<OneCycleLR>(
      "one_cycle_linear",
      OneCycleLROptions{
          .max_lr = 0.4, .total_steps = 37, .pct_start = 0.45, .anneal_strategy = Anneal::linear});
  check_sgd<OneCycleLR>("one_cycle_three",
                        OneCycleLROptions{.max_lr = 0.4, .total_steps = 40, .three_phase = true});
  check_sgd<OneCycleLR>("one_cycle_options", OneCycleLROptions{.max_lr = 0.4,
                                                               .total_steps = 23,
                                                               .pct_start = 0,
                                                               .base_momentum = 0.6,
                                                               .max_momentum = 0.7,
                                                               .div_factor = 10,
                                                               .final_div_factor = 100});
  check_sgd<OneCycleLR>("one_cycle_fixed",
                        OneCycleLROptions{.max_lr = 0.4, .total_steps = 23, .cycle_momentum = false});
  check_schedule<WithAdamW, OneCycleLR>("one_cycle_adam", "beta1",
                                        OneCycleLROptions{.max_lr = 0.4, .total_steps = 23});
}

TEST_CASE("CyclicLR follows PyTorch's") {
  using namespace optim;
  CyclicLR::Options o{.base_lr = 0.1, .max_lr = 0.4, .step_size_up = 5};
  check_sgd<CyclicLR>("cyclic", o);
  o.step_size_down = 3;
  o.mode = CyclicMode::triangular2;
  check_sgd<CyclicLR>("cyclic_triangular2", o);
  o.mode = CyclicMode::exp_range;
  o.gamma = 0.9;
  o.base_momentum = 0.6;
  o.max_momentum = 0.7;
  check_sgd<CyclicLR>("cyclic_range", o);
  o.scale_fn = [](double cycle) { return 1 / cycle; };
  o.cycle_momentum = false;
  check_sgd<CyclicLR>("cyclic_function", o);
  WithSgd s;
  CHECK_THROWS_WITH(CyclicLR(s.optimizer, {}), ContainsSubstring("[CyclicLR] base_lr"));
  CHECK_THROWS_WITH(CyclicLR(s.optimizer, {.max_lr = 1, .step_size_up = 0}),
                    ContainsSubstring("step_size_up"));
  CHECK_THROWS_WITH(ConstantLR(s.optimizer, {.factor = 2}), ContainsSubstring("factor"));
}

TEST_CASE("schedules of milestones, powers and restarts follow PyTorch's") {
  using namespace optim;
  check_sgd<MultiStepLR>("multi_step", MultiStepLR::Options{.milestones = {8, 3, 20, 8}, .gamma = 0.5});
  check_sgd<ExponentialLR>("exponential", ExponentialLR::Options{.gamma = 0.9});
  check_sgd<PolynomialLR>("polynomial", PolynomialLR::Options{});
  check_sgd<ConstantLR>("constant", ConstantLR::Options{});
  check_sgd<ConstantLR>("constant_options", ConstantLR::Options{.factor = 0.75, .total_iters = 3});
  check_sgd<PolynomialLR>("polynomial_options", PolynomialLR::Options{.total_iters = 12, .power = 2.5});
  check_sgd<CosineAnnealingWarmRestarts>("restarts", CosineAnnealingWarmRestarts::Options{.T_0 = 5});
  check_sgd<CosineAnnealingWarmRestarts>(
      "restarts_options", CosineAnnealingWarmRestarts::Options{.T_0 = 3, .T_mult = 2, .eta_min = 0.01});
  check_sgd<SequentialLR>("sequential", SequentialLR::Options{.milestones = {5, 15}}, LinearLR::Options{},
                          CosineAnnealingLR::Options{.T_max = 10}, ExponentialLR::Options{.gamma = 0.8});
}

TEST_CASE("SequentialLR gives each schedule the rates and the momentum of the optimizer") {
  using namespace optim;
  WithSgd s;
  SequentialLR schedule(s.optimizer, {.milestones = {2}},
                        LinearLR::Options{.start_factor = 0.5, .total_iters = 2},
                        OneCycleLR::Options{.max_lr = 0.4, .total_steps = 4});
  CHECK(s.optimizer.lr(0) == 0.1);
  CHECK(s.optimizer.option(0, "momentum") == 0.5);  // OneCycleLR has not begun yet
  schedule.step();
  schedule.step();
  CHECK(s.optimizer.lr(0) == Approx(0.4 / 25));
  CHECK(s.optimizer.option(0, "momentum") == 0.95);
  for (int i = 0; i < 4; ++i) schedule.step();
  CHECK_THROWS_WITH(schedule.step(), ContainsSubstring("beyond the 4 steps"));
  CHECK(schedule.steps() == 6);
}

// Two schedules in a row, saved after each step and loaded in every order: the optimizer's state before the
// new schedule is made, before its state is loaded, or afterwards.
TEST_CASE("a SequentialLR of any two schedules continues exactly") {
  using namespace optim;
  using Make = std::function<std::unique_ptr<SequentialLR>(Optimizer&, std::int64_t milestone)>;
  const nn::Parameter a("a", zeros(1)), b("b", zeros(1));
  const auto check_pair = [&](bool adam, std::int64_t milestone, const Make& make) {
    const auto make_optimizer = [&]() -> std::unique_ptr<Optimizer> {
      if (adam)
        return std::make_unique<AdamW>(std::vector<AdamW::Group>{{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.05}}});
      const SGD::Options options{.lr = 0.2, .momentum = 0.5};
      return std::make_unique<SGD>(std::vector<SGD::Group>{{{a}, options}, {{b}, options}});
    };
    const auto values = [&](const Optimizer& o) {
      const char* const momentum = adam ? "beta1" : "momentum";
      return std::vector<double>{o.lr(0), o.lr(1), o.option(0, momentum), o.option(1, momentum)};
    };
    const auto straight = make_optimizer();
    const auto schedule = make(*straight, milestone);
    std::vector<std::vector<double>> expected;
    std::vector<std::pair<nn::StateDict, nn::StateDict>> saved;
    for (int step = 0; step < 7; ++step) {
      if (step > 0) schedule->step();
      expected.push_back(values(*straight));
      saved.emplace_back(straight->state_dict(), schedule->state_dict());
    }
    for (std::size_t at = 0; at < saved.size(); ++at)
      for (const int order : {0, 1, 2}) {
        const auto other = make_optimizer();
        if (order == 0) other->load_state_dict(saved[at].first);
        const auto resumed = make(*other, milestone);
        if (order == 1) other->load_state_dict(saved[at].first);
        resumed->load_state_dict(saved[at].second);
        if (order == 2) other->load_state_dict(saved[at].first);
        std::vector<std::vector<double>> rest{values(*other)};
        while (at + rest.size() < expected.size()) {
          resumed->step();
          rest.push_back(values(*other));
        }
        INFO("milestone " << milestone << ", step " << at << ", order " << order);
        CHECK(rest == std::vector(expected.begin() + static_cast<std::ptrdiff_t>(at), expected.end()));
      }
  };
  const auto with_each = [](const auto& fn) {
    fn(StepLR::Options{.step_size = 2});
    fn(LambdaLR::Options{.lr_lambda = {[](std::int64_t t) { return 1 / (1 + static_cast<double>(t)); }}});
    fn(LinearLR::Options{.total_iters = 4});
    fn(ConstantLR::Options{});
    fn(MultiStepLR::Options{.milestones = {1, 3}});
    fn(ExponentialLR::Options{.gamma = 0.5});
    fn(PolynomialLR::Options{.total_iters = 5});
    fn(CosineAnnealingLR::Options{.T_max = 5});
    fn(CosineAnnealingWarmRestarts::Options{.T_0 = 2});
    fn(OneCycleLR::Options{.max_lr = 0.4, .total_steps = 9});
    fn(CyclicLR::Options{.base_lr = 0.1, .max_lr = 0.3, .step_size_up = 2});
  };
  with_each([&](const auto& first) {
    with_each([&](const auto& second) {
      INFO(typeid(first).name() << ", " << typeid(second).name());
      for (const std::int64_t milestone : {0, 1, 3})
        for (const bool adam : {false, true})
          check_pair(adam, milestone, [&](Optimizer& optimizer, std::int64_t at) {
            return std::make_unique<SequentialLR>(optimizer, SequentialLROptions{.milestones = {at}}, first,
                                                  second);
          });
    });
  });
}

TEST_CASE("ReduceLROnPlateau follows PyTorch's, also from a restored state") {
  using namespace optim;
  const NnGolden recorded("plateau");
  const std::vector<double> metrics = {1.0, 0.9,  0.8, 0.8, 0.81, 0.8, 0.79995, 0.85, 0.7, 0.7, 0.71,
                                       0.7, 0.72, 0.7, 0.5, 0.6,  0.6, 0.6,     0.6,  0.6, 0.6};
  const auto check_plateau = [&](const std::string& label, const ReduceLROnPlateau::Options& options) {
    INFO(label);
    WithSgd s, other;
    ReduceLROnPlateau schedule(s.optimizer, options), restored(other.optimizer, options);
    const Record &rates = recorded.at(label + "/lr"), &bad = recorded.at(label + "/bad");
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      INFO("step " << i);
      const double metric = options.mode == PlateauMode::max ? -metrics[i] : metrics[i];
      schedule.step(metric);
      if (i > 10) restored.step(metric);
      for (std::size_t g = 0; g < 2; ++g)
        CHECK(std::abs(s.optimizer.lr(g) - rates.values[2 * i + g]) < 1e-15);
      CHECK(static_cast<double>(schedule.num_bad_epochs()) == bad.values[i]);
      CHECK(schedule.last_lr()[1] == s.optimizer.lr(1));
      if (i == 10) restored.load_state_dict(schedule.state_dict());
      if (i >= 10) CHECK(other.optimizer.lr(0) == s.optimizer.lr(0));
    }
    CHECK(restored.steps() == static_cast<std::int64_t>(metrics.size()));
    CHECK(restored.best() == schedule.best());
  };
  check_plateau("default", {});
  check_plateau("patience", {.patience = 2});
  check_plateau("cooldown", {.factor = 0.5, .patience = 1, .cooldown = 2});
  check_plateau("max", {.mode = PlateauMode::max, .patience = 1, .threshold = 0.01});
  check_plateau("abs",
                {.factor = 0.3, .patience = 1, .threshold = 0.15, .threshold_mode = ThresholdMode::abs});
  check_plateau(
      "max_abs",
      {.mode = PlateauMode::max, .patience = 0, .threshold = 0.05, .threshold_mode = ThresholdMode::abs});
  check_plateau("limits", {.patience = 0, .min_lr = 0.004, .eps = 0.001});
}

TEST_CASE("ReduceLROnPlateau refuses a step without a metric and states of other schedules") {
  using namespace optim;
  WithSgd s;
  ReduceLROnPlateau schedule(s.optimizer);
  CHECK_THROWS_WITH(static_cast<Scheduler&>(schedule).step(), ContainsSubstring("call step(metric)"));
  schedule.step(NAN);  // a NaN is never an improvement
  CHECK(schedule.num_bad_epochs() == 1);
  StepLR other(s.optimizer, {.step_size = 2});
  CHECK_THROWS_WITH(schedule.load_state_dict(other.state_dict()), ContainsSubstring("number 'best'"));
  nn::StateDict negative = schedule.state_dict();
  for (auto& [key, value] : negative)
    if (key == "lrs.1") value = scalar_tensor(-1.0, DType::f64);
  CHECK_THROWS_WITH(schedule.load_state_dict(negative), ContainsSubstring("lr must not be negative"));
  CHECK(schedule.last_lr()[1] == 0.05);
  CHECK_THROWS_WITH(ReduceLROnPlateau(s.optimizer, {.factor = 1}), ContainsSubstring("factor"));
  CHECK_THROWS_WITH(ReduceLROnPlateau(s.optimizer, {.patience = -1}), ContainsSubstring("patience"));
}

TEST_CASE("all recorded schedules are tested") {
  if (tested().size() < 20) return;  // skip the check if only some tests of this file run
  std::set<std::string> recorded;
  for (const auto& [key, record] : golden().under("")) recorded.insert(key.substr(0, key.find('/')));
  CHECK(recorded == tested());
}

TEST_CASE("CosineAnnealingLR rises linearly during the warm-up and then follows the cosine to zero") {
  WithSgd s;
  optim::CosineAnnealingLR schedule(s.optimizer, {.T_max = 10, .warmup_steps = 4});
  std::vector<double> rates{s.optimizer.lr()};
  for (int i = 0; i < 14; ++i) {
    schedule.step();
    rates.push_back(s.optimizer.lr());
  }
  for (int i = 0; i < 4; ++i) CHECK(rates[static_cast<std::size_t>(i)] == Approx(0.2 * (i + 1) / 4));
  CHECK(rates[4] == 0.2);
  CHECK(rates[9] == Approx(0.1));
  CHECK(rates[14] == Approx(0).margin(1e-16));
}

TEST_CASE("schedules refuse bad options and states") {
  using namespace optim;
  WithSgd s;
  CHECK_THROWS_WITH(StepLR(s.optimizer, {}), ContainsSubstring("step_size"));
  CHECK_THROWS_WITH(LinearLR(s.optimizer, {.start_factor = 0}), ContainsSubstring("start_factor"));
  CHECK_THROWS_WITH(LinearLR(s.optimizer, {.end_factor = 2}), ContainsSubstring("end_factor"));
  CHECK_THROWS_WITH(LinearLR(s.optimizer, {.total_iters = 0}), ContainsSubstring("total_iters"));
  CHECK_THROWS_WITH(CosineAnnealingLR(s.optimizer, {}), ContainsSubstring("T_max"));
  CHECK_THROWS_WITH(ExponentialLR(s.optimizer, {}), ContainsSubstring("gamma"));
  CHECK_THROWS_WITH(PolynomialLR(s.optimizer, {.total_iters = 0}), ContainsSubstring("total_iters"));
  CHECK_THROWS_WITH(PolynomialLR(s.optimizer, {.power = -1}), ContainsSubstring("power"));
  CHECK_THROWS_WITH(CosineAnnealingWarmRestarts(s.optimizer, {}), ContainsSubstring("T_0"));
  CHECK_THROWS_WITH(CosineAnnealingWarmRestarts(s.optimizer, {.T_0 = 1, .T_mult = 0}),
                    ContainsSubstring("T_mult"));
  CHECK_THROWS_WITH(SequentialLR(s.optimizer, {.milestones = {3}}, StepLR::Options{.step_size = 1}),
                    ContainsSubstring("1 milestones and 1 schedules"));
  CHECK_THROWS_WITH(LambdaLR(s.optimizer, LambdaLR::Factor()), ContainsSubstring("empty"));
  CHECK_THROWS_WITH(LambdaLR(s.optimizer, std::vector<LambdaLR::Factor>{}), ContainsSubstring("0 functions"));
  CHECK_THROWS_WITH(OneCycleLR(s.optimizer, {.total_steps = 3}), ContainsSubstring("max_lr"));
  CHECK_THROWS_WITH(OneCycleLR(s.optimizer, {.max_lr = 1}), ContainsSubstring("total_steps"));
  CHECK_THROWS_WITH(OneCycleLR(s.optimizer, {.max_lr = 1, .epochs = -2, .steps_per_epoch = -5}),
                    ContainsSubstring("total_steps"));
  CHECK_THROWS_WITH(OneCycleLR(s.optimizer, {.max_lr = 1, .total_steps = 3, .pct_start = 2}),
                    ContainsSubstring("pct_start"));
  CHECK(s.optimizer.lr() == 0.2);  // the refused calls must not change the rate

  LambdaLR negative(s.optimizer, [](std::int64_t t) { return t == 0 ? 1.0 : -1.0; });
  CHECK_THROWS_WITH(negative.step(), ContainsSubstring("lr must not be negative"));
  // The optimizer refuses the second group's negative rate when the first group's rate is already set. step()
  // must then restore the first group's rate.
  WithSgd other;
  LambdaLR half(other.optimizer, {[](std::int64_t t) { return t == 0 ? 1.0 : 0.5; },
                                  [](std::int64_t t) { return t == 0 ? 1.0 : -1.0; }});
  CHECK_THROWS_AS(half.step(), ValueError);
  CHECK(half.steps() == 0);
  CHECK(other.optimizer.lr(0) == 0.2);

  OneCycleLR cycle(s.optimizer, {.max_lr = 1, .total_steps = 3});
  cycle.step();
  cycle.step();
  const double last = cycle.last_lr()[0];
  cycle.step();  // a loop that calls step() after every batch makes this last call; no batch uses its rate
  CHECK(cycle.last_lr()[0] == last);
  CHECK_THROWS_WITH(cycle.step(), ContainsSubstring("beyond the 3 steps"));
  CHECK(cycle.steps() == 3);

  StepLR step(s.optimizer, {.step_size = 2});
  CHECK_THROWS_WITH(step.load_state_dict({}), ContainsSubstring("no number 'steps'"));
  CHECK_THROWS_WITH(step.load_state_dict({{"steps", scalar_tensor(std::int64_t{-1})}}),
                    ContainsSubstring("-1"));
  CHECK_THROWS_WITH(step.load_state_dict({{"steps", scalar_tensor(std::int64_t{1})}}),
                    ContainsSubstring("groups"));
  const auto state = [](const Tensor& steps, const Tensor& rate) {
    return nn::StateDict{{"steps", steps}, {"base_lrs.0", rate}, {"base_lrs.1", rate}};
  };
  const Tensor one = scalar_tensor(std::int64_t{1});
  CHECK_THROWS_WITH(step.load_state_dict(state(scalar_tensor(1.5), scalar_tensor(0.1))),
                    ContainsSubstring("number of steps is float32, not int64"));
  CHECK_THROWS_WITH(step.load_state_dict(state(one, one)),
                    ContainsSubstring("base_lrs.0 is 1 of dtype int64"));
  for (const double rate : {-0.1, double{INFINITY}, double{NAN}})
    CHECK_THROWS_WITH(step.load_state_dict(state(one, scalar_tensor(rate))),
                      ContainsSubstring("not a floating-point number of at least 0"));
  CHECK(step.steps() == 0);
}

TEST_CASE("LambdaLR has options, so it can be part of a SequentialLR") {
  using namespace optim;  // NOLINT: only in this test
  WithSgd s;
  const double first = s.optimizer.lr(0), second = s.optimizer.lr(1);
  SequentialLR schedule(s.optimizer, {.milestones = {2}},
                        LambdaLR::Options{.lr_lambda = {[](std::int64_t t) { return t == 0 ? 1.0 : 0.5; }}},
                        ExponentialLR::Options{.gamma = 0.5});
  std::vector<double> rates;
  for (int step = 0; step < 4; ++step, schedule.step()) {
    rates.push_back(s.optimizer.lr(0) / first);
    CHECK(s.optimizer.lr(1) / second == Approx(rates.back()));
  }
  for (std::size_t i = 0; i < 4; ++i) CHECK(rates[i] == Approx(std::vector<double>{1, 0.5, 1, 0.5}[i]));
  CHECK_THROWS_WITH(LambdaLR(s.optimizer, LambdaLR::Options{}), ContainsSubstring("0 functions"));
}
