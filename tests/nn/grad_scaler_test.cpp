#include "tapestry/nn/optim/grad_scaler.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/nn/checkpoint.h"
#include "tapestry/nn/clip.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/losses.h"
#include "tapestry/nn/optim/sgd.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor numbers(const Shape& sizes) {
  return sin(arange(sizes.numel(), DType::f32) * 0.7 + 0.3).reshape(sizes);
}

struct Run {
  nn::Linear net{{.in_features = 3, .out_features = 2}};
  optim::SGD sgd{net.parameters(), {.lr = 0.1, .momentum = 0.9}};
  optim::GradScaler scaler;

  explicit Run(const optim::GradScalerOptions& options = {}) : scaler(options) {
    const NoGradGuard no_grad;
    net.weight->copy_(numbers({2, 3}));
    net.bias->copy_(numbers({2}));
  }
  Tensor weight() { return net.weight->detach().clone(); }
  // One step with a gradient that `factor` multiplies.
  bool step(double factor = 1) {
    sgd.zero_grad();
    Tensor loss;
    {
      const AutocastGuard guard(DType::f16);
      loss = mse_loss(net(numbers({4, 3})), zeros({4, 2}));
    }
    scaler.scale(loss * factor).backward();
    const bool done = scaler.step(sgd);
    scaler.update();
    return done;
  }
};

}  // namespace

TEST_CASE("GradScaler: a scaled step equals the step without a scale, for a scale that is a power of 2") {
  Run plain({.enabled = false}), scaled({.init_scale = 1024});
  for (int i = 0; i < 3; ++i) {
    CHECK(plain.step());
    CHECK(scaled.step());
    // f16 gradients between the layers are normal numbers with and without the scale.
    CHECK(allclose(plain.weight(), scaled.weight(), 1e-3, 1e-5));
  }
  CHECK(scaled.net.weight->grad().dtype() == DType::f32);
  CHECK(plain.scaler.get_scale() == 1);
  CHECK(plain.scaler.state_dict().empty());
}

TEST_CASE("GradScaler: infinities and NaN skip the step and halve the scale") {
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    Run run({.init_scale = 1024});
    CHECK(run.step());
    const Tensor before = run.weight();
    CHECK_FALSE(run.step(bad));
    CHECK(equal(before, run.weight()));
    CHECK(run.scaler.get_scale() == 512);
    CHECK(run.step());
    CHECK_FALSE(equal(before, run.weight()));
    CHECK(run.scaler.get_scale() == 512);
  }
}

TEST_CASE("GradScaler: one element at any place of any gradient is found") {
  for (const std::int64_t at : {0, 3, 5})
    for (const double bad : {kInf, std::nan("")}) {
      Run run;
      run.scaler.scale(run.net(numbers({4, 3})).sum()).backward();
      run.net.weight->grad().data<float>()[at] = static_cast<float>(bad);
      run.scaler.unscale_(run.sgd);
      CHECK(run.scaler.found_inf(run.sgd).item() == 1);
      CHECK_FALSE(run.scaler.step(run.sgd));
    }
  // Large finite gradients are no overflow, though their squares are.
  Run run({.init_scale = 1});
  run.scaler.scale(run.net(numbers({4, 3})).sum() * 1e30).backward();
  CHECK(run.scaler.step(run.sgd));
}

TEST_CASE("GradScaler: a product that overflows f16 is skipped until the scale fits") {
  Run run({.init_scale = 4194304});
  int skipped = 0;
  while (!run.step() && skipped < 30) ++skipped;
  CHECK(skipped > 0);
  CHECK(skipped < 30);
  CHECK(run.scaler.get_scale() == 4194304 / std::pow(2, skipped));
}

