#include "tapestry/autograd/ops/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/cpu/exp.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("softmax", "softmax", [](const OpCase& c) { return softmax(c[0], c.integer("dim")); });
GOLDEN_OP("log_softmax", "softmax", [](const OpCase& c) { return log_softmax(c[0], c.integer("dim")); });

BAD_INPUT("softmax", "dimension 2", [] { zeros({2, 3}).softmax(2); });
BAD_INPUT("softmax", "int64", [] { zeros({2, 3}, DType::i64).softmax(0); });
BAD_INPUT("softmax", "undefined", [] { Tensor().softmax(0); });
BAD_INPUT("log_softmax", "dimension -3", [] { zeros({2, 3}).log_softmax(-3); });
BAD_INPUT("log_softmax", "bool", [] { zeros({2, 3}, DType::boolean).log_softmax(0); });

TEST_CASE("softmax of long rows along any dimension adds up to one") {
  for (const std::int64_t n : {1, 31, 32, 33, 1023, 1025, 50257})
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = randn({n, 3}, dtype) * 5;
      const Tensor columns = x.softmax(0), rows = x.transpose(0, 1).contiguous().softmax(1);
      // The relative error of each value is at most a few eps, so that of the sum of all values is too.
      const double eps = dtype == DType::f32 ? std::numeric_limits<float>::epsilon()
                                             : std::numeric_limits<double>::epsilon();
      CHECK(allclose(columns.to(DType::f64).sum(0), ones({3}, DType::f64), 0, 40 * eps));
      CHECK(allclose(columns, rows.transpose(0, 1), 0, 0));
      CHECK(allclose(x.log_softmax(0).exp(), columns, 100 * eps, eps));
    }
}

TEST_CASE("the kernels' exp is within 2 ulp of exp, and exact where it must be") {
  using kernels::cpu::fast_exp;
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(fast_exp(0.0f) == 1);
  CHECK(fast_exp(inf) == inf);
  CHECK(fast_exp(-inf) == 0);
  CHECK(std::isnan(fast_exp(std::nanf(""))));
  CHECK(fast_exp(1000.0f) == inf);
  CHECK(fast_exp(-1000.0f) == 0);
  CHECK(fast_exp(0.0) == 1);
  CHECK(fast_exp(-static_cast<double>(inf)) == 0);
  CHECK(fast_exp(static_cast<double>(inf)) == static_cast<double>(inf));
  CHECK(std::isnan(fast_exp(std::nan(""))));

  double worst = 0;
  for (int i = -1040000; i < 887200; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, inf)) - static_cast<double>(rounded);
    worst = std::max(worst, std::abs(static_cast<double>(fast_exp(x)) - exact) / ulp);
  }
  CHECK(worst < 2);
  worst = 0;
  for (int i = -745000; i < 709700; ++i) {
    const double x = i * 1e-3;
    const long double exact = std::exp(static_cast<long double>(x));
    const double rounded = static_cast<double>(exact);
    const double ulp = std::nextafter(rounded, static_cast<double>(inf)) - rounded;
    worst =
        std::max(worst, std::abs(static_cast<double>((static_cast<long double>(fast_exp(x)) - exact) / ulp)));
  }
  CHECK(worst < 2);
}
