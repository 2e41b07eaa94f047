// The step of a GradScaler that the device decides: Optimizer::step(loss_scale, found_inf).
#include <cmath>
#include <functional>
#include <memory>

#include "tapestry/autograd/ops.h"
#include "tapestry/kernels/ops/optim.h"
#include "tapestry/kernels/ops/optim_rules.h"
#include "tapestry/nn/optim/adam.h"
#include "tapestry/nn/optim/adaptive.h"
#include "tapestry/nn/optim/grad_scaler.h"
#include "tapestry/nn/optim/muon.h"
#include "tapestry/nn/optim/sgd.h"
#include "tests/support/catch.h"

using namespace tapestry;
using Catch::Matchers::Contains;
using optim::LowPrecision, optim::Optimizer;

namespace {

Tensor one(double value) { return full({}, value, DType::f32); }

Tensor numbers(std::int64_t n, double salt) { return sin(arange(n, DType::f32) * 0.7 + salt); }

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<nn::Parameter>&)>;
template <class O>
Make maker(const typename O::Options& options) {
  return [=](const std::vector<nn::Parameter>& p) { return std::make_unique<O>(p, options); };
}
// Options for which every state is used.
std::vector<std::pair<const char*, Make>> all_optimizers(LowPrecision how) {
  return {{"SGD", maker<optim::SGD>({.lr = 0.1, .low_precision = how})},
          {"SGD momentum", maker<optim::SGD>({.lr = 0.1, .momentum = 0.9, .low_precision = how})},
          {"Adam", maker<optim::Adam>({.amsgrad = true, .low_precision = how})},
          {"AdamW", maker<optim::AdamW>({.low_precision = how})},
          {"RMSprop", maker<optim::RMSprop>({.momentum = 0.5, .centered = true, .low_precision = how})},
          {"Adagrad", maker<optim::Adagrad>({.low_precision = how})},
          {"Adadelta", maker<optim::Adadelta>({.low_precision = how})},
          {"Adamax", maker<optim::Adamax>({.low_precision = how})},
          {"NAdam", maker<optim::NAdam>({.low_precision = how})},
          {"RAdam", maker<optim::RAdam>({.low_precision = how})},
          {"Lion", maker<optim::Lion>({.low_precision = how})}};
}

// Two parameters of `dtype`, and an optimizer of them.
struct Trained {
  nn::Parameter a, b;
  std::unique_ptr<Optimizer> optimizer;

  Trained(const Make& make, DType dtype)
      : a("a", numbers(1030, 0.2).to(dtype)), b("b", numbers(3, 0.9).to(dtype)), optimizer(make({a, b})) {}
  void set_gradients(int step, double factor) {
    a->set_grad((numbers(1030, step) * factor).to(a->dtype()));
    b->set_grad((numbers(3, step + 0.5) * factor).to(b->dtype()));
  }
  nn::StateDict state() const {
    nn::StateDict dict = optimizer->state_dict();
    dict.emplace_back("a", a->detach().clone());
    dict.emplace_back("b", b->detach().clone());
    return dict;
  }
};

bool same(const nn::StateDict& x, const nn::StateDict& y) {
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i].first != y[i].first || !equal(x[i].second, y[i].second)) return false;
  return true;
}

}  // namespace

TEST_CASE(
    "step(loss_scale, found_inf): the scaled step has the bits of the plain one, a skipped one changes "
    "nothing") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const LowPrecision how : {LowPrecision::master, LowPrecision::stochastic}) {
      if (how == LowPrecision::stochastic && (dtype == DType::f32 || dtype == DType::f64)) continue;
      for (const auto& [name, make] : all_optimizers(how)) {
        CAPTURE(name, dtype, int(how));
        Trained plain(make, dtype), scaled(make, dtype);
        for (int step = 0; step < 3; ++step) {
          plain.set_gradients(step, 1);
          plain.optimizer->step();
          if (step == 1) {  // a step between that is skipped
            scaled.set_gradients(7, NAN);
            const nn::StateDict before = scaled.state();
            scaled.optimizer->step(one(8), one(1));
            CHECK(same(before, scaled.state()));
          }
          scaled.set_gradients(step, 8);
          scaled.optimizer->step(one(8), one(0));
          CHECK(equal(scaled.b->grad(), (numbers(3, step + 0.5) * 8).to(dtype)));  // the scale stays
        }
        CHECK(same(plain.state(), scaled.state()));
      }
    }
}