TEST_CASE("GradScaler: the scale grows after growth_interval good steps in a row, and stays finite") {
  Run run({.init_scale = 4, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  CHECK(run.step());
  CHECK(run.scaler.get_scale() == 4);
  CHECK(run.step());
  CHECK(run.scaler.get_scale() == 12);
  CHECK(run.step());
  CHECK_FALSE(run.step(kInf));  // begins the count again
  CHECK(run.scaler.get_scale() == 3);
  CHECK(run.step());
  CHECK(run.scaler.get_scale() == 3);
  CHECK(run.step());
  CHECK(run.scaler.get_scale() == 9);

  optim::GradScaler large({.init_scale = 3e38, .growth_interval = 1});
  Run other;
  large.scale(zeros({}));
  other.net(numbers({4, 3})).sum().backward();
  large.unscale_(other.sgd);
  large.update();
  CHECK(large.get_scale() == Approx(3e38));
}

TEST_CASE("GradScaler: unscale_() before clipping gives the gradients without the scale") {
  Run run({.init_scale = 1024}), plain({.enabled = false});
  run.scaler.scale(run.net(numbers({4, 3})).sum()).backward();
  plain.net(numbers({4, 3})).sum().backward();
  run.scaler.unscale_(run.sgd);
  CHECK(equal(run.net.weight->grad(), plain.net.weight->grad()));
  const double norm = nn::clip_grad_norm_(run.net.parameters(), 0.1).item();
  CHECK(norm == Approx(nn::clip_grad_norm_(plain.net.parameters(), 0.1).item()));
  run.scaler.step(run.sgd);
  plain.sgd.step();
  CHECK(equal(run.weight(), plain.weight()));
}

TEST_CASE("GradScaler: two optimizers have their own found_inf, and one scale") {
  Run a, b;
  optim::GradScaler scaler({.init_scale = 8});
  const auto losses = scaler.scale({a.net(numbers({4, 3})).sum(), b.net(numbers({4, 3})).sum() * kInf});
  losses[0].backward();
  losses[1].backward();
  CHECK(scaler.step(a.sgd));
  CHECK_FALSE(scaler.step(b.sgd));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("GradScaler: calls in the wrong order and wrong values are refused") {
  using Options = optim::GradScalerOptions;
  for (const Options& wrong :
       {Options{.init_scale = 0}, Options{.init_scale = kInf}, Options{.growth_factor = 1},
        Options{.backoff_factor = 1}, Options{.backoff_factor = 0}, Options{.growth_interval = 0}})
    CHECK_THROWS_AS(optim::GradScaler(wrong), ValueError);
  Run run;
  CHECK_THROWS_WITH(run.scaler.unscale_(run.sgd), Catch::Matchers::Contains("before scale()"));
  CHECK_THROWS_WITH(run.scaler.step(run.sgd), Catch::Matchers::Contains("before scale()"));
  CHECK_THROWS_WITH(run.scaler.update(), Catch::Matchers::Contains("before scale()"));
  const Tensor loss = run.scaler.scale(run.net(numbers({4, 3})).sum());
  CHECK_THROWS_WITH(run.scaler.unscale_(run.sgd), Catch::Matchers::Contains("no parameter"));
  CHECK_THROWS_WITH(run.scaler.update(), Catch::Matchers::Contains("before unscale_()"));
  loss.backward();
  run.scaler.unscale_(run.sgd);
  CHECK_THROWS_WITH(run.scaler.unscale_(run.sgd), Catch::Matchers::Contains("already"));
  CHECK(run.scaler.step(run.sgd));
  CHECK_THROWS_WITH(run.scaler.step(run.sgd), Catch::Matchers::Contains("already"));
  CHECK_THROWS_WITH(run.scaler.unscale_(run.sgd), Catch::Matchers::Contains("after step()"));
  CHECK_THROWS_AS(run.scaler.update(0), ValueError);
  CHECK_THROWS_AS(run.scaler.update(kInf), ValueError);
  run.scaler.update(32);
  CHECK(run.scaler.get_scale() == 32);
  CHECK_THROWS_AS(run.scaler.load_state_dict({}), ValueError);
  auto state = run.scaler.state_dict();
  state[0].second = full({}, -1.0, DType::f64);
  CHECK_THROWS_AS(run.scaler.load_state_dict(state), ValueError);
  CHECK(run.scaler.get_scale() == 32);
}

TEST_CASE("GradScaler: a resumed run has the bits of a run without interruption") {
  const tests::TempDir folder;
  const std::string path = folder / "run.safetensors";
  const optim::GradScalerOptions options{.init_scale = 64, .growth_interval = 2};
  Run whole(options), first(options), second({.init_scale = 2, .growth_interval = 9});
  const auto factor = [](int i) { return i == 1 ? kInf : 1.0; };
  for (int i = 0; i < 6; ++i) whole.step(factor(i));
  for (int i = 0; i < 3; ++i) first.step(factor(i));
  nn::save_checkpoint(path, {&first.net, &first.sgd, nullptr, &first.scaler}, {.step = 3});
  nn::load_checkpoint(path, {&second.net, &second.sgd, nullptr, &second.scaler});
  CHECK(second.scaler.get_scale() == first.scaler.get_scale());
  for (int i = 3; i < 6; ++i) second.step(factor(i));
  CHECK(equal(whole.weight(), second.weight()));
  CHECK(whole.scaler.get_scale() == second.scaler.get_scale());
  CHECK(whole.scaler.state_dict()[4].second.item() == second.scaler.state_dict()[4].second.item());

  nn::save_checkpoint(path, {&first.net, &first.sgd}, {.step = 3});
  CHECK_THROWS_AS(nn::load_checkpoint(path, {&second.net, &second.sgd, nullptr, &second.scaler}), IoError);
}

TEST_CASE("GradScaler: agree() adds what other processes found") {
  double others = 0;
  int calls = 0;
  const nn::Parameter p("p", ones({2}));
  optim::SGD optimizer({p}, {.lr = 0.5});
  optim::GradScaler scaler({.init_scale = 8, .agree = [&](const Tensor& found) {
                              ++calls;
                              found.copy_(maximum(found, full({}, others)));
                            }});
  const auto step = [&](double gradient) {
    optimizer.zero_grad();
    scaler.scale((p.tensor() * gradient).sum()).backward();
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  };
  CHECK(step(1));
  CHECK(p->select(0, 0).item() == 0.5);
  others = 1;  // another process has an infinity
  CHECK_FALSE(step(1));
  CHECK(p->select(0, 0).item() == 0.5);
  CHECK(scaler.get_scale() == 4);
  others = 0;
  CHECK_FALSE(step(INFINITY));
  CHECK(scaler.get_scale() == 2);
  CHECK(calls == 3);
}
