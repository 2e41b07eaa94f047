// Steps of every optimizer on a device, compared with the CPU, with parameters of each dtype.
#include <cmath>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

template <class O>
nn::StateDict stepped(const Device& device, DType dtype, const typename O::Options& options) {
  manual_seed(3);
  const auto made = [&](const Shape& shape) { return randn(shape, kCPU).to(dtype).to(device); };
  const nn::Parameter a("a", made({4099})), b("b", made({7, 10}));
  O optimizer({a, b}, options);
  for (int step = 0; step < 3; ++step) {
    a->set_grad(made({4099}));
    b->set_grad(made({7, 10}));
    optimizer.step();
  }
  return {{"a", a->detach().cpu()}, {"b", b->detach().cpu()}};
}

template <class O>
void check(const char* name, const typename O::Options& options = {}) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name, dtype);
    const auto here = stepped<O>(kCPU, dtype, options), there = stepped<O>("cuda:0", dtype, options);
    const double unit = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1.6e-2;
    for (std::size_t i = 0; i < here.size(); ++i)
      CHECK(allclose(here[i].second.to_float(), there[i].second.to_float(), unit, unit));
  }
}

}  // namespace

TEST_CASE("every optimizer steps on a device as on the CPU") {
  if (no_gpu()) return;
  check<optim::SGD>("SGD", {.lr = 0.1, .momentum = 0.9, .nesterov = true});
  check<optim::Adam>("Adam", {.lr = 0.01, .weight_decay = 0.1});
  check<optim::Adam>("Adam with amsgrad", {.lr = 0.01, .amsgrad = true});
  check<optim::AdamW>("AdamW", {.lr = 0.01});
  check<optim::RMSprop>("RMSprop", {.lr = 0.01});
  check<optim::Adagrad>("Adagrad", {.lr = 0.01});
  check<optim::Adadelta>("Adadelta");
  check<optim::Adamax>("Adamax");
  check<optim::NAdam>("NAdam");
  check<optim::RAdam>("RAdam");
  check<optim::Lion>("Lion", {.lr = 0.01});
}
