#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/creation.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

GOLDEN_OP("matmul", "matmul", [](const OpCase& c) { return matmul(c[0], c[1]); });
BAD_INPUT("matmul", "[2, 3] and [2, 3] do not fit", [] { return matmul(zeros({2, 3}), zeros({2, 3})); });
BAD_INPUT("matmul", "0-d", [] { return matmul(zeros({}), zeros({2, 3})); });
BAD_INPUT("matmul", "do not broadcast", [] { return matmul(zeros({2, 3, 4}), zeros({3, 4, 3})); });
BAD_INPUT("matmul", "float32 and float64", [] { return matmul(zeros({2, 2}), zeros({2, 2}, kFloat64)); });
BAD_INPUT("matmul", "undefined", [] { return matmul(zeros({2, 2}), Tensor()); });

GOLDEN_OP("linear", "matmul", [](const OpCase& c) { return linear(c[0], c[1], c[2]); });
BAD_INPUT("linear", "expected (..., 5)", [] { return linear(zeros({2, 3}), zeros({4, 5})); });
BAD_INPUT("linear", "weight has shape [4]", [] { return linear(zeros({2, 4}), zeros({4})); });
BAD_INPUT("linear", "bias has shape [3], expected [4]", [] {
  return linear(zeros({2, 5}), zeros({4, 5}), zeros({3}));
});
BAD_INPUT("linear", "weight has dtype float64", [] {
  return linear(zeros({2, 5}), zeros({4, 5}, kFloat64));
});
