#include <thread>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("two threads can run backward through two independent results of one checkpoint call") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Tensor x = full({64}, 0.5, DType::f64).set_requires_grad();
    const Tensor y = full({64}, 0.25, DType::f64).set_requires_grad();
    const auto f = [](const Tensor& s, const Tensor& t) {
      return std::pair(s.exp().tanh().sum(), t.exp().sigmoid().sum());
    };
    const auto results = checkpoint(f, x, y);
    std::thread other([&] { results.first.backward(); });
    results.second.backward();
    other.join();
    const Tensor gx = x.grad(), gy = y.grad();
    x.zero_grad();
    y.zero_grad();
    const auto plain = f(x, y);
    plain.first.backward();
    plain.second.backward();
    CHECK(equal(x.grad(), gx));
    CHECK(equal(y.grad(), gy));
  }
}