TEST_CASE("step(loss_scale, found_inf): the factors multiply, and the first step may be skipped") {
  const Make make = maker<optim::SGD>({.lr = 0.1, .momentum = 0.9});
  Trained plain(make, DType::f32), scaled(make, DType::f32);
  scaled.set_gradients(0, 1);
  scaled.optimizer->step({}, one(1));
  scaled.optimizer->set_grad_scale(0.5);
  plain.optimizer->set_grad_scale(0.25);
  for (Trained* t : {&plain, &scaled}) t->set_gradients(1, 1);
  plain.optimizer->step();
  scaled.optimizer->step(one(2), one(0));
  CHECK(same(plain.state(), scaled.state()));  // the momentum began in this step
  plain.optimizer->step();
  scaled.optimizer->set_grad_scale(0.25);
  scaled.optimizer->step({}, one(0));
  CHECK(same(plain.state(), scaled.state()));
  plain.optimizer->step();
  scaled.optimizer->step();  // what the last call was given does not stay
  CHECK(same(plain.state(), scaled.state()));
}

TEST_CASE("step(loss_scale, found_inf): wrong tensors and optimizers without a fused kernel are refused") {
  Trained t(maker<optim::SGD>({.lr = 0.1}), DType::f32);
  t.set_gradients(0, 1);
  const nn::StateDict before = t.state();
  for (const Tensor& wrong : {Tensor(), zeros({2}), full({}, 0.0, DType::f64)})
    CHECK_THROWS_WITH(t.optimizer->step(one(1), wrong), Contains("one float32 element"));
  CHECK_THROWS_WITH(t.optimizer->step(zeros({2}), one(0)), Contains("one float32 element"));
  CHECK(same(before, t.state()));
  const nn::Parameter w("w", numbers(4, 0).reshape({2, 2}));
  optim::Muon muon({w}, {.lr = 0.1});
  w->set_grad(ones({2, 2}));
  CHECK_FALSE(muon.supports_device_scaling());
  CHECK_THROWS_WITH(static_cast<Optimizer&>(muon).step(one(1), one(0)), Contains("no fused kernel"));
}

TEST_CASE("GradScaler: Muon is skipped by the host, and gets gradients without the scale") {
  const nn::Parameter w("w", numbers(4, 0).reshape({2, 2}).requires_grad_());
  optim::Muon muon({w}, {.lr = 0.1});
  optim::GradScaler scaler({.init_scale = 4});
  for (const double factor : {1.0, double(INFINITY)}) {
    muon.zero_grad();
    scaler.scale((w.tensor() * factor).sum()).backward();
    const Tensor before = w->detach().clone();
    CHECK(scaler.step(muon) == (factor == 1));
    CHECK(equal(before, w->detach()) == (factor != 1));
    if (factor == 1) CHECK(equal(w->grad(), ones({2, 2})));
    scaler.update();
  }
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("GradScaler: f16 parameters train, although gradients without the scale are 0 in f16") {
  // 2^-26 is 0 in f16, and 2^-10 with the scale. Masters add the exact steps up.
  const nn::Parameter w("w", ones({5}, DType::f16).requires_grad_());
  optim::SGD sgd({w}, {.lr = 0x1p+20, .low_precision = LowPrecision::master});
  optim::GradScaler scaler({.init_scale = 0x1p16});
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    scaler.scale((w->to(DType::f32) * 0x1p-26).sum()).backward();
    if (step == 3) CHECK_THROWS_WITH(scaler.unscale_(sgd), Contains("float16"));
    CHECK(scaler.step(sgd));
    scaler.update();
  }
  CHECK(equal(w->detach(), full({5}, 1 - 4 * 0x1p-6, DType::f16)));
}

TEST_CASE("GradScaler: the answer of a step may be asked for after update()") {
  Trained t(maker<optim::SGD>({.lr = 0.1}), DType::f32);
  optim::GradScaler scaler({.init_scale = 2});
  scaler.scale(zeros({}));
  t.set_gradients(0, 1);
  const optim::ScaledStep good = scaler.step(*t.optimizer);
  scaler.update();
  t.set_gradients(0, INFINITY);
  const optim::ScaledStep bad = scaler.step(*t.optimizer);
  scaler.update();
  CHECK(good);
  CHECK_FALSE(bad);
  CHECK(scaler.get_scale() == 1);
}
