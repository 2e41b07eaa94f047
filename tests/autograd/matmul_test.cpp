#include "tapestry/autograd/ops/matmul.h"

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

GOLDEN_OP("matmul", "matmul", [](const OpCase& c) { return matmul(c[0], c[1]); });
BAD_INPUT("matmul", "shapes [2, 3] and [4, 5] do not fit: 3 columns on the left, 4 rows on the right", [] {
  return matmul(zeros({2, 3}), zeros({4, 5}));
});
BAD_INPUT("matmul", "a 0-d operand", [] { return matmul(scalar_tensor(2.0), zeros({4, 5})); });
BAD_INPUT("matmul", "[4, 3, 5]", [] { return matmul(zeros({2, 2, 3}), zeros({4, 3, 5})); });
BAD_INPUT("matmul", "dtypes float32 and float64 differ", [] {
  return matmul(zeros({2, 3}), zeros({3, 2}, DType::f64));
});
BAD_INPUT("matmul", "undefined", [] { return matmul(Tensor(), zeros({4, 5})); });

GOLDEN_OP("linear", "matmul", [](const OpCase& c) { return linear(c[0], c[1], c[2]); });
BAD_INPUT("linear", "input of shape [2, 3] does not fit weight [5, 4]: expected (..., 4)", [] {
  return linear(zeros({2, 3}), zeros({5, 4}));
});
BAD_INPUT("linear", "weight has shape [4]", [] { return linear(zeros({2, 4}), zeros({4})); });
BAD_INPUT("linear", "bias has shape [4], expected [5]", [] {
  return linear(zeros({2, 4}), zeros({5, 4}), zeros({4}));
});
BAD_INPUT("linear", "weight has dtype float64", [] {
  return linear(zeros({2, 4}), zeros({5, 4}, DType::f64));
});
BAD_INPUT("linear", "bias has dtype float64", [] {
  return linear(zeros({2, 4}), zeros({5, 4}), zeros({5}, DType::f64));
});

TEST_CASE(
    "linear: an input without gradient gets none, and a frozen weight lets the input change before "
    "backward") {
  const Tensor x = randn({4, 3}), w = randn({5, 3}).set_requires_grad(), b = randn({5}).set_requires_grad();
  SECTION("input without gradient") {
    linear(x, w, b).sum().backward();
    CHECK_FALSE(x.grad().defined());
    CHECK(allclose(b.grad(), full({5}, 4.0)));
    CHECK(allclose(w.grad(), x.sum(0).expand({5, 3}), 1e-5, 1e-6));
  }
  SECTION("frozen weight: the input may change before backward") {
    const Tensor frozen = randn({5, 3}), input = randn({4, 3}).set_requires_grad();
    const Tensor h = input * 1.0, y = linear(h, frozen);
    {
      const NoGradGuard guard;
      h.zero_();
    }
    y.sum().backward();
    CHECK(allclose(input.grad(), frozen.sum(0).expand({4, 3}), 1e-5, 1e-6));
  }
}

TEST_CASE("matmul: sizes that need several blocks, threads and batches give the values of f64") {
  const auto reference = [](const Tensor& a, const Tensor& b) {
    return matmul(a.to(DType::f64), b.to(DType::f64)).to(DType::f32);
  };
  for (const auto& [m, k, n] : {std::tuple{65, 300, 129}, std::tuple{1, 1000, 257}, std::tuple{300, 7, 1}}) {
    const Tensor a = randn({m, k}), b = randn({k, n});
    CHECK(allclose(matmul(a, b), reference(a, b), 1e-5, 1e-4));
    CHECK(allclose(matmul(b.t(), a.t()), reference(a, b).t(), 1e-5, 1e-4));
  }
  const Tensor q = randn({3, 17, 5, 33}), k = randn({3, 17, 9, 33});
  CHECK(allclose(matmul(q, k.transpose(-1, -2)), reference(q, k.transpose(-1, -2)), 1e-5, 1e-4));
  // Attention heads are a permuted view of a (batch, time, heads, size) tensor.
  const Tensor heads = randn({3, 5, 17, 33}).permute({0, 2, 1, 3});
  CHECK(allclose(matmul(heads, k.transpose(-1, -2)), reference(heads, k.transpose(-1, -2)), 1e-5, 1e-4));
}
