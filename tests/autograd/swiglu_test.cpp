#include "tapestry/autograd/ops/swiglu.h"

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

GOLDEN_OP("swiglu", "swiglu", [](const OpCase& c) { return swiglu(c[0], c[1]); });
BAD_INPUT("swiglu", "do not broadcast", [] { swiglu(zeros({2}), zeros({3})); });
BAD_INPUT("swiglu", "does not take int64", [] { swiglu(zeros({2}, kInt64), zeros({2}, kInt64)); });

TEST_CASE("swiglu: the values and gradients of silu and a product, with full mantissas") {
  manual_seed(3);
  const Tensor gate = randn({65, 67}, DType::f64).set_requires_grad(),
               up = (randn({65, 67}, DType::f64) + 3).set_requires_grad();
  const Tensor weight = randn({65, 67}, DType::f64);
  (swiglu(gate, up) * weight).sum().backward();
  const Tensor of_gate = gate.grad(), of_up = up.grad();
  gate.set_grad({}), up.set_grad({});
  (silu(gate) * up * weight).sum().backward();
  CHECK(allclose(swiglu(gate, up), silu(gate) * up, 1e-14, 1e-14));
  CHECK(allclose(of_gate, gate.grad(), 1e-13, 1e-13));
  CHECK(allclose(of_up, up.grad(), 1e-13, 1e-13));
}
