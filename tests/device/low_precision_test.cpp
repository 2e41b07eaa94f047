// Optimizers over bf16 and f16 parameters on CUDA devices give the CPU's bits: the numbers are chosen so that
// the step is exact in f32, and only the rounding to 16 bits is left.
#include <cmath>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using optim::LowPrecision;

namespace {

// Multiples of 1/64 below 2.
Tensor numbers(int n, int salt) {
  const Tensor t = empty({n}, {DType::f32, kCPU});
  for (int i = 0; i < n; ++i) t.data<float>()[i] = static_cast<float>((i * 37 + salt * 11) % 255 - 127) / 64;
  return t;
}

nn::StateDict train(Device device, DType dtype, LowPrecision how) {
  const nn::Parameter a("a", numbers(4099, 1).to(dtype).to(device)),
      b("b", numbers(70, 2).to(dtype).to(device));
  const auto make = [&] {
    return optim::SGD({a, b}, {.lr = 0x1p-7, .momentum = 0.5, .weight_decay = 0.25, .low_precision = how});
  };
  auto first = make(), second = make();
  for (int step = 0; step < 4; ++step) {
    a->set_grad(numbers(4099, step + 3).to(dtype).to(device));
    b->set_grad(numbers(70, step + 4).to(dtype).to(device));
    if (step == 2) {
      const NoGradGuard no_grad;
      second.load_state_dict(first.state_dict());
      a->detach().narrow(0, 3, 5).fill_(0.5);  // masters follow
    }
    (step < 2 ? first : second).step();
  }
  nn::StateDict state = second.state_dict();
  state.emplace_back("a", a->detach().cpu());
  state.emplace_back("b", b->detach().cpu());
  return state;
}

}  // namespace

TEST_CASE("bf16 and f16 parameters are trained on a device with the CPU's bits") {
  if (no_gpu()) return;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const LowPrecision how : {LowPrecision::master, LowPrecision::stochastic, LowPrecision::none}) {
      const nn::StateDict here = train(kCPU, dtype, how), there = train("cuda:0", dtype, how);
      REQUIRE(here.size() == there.size());
      for (std::size_t i = 0; i < here.size(); ++i) {
        CAPTURE(dtype, int(how), here[i].first);
        CHECK(here[i].second.dtype() == there[i].second.dtype());
        CHECK(equal(here[i].second, there[i].second.cpu()));
      }
    }
}

TEST_CASE("GradScaler on a device: an infinity skips the step, and the scale is divided in it") {
  if (no_gpu()) return;
  for (const DType dtype : {DType::f32, DType::f16}) {
    const nn::Parameter w("w", numbers(70, 1).to(dtype).to("cuda:0"));
    optim::AdamW adam({w}, {.lr = 0.25});
    optim::GradScaler scaler({.init_scale = 8});
    scaler.scale(zeros({}, {DType::f32, "cuda:0"}));
    const nn::Parameter v("v", numbers(70, 1).to(dtype).to("cuda:0"));
    optim::AdamW plain({v}, {.lr = 0.25});
    for (const double factor : {8.0, double(INFINITY), 4.0}) {
      w->set_grad((numbers(70, 3) * factor).to(dtype).to("cuda:0"));
      CHECK(scaler.step(adam) == std::isfinite(factor));
      scaler.update();
      if (!std::isfinite(factor)) continue;
      v->set_grad(numbers(70, 3).to(dtype).to("cuda:0"));
      plain.step();
    }
    CHECK(equal(w->detach().cpu(), v->detach().cpu()));
    CHECK(scaler.get_scale() == 4);
    CHECK(adam.state_dict().back().second.numel() == 70);
  }
}
