// Optimizers over bf16 parameters on CUDA devices give the CPU's bits: the numbers are chosen so that the
// step is exact in f32, and only the rounding to bf16 is left.
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

nn::StateDict train(Device device, LowPrecision how) {
  const nn::Parameter a("a", numbers(4099, 1).to(DType::bf16).to(device)),
      b("b", numbers(70, 2).to(DType::bf16).to(device));
  const auto make = [&] {
    return optim::SGD({a, b}, {.lr = 0x1p-7, .momentum = 0.5, .weight_decay = 0.25, .low_precision = how});
  };
  auto first = make(), second = make();
  for (int step = 0; step < 4; ++step) {
    a->set_grad(numbers(4099, step + 3).to(DType::bf16).to(device));
    b->set_grad(numbers(70, step + 4).to(DType::bf16).to(device));
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

TEST_CASE("bf16 parameters are trained on a device with the CPU's bits") {
  if (no_gpu()) return;
  for (const LowPrecision how : {LowPrecision::master, LowPrecision::stochastic, LowPrecision::none}) {
    const nn::StateDict here = train(kCPU, how), there = train("cuda:0", how);
    REQUIRE(here.size() == there.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      CAPTURE(int(how), here[i].first);
      CHECK(here[i].second.dtype() == there[i].second.dtype());
      CHECK(equal(here[i].second, there[i].second.cpu()));
    }
  }
}
