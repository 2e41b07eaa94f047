// Tests that optimizer kernels match the CPU's kernels in f64. Each reference step starts from the state of
// the f32 kernel, so that errors do not accumulate.
#include "tapestry/kernels/cuda/optim.cuh"

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

Values doubles(const Block<float>& b) {
  Values v(b.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = b[i];
  return v;
}

struct Param {
  Block<float> param, grad;
  std::deque<Block<float>> state;
  Block<double> step{2};  // the step count, and NAdam's product

  Param(std::size_t n, unsigned salt, std::size_t offset)
      : param(numbers(static_cast<std::int64_t>(n), 3 * salt, 2), offset),
        grad(numbers(static_cast<std::int64_t>(n), 3 * salt + 1, 0.5), offset) {
    for (int k = 0; k < 3; ++k) state.emplace_back(Values(n, 0.0), offset);
    step[0] = 0;
    step[1] = 1;
  }
  StepItem item() {
    return {.param = param.data(),
            .grad = grad.data(),
            .state = {state[0].data(), state[1].data(), state[2].data()},
            .step = step.data(),
            .numel = static_cast<std::int64_t>(param.size())};
  }
};
/// A copy of a Param in f64.
struct Reference {
  Values param, grad, state[3];
  double step[2];
  explicit Reference(const Param& p)
      : param(doubles(p.param)), grad(doubles(p.grad)), step{p.step[0], p.step[1]} {
    for (std::size_t k = 0; k < 3; ++k) state[k] = doubles(p.state[k]);
  }
  StepItem item() {
    return {.param = param.data(),
            .grad = grad.data(),
            .state = {state[0].data(), state[1].data(), state[2].data()},
            .step = step,
            .numel = static_cast<std::int64_t>(param.size())};
  }
};

/// Bounds of the f32 kernel's errors after one step, for the parameter and its states.
struct Errors {
  double param, state[3];
};

void check_near(double got, double want, double error) {
  if (got == want || std::abs(got - want) <= error + 0x1p-126) return;
  CAPTURE(got, want, error);
  CHECK(std::abs(got - want) <= error);
}

// Each case is a number of elements and a misalignment in elements.
using Cases = std::vector<std::pair<std::size_t, std::size_t>>;

/// Checks three steps over parameters of these sizes.
template <class Args, class Slot, class Launch, class Bound>
void check_steps(Args args, const Cases& cases, const Slot& slot, const Launch& launch, const Bound& bound) {
  in_each_order([&] {
    std::deque<Param> params;
    for (const auto& [n, offset] : cases) params.emplace_back(n, unsigned(params.size()), offset);
    StepScalars scalars{.lr = 0.01, .grad_scale = 0.75};
    for (int step = 0; step < 3; ++step) {
      CAPTURE(step);
      std::vector<StepItem> items, reference_items;
      std::deque<Reference> before, after;
      for (Param& p : params) {
        before.emplace_back(p);
        after.emplace_back(p);
        items.push_back(p.item());
        reference_items.push_back(after.back().item());
      }
      args.tensors = {items.data(), static_cast<std::int64_t>(items.size()), &scalars};
      launch(args);
      args.tensors.items = reference_items.data();
      slot(kCPU, DType::f64, args);
      for (std::size_t i = 0; i < params.size(); ++i) {
        CAPTURE(i, cases[i].first, cases[i].second);
        CHECK(params[i].step[0] == after[i].step[0]);
        CHECK(params[i].step[1] == Approx(after[i].step[1]).epsilon(1e-14));
        for (std::size_t j = 0; j < params[i].param.size(); ++j) {
          const Errors error = bound(args, before[i], after[i], j);
          check_near(params[i].param[j], after[i].param[j], error.param);
          for (std::size_t k = 0; k < 3; ++k)
            check_near(params[i].state[k][j], after[i].state[k][j], error.state[k]);
        }
      }
      scalars = {.lr = 0.02, .grad_scale = 0.5};
    }
  });
}

double gradient_error(double scale, double decay, const Reference& before, std::size_t i) {
  return 3 * kUnit * (std::abs(scale * before.grad[i]) + std::abs(decay * before.param[i]));
}

void check_sgd(const SgdArgs& args, const Cases& cases) {
  CAPTURE(args.momentum, args.dampening, args.nesterov, args.maximize);
  const auto bound = [](const SgdArgs& a, const Reference& before, const Reference& after, std::size_t i) {
    const StepScalars& s = *a.tensors.scalars;
    double g = std::abs(s.grad_scale * before.grad[i]) + std::abs(a.weight_decay * before.param[i]);
    double error = gradient_error(s.grad_scale, a.weight_decay, before, i);
    Errors e{};
    if (a.momentum != 0) {
      e.state[0] = error + 4 * kUnit * (std::abs(a.momentum * before.state[0][i]) + g);
      error += (1 + a.momentum) * e.state[0] + 4 * kUnit * std::abs(a.momentum * after.state[0][i]);
      g += 2 * std::abs(after.state[0][i]);
    }
    e.param = s.lr * (error + 4 * kUnit * g) + 2 * kUnit * std::abs(before.param[i]);
    return e;
  };
  check_steps(
      args, cases, sgd_step, [](const SgdArgs& a) { gpu::launch_sgd({}, a); }, bound);
}

void check_adam(const AdamArgs& args, const Cases& cases) {
  CAPTURE(args.decoupled, args.amsgrad, args.maximize, args.weight_decay);
  const auto bound = [](const AdamArgs& a, const Reference& before, const Reference& after, std::size_t i) {
    const StepScalars& s = *a.tensors.scalars;
    const double decay = a.decoupled ? 0 : a.weight_decay;
    const double g = std::abs(s.grad_scale * before.grad[i]) + std::abs(decay * before.param[i]);
    const double error = gradient_error(s.grad_scale, decay, before, i), m = std::abs(after.state[0][i]);
    Errors e{};
    e.state[0] = error + 4 * kUnit * (std::abs(before.state[0][i]) + g);
    e.state[1] = 2 * g * error + 5 * kUnit * (before.state[1][i] + g * g);
    e.state[2] = a.amsgrad ? e.state[1] : 0;
    const double v = after.state[a.amsgrad ? 2 : 1][i];
    const double root = std::sqrt(v), root_scale = std::sqrt(1 - std::pow(a.beta2, after.step[0]));
    const double divisor = root / root_scale + a.eps;
    const double root_error = std::min(std::sqrt(e.state[1]), e.state[1] / std::max(root, 1e-300));
    const double size = s.lr / (1 - std::pow(a.beta1, after.step[0]));
    // The bound adds the errors that come from the states and the roundings of the update itself.
    e.param = size * (e.state[0] / divisor + m * (root_error / root_scale) / (divisor * divisor)) +
              8 * kUnit * size * m / divisor +
              3 * kUnit * (std::abs(before.param[i]) + std::abs(after.param[i]));
    return e;
  };
  check_steps(
      args, cases, adam_step, [](const AdamArgs& a) { gpu::launch_adam({}, a); }, bound);
}

/// The sizes give parameters with whole and partial chunks and packs, and some are misaligned.
const Cases kSizes = {{1, 0}, {3, 0}, {4, 0}, {0, 0}, {513, 0}, {4096, 0}, {4099, 0}, {8200, 1}, {64, 2}};

}  // namespace

