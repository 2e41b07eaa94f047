// Odd functions keep the sign of zero.
#include <cmath>
#include <functional>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("odd functions of -0 are -0") {
  struct Row {
    const char* name;
    std::function<Tensor(const Tensor&)> f;
  };
  const Row rows[] = {{"sin", [](const Tensor& x) { return sin(x); }},
                      {"tan", [](const Tensor& x) { return tan(x); }},
                      {"asin", [](const Tensor& x) { return asin(x); }},
                      {"atan", [](const Tensor& x) { return atan(x); }},
                      {"sinh", [](const Tensor& x) { return sinh(x); }},
                      {"tanh", [](const Tensor& x) { return tanh(x); }},
                      {"asinh", [](const Tensor& x) { return asinh(x); }},
                      {"atanh", [](const Tensor& x) { return atanh(x); }},
                      {"erf", [](const Tensor& x) { return erf(x); }},
                      {"expm1", [](const Tensor& x) { return expm1(x); }},
                      {"log1p", [](const Tensor& x) { return log1p(x); }},
                      {"sqrt", [](const Tensor& x) { return sqrt(x); }},
                      {"gelu", [](const Tensor& x) { return gelu(x); }},
                      {"silu", [](const Tensor& x) { return silu(x); }}};
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Row& row : rows)
      for (const std::int64_t n : {1, 40}) {  // a single element, and vectors with a rest
        const Tensor y = row.f(full({n}, -0.0, dtype)).to(DType::f64);
        CAPTURE(row.name, dtype_name(dtype), n);
        for (std::int64_t i = 0; i < n; ++i) {
          CHECK(y[i].item() == 0);
          CHECK(std::signbit(y[i].item()));
        }
      }
}

TEST_CASE("logsigmoid of a large number is 0, not -0") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double y = logsigmoid(full({1}, 6e4, dtype)).to(DType::f64).item();
    CHECK(y == 0);
    CHECK_FALSE(std::signbit(y));
  }
}