TEST_CASE("SGD kernel: every option gives the CPU's step for ragged and misaligned parameters") {
  check_sgd({.weight_decay = 0}, kSizes);
  check_sgd({.weight_decay = 0.1, .maximize = true}, kSizes);
  check_sgd({.momentum = 0.9}, kSizes);
  check_sgd({.momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}, {{70, 0}, {5, 3}});
  check_sgd({.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, kSizes);
  check_sgd({.momentum = 0.5, .nesterov = true, .maximize = true}, {{70, 0}});
}

TEST_CASE("Adam kernel: every option gives the CPU's step for ragged and misaligned parameters") {
  check_adam({}, kSizes);
  check_adam({.beta1 = 0.8, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1}, {{70, 0}, {5, 3}});
  check_adam({.weight_decay = 0.1, .decoupled = true, .maximize = true}, kSizes);
  check_adam({.amsgrad = true}, kSizes);
  check_adam({.weight_decay = 0.1, .decoupled = true, .amsgrad = true}, {{70, 0}, {5, 1}});
}

namespace {
/// Checks a rule of kernels/ops/optim_rules.h. CPU and GPU share its formula, so the bound only has to
/// separate f32 roundings (a few units of the largest term, which is below 4) from wrong elements and
/// coefficients.
template <class Rule>
void check_rule(const Slot<Rule>& slot, const Rule& rule, const Cases& cases = kSizes) {
  CAPTURE(slot.name());
  const auto bound = [](const Rule&, const Reference&, const Reference&, std::size_t) {
    return Errors{.param = 64 * kUnit, .state = {64 * kUnit, 64 * kUnit, 64 * kUnit}};
  };
  check_steps(
      rule, cases, slot, [](const Rule& a) { gpu::launch_rule({}, a); }, bound);
}
/// A rule with these options of all rules.
template <class Rule>
Rule with(double weight_decay, bool maximize, Rule rule = {}) {
  rule.weight_decay = weight_decay;
  rule.maximize = maximize;
  return rule;
}
}  // namespace

TEST_CASE("RMSprop kernel: every option gives the CPU's step, with and without the optional states") {
  for (const bool centered : {false, true})
    for (const double momentum : {0.0, 0.9}) {
      CAPTURE(centered, momentum);
      RmspropArgs rule = with<RmspropArgs>(0.1, centered);
      rule.eps = 0.1;  // a momentum buffer holds g / eps if g is small, and with it g's rounding error / eps
      rule.centered = centered;
      rule.momentum = momentum;
      check_rule(rmsprop_step, rule);
    }
}

TEST_CASE("RMSprop kernel: states that are not used may be null") {
  for (const std::size_t offset : {0, 1}) {
    Param p(515, 1, offset), whole(515, 1, offset);
    const StepScalars scalars{.lr = 0.1};
    StepItem item = p.item();
    item.state[1] = item.state[2] = nullptr;
    const StepItem with_all = whole.item();
    RmspropArgs rule;
    rule.tensors = {&item, 1, &scalars};
    gpu::launch_rule({}, rule);
    rule.tensors.items = &with_all;
    gpu::launch_rule({}, rule);
    for (std::size_t i = 0; i < 515; ++i) CHECK(p.param[i] == whole.param[i]);
  }
}

TEST_CASE("kernels of the other rules give the CPU's step") {
  AdagradArgs adagrad = with<AdagradArgs>(0.1, true);
  adagrad.lr_decay = 0.5;
  check_rule(adagrad_step, adagrad);
  AdadeltaArgs adadelta = with<AdadeltaArgs>(0.1, true);
  adadelta.rho = 0.75;
  check_rule(adadelta_step, adadelta);
  check_rule(adamax_step, with<AdamaxArgs>(0.1, true));
  check_rule(lion_step, with<LionArgs>(0.1, true), {{70, 0}, {5, 3}});
  for (const bool decoupled : {false, true}) {
    CAPTURE(decoupled);
    NAdamArgs nadam = with<NAdamArgs>(0.1, decoupled);
    nadam.decoupled = decoupled;
    nadam.momentum_decay = 0.5;
    check_rule(nadam_step, nadam);
    // With beta2 = 0.6 RAdam's r is below 5, and with 0.999 it is above 5 after 5 steps only.
    for (const double beta2 : {0.6, 0.999}) {
      RAdamArgs radam = with<RAdamArgs>(0.1, decoupled);
      radam.decoupled = decoupled;
      radam.beta2 = beta2;
      check_rule(radam_step, radam, {{70, 0}, {5, 3}});
    }
  }
}

TEST_CASE("RAdam kernel: the adaptive steps that follow the warm-up are the CPU's") {
  Param p(70, 1, 0);
  RAdamArgs rule;
  const StepScalars scalars{.lr = 0.01};
  for (int step = 0; step < 9; ++step) {
    CAPTURE(step);
    Reference reference(p);
    const StepItem item = p.item(), other = reference.item();
    rule.tensors = {&other, 1, &scalars};
    radam_step(kCPU, DType::f64, rule);
    rule.tensors.items = &item;
    gpu::launch_rule({}, rule);
    for (std::size_t i = 0; i < 70; ++i) check_near(p.param[i], reference.param[i], 64 * kUnit);
  }
}

TEST_CASE("rules keep NaN and infinities as on the CPU") {
  const auto check_special = [](const auto& slot, auto rule) {
    CAPTURE(slot.name());
    Param p(6, 1, 0);
    p.grad[0] = static_cast<float>(kNaN);
    p.grad[1] = static_cast<float>(kInfinity);
    p.grad[2] = 0;
    p.state[0][3] = p.state[1][4] = static_cast<float>(kNaN);
    Reference reference(p);
    const StepScalars scalars{.lr = 0.1};
    const StepItem item = p.item(), other = reference.item();
    rule.tensors = {&item, 1, &scalars};
    gpu::launch_rule({}, rule);
    rule.tensors.items = &other;
    slot(kCPU, DType::f64, rule);
    for (std::size_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      CHECK(std::isnan(p.param[i]) == std::isnan(reference.param[i]));
      for (std::size_t k = 0; k < 2; ++k)
        CHECK(std::isnan(p.state[k][i]) == std::isnan(reference.state[k][i]));
    }
  };
  for_step_rules([&]<class Rule>(const Slot<Rule>& slot) { check_special(slot, Rule()); });
}

TEST_CASE("optimizer kernels: one launch updates all parameters") {
  const Cases many(gpu::kStepBatch + 6, {5, 0});
  check_adam({}, many);
  cuda_emulator::take_launches();
  std::deque<Param> params;
  std::vector<StepItem> items;
  for (const auto& [n, offset] : many) items.push_back(params.emplace_back(n, 1u, offset).item());
  const StepScalars scalars{.lr = 1};
  gpu::launch_sgd({}, {.tensors = {items.data(), gpu::kStepBatch + 6, &scalars}});
  const auto launches = cuda_emulator::take_launches();
  REQUIRE(launches.size() == 3);
  CHECK(launches[0].grid.x == gpu::kStepBatch);
  CHECK(launches[1].grid.x == 6);
  CHECK_THAT(launches[2].kernel, ContainsSubstring("step_chunks"));
  CHECK(launches[2].grid.x == gpu::kStepBatch + 6);
}

TEST_CASE("optimizer kernels: loss_scale divides the gradients, and found_inf changes nothing") {
  for (const float found : {0.0f, 1.0f}) {
    const float scale = 4;
    // Two parameters, the first of several chunks; SGD without states has no step count.
    Param a(9000, 1, 0), b(3, 2, 1), c(9000, 1, 0), d(3, 2, 1);
    const StepItem scaled[] = {a.item(), b.item()}, plain[] = {c.item(), d.item()};
    const StepScalars one{.lr = 0.5}, quarter{.lr = 0.5, .grad_scale = 0.25};
    const StepItems with{scaled, 2, &one, nullptr, false, &scale, &found};
    StepItem bare = a.item(), plain_bare = c.item();
    bare.step = plain_bare.step = nullptr;
    gpu::launch_adam({}, {.tensors = with, .weight_decay = 0.5});
    gpu::launch_rule({}, NAdamArgs{{with}});
    gpu::launch_sgd({}, {.tensors = {&bare, 1, &one, nullptr, false, &scale, &found}});
    if (found == 0) {
      gpu::launch_adam({}, {.tensors = {plain, 2, &quarter}, .weight_decay = 0.5});
      gpu::launch_rule({}, NAdamArgs{{{plain, 2, &quarter}}});
      gpu::launch_sgd({}, {.tensors = {&plain_bare, 1, &quarter}});
    }
    CHECK(a.step[0] == (found == 0 ? 2 : 0));
    CHECK((a.step[1] == 1) == (found != 0));
    std::size_t differ = 0;
    for (const auto& [x, y] : {std::pair(&a, &c), std::pair(&b, &d)}) {
      for (std::size_t k = 0; k < 2; ++k) CHECK(x->step[k] == y->step[k]);
      for (std::size_t i = 0; i < x->param.size(); ++i) {
        differ += x->param[i] != y->param[i];
        for (std::size_t k = 0; k < 3; ++k) differ += x->state[k][i] != y->state[k][i];
      }
    }
    CHECK(differ == 0);
  }
}

TEST_CASE("optimizer kernels: no parameters launch nothing; the steps of an empty parameter are counted") {
  cuda_emulator::take_launches();
  const StepScalars scalars{.lr = 1};
  gpu::launch_adam({}, {.tensors = {nullptr, 0, &scalars}});
  CHECK(cuda_emulator::take_launches().empty());
  Param empty(0, 0, 0);
  const StepItem item = empty.item();
  gpu::launch_adam({}, {.tensors = {&item, 1, &scalars}});
  CHECK(empty.step[0] == 1);
}

TEST_CASE("optimizer kernels: NaN and infinities propagate as on the CPU") {
  for (const bool amsgrad : {false, true}) {
    CAPTURE(amsgrad);
    Param p(6, 1, 0);
    p.grad[0] = static_cast<float>(kNaN);
    p.grad[1] = static_cast<float>(kInfinity);
    p.grad[2] = 0;
    p.state[2][3] = static_cast<float>(kNaN);  // AMSGrad's maximum of v
    Reference reference(p);
    const StepScalars scalars{.lr = 0.1};
    const StepItem item = p.item(), other = reference.item();
    gpu::launch_adam({}, {.tensors = {&item, 1, &scalars}, .amsgrad = amsgrad});
    adam_step(kCPU, DType::f64, {.tensors = {&other, 1, &scalars}, .amsgrad = amsgrad});
    for (std::size_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      CHECK(std::isnan(p.param[i]) == std::isnan(reference.param[i]));
      CHECK(std::isnan(p.state[2][i]) == std::isnan(reference.state[2][i]));
    }
    CHECK(p.param[2] == static_cast<float>(reference.param[2]));
  }
}
