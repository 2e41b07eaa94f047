#include "tapestry/autograd/ops/scan.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

struct Threads {
  explicit Threads(int n) : before(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

}  // namespace

GOLDEN_OP("cumsum", "scan", [](const OpCase& c) { return cumsum(c[0], c.integer("dim")); });
GOLDEN_OP("cumprod", "scan", [](const OpCase& c) { return cumprod(c[0], c.integer("dim")); });
GOLDEN_OP("cummax", "scan", [](const OpCase& c) { return cummax(c[0], c.integer("dim")); });
GOLDEN_OP("cummin", "scan", [](const OpCase& c) { return cummin(c[0], c.integer("dim")); });
GOLDEN_OP("cumsum/in_place", "scan", [](const OpCase& c) { return c[0].clone().cumsum_(c.integer("dim")); });
GOLDEN_OP("cumprod/in_place", "scan",
          [](const OpCase& c) { return c[0].clone().cumprod_(c.integer("dim")); });
GOLDEN_OP("logcumsumexp", "scan", [](const OpCase& c) { return c[0].logcumsumexp(c.integer("dim")); });
GOLDEN_OP("diff", "scan",
          [](const OpCase& c) { return c[0].diff(c.integer("n", 1), c.integer("dim", -1), c[1], c[2]); });
GOLDEN_OP("trapezoid", "scan",
          [](const OpCase& c) { return trapezoid(c[0], c.real("dx", 1), c.integer("dim", -1)); });
GOLDEN_OP("trapezoid/points", "scan",
          [](const OpCase& c) { return trapezoid(c[0], c[1], c.integer("dim", -1)); });

BAD_INPUT("cumsum", "dimension 2", [] { zeros({2, 3}).cumsum(2); });
BAD_INPUT("cumsum", "undefined", [] { Tensor().cumsum(0); });
BAD_INPUT("cumprod", "dimension -3", [] { zeros({2, 3}).cumprod(-3); });
BAD_INPUT("cummax", "dimension 1", [] { zeros({3}).cummax(1); });
BAD_INPUT("cummin", "dimension 1", [] { zeros({3}).cummin(1); });
BAD_INPUT("cumsum", "cannot be stored in place", [] { zeros({3}, kBool).cumsum_(0); });
BAD_INPUT("logcumsumexp", "does not take int64", [] { arange(3).logcumsumexp(0); });
BAD_INPUT("diff", "n is -1", [] { zeros({3}).diff(-1); });
BAD_INPUT("diff", "has no neighbours", [] { zeros({}).diff(); });
BAD_INPUT("trapezoid", "3 points x for 2 values y", [] { trapezoid(zeros({2}), zeros({3})); });
BAD_INPUT("trapezoid", "does not take bool", [] { trapezoid(zeros({2}, kBool)); });

TEST_CASE("scans of long rows agree with plain loops, in all blocks") {
  manual_seed(1);
  for (const Shape& sizes : {Shape{4096}, Shape{4097}, Shape{50000}, Shape{3, 20000}, Shape{70, 5000}}) {
    CAPTURE(sizes.str());
    const std::int64_t n = sizes.back();
    const Tensor x = randn(sizes, kFloat64), near_one = 1 + x * 1e-3;
    const Tensor sums = x.cumsum(-1), products = near_one.cumprod(-1);
    const auto [largest, at] = x.cummax(-1);
    double sum = 0, product = 1, most = 0;
    std::int64_t where = 0, bad = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double value = x.data<double>()[i];
      if (i % n == 0) sum = 0, product = 1, most = -INFINITY;
      sum += value;
      product *= near_one.data<double>()[i];
      if (value >= most) most = value, where = i % n;
      bad += std::abs(sums.data<double>()[i] - sum) > 1e-10 ||
             std::abs(products.data<double>()[i] - product) > 1e-11 * product ||
             largest.data<double>()[i] != most || at.data<std::int64_t>()[i] != where;
    }
    CHECK(bad == 0);
  }
}

TEST_CASE("scans do not depend on the number of threads") {
  manual_seed(2);
  for (const Shape& sizes : {Shape{100000}, Shape{3, 30000}, Shape{100, 1000}}) {
    const Tensor x = randn(sizes).set_requires_grad();
    std::vector<Tensor> results[2];
    for (int i = 0; i < 2; ++i) {
      const Threads threads(i == 0 ? 1 : 3);
      x.zero_grad();
      const Tensor sums = x.cumsum(-1), products = x.cumprod(-1), most = x.cummax(-1).first;
      (sums + products + most).sum().backward();
      results[i] = {sums, products, most, x.grad()};
    }
    for (std::size_t i = 0; i < 4; ++i) CHECK(equal(results[0][i], results[1][i]));
  }
}

TEST_CASE("f32 sums are accumulated in f64") {
  const Tensor x = full({1 << 20}, 0.1f);
  const double want = (1 << 20) * static_cast<double>(0.1f);
  CHECK(x.cumsum(0)[-1].item() == static_cast<double>(static_cast<float>(want)));
}

TEST_CASE("the gradient of cumprod is exact where factors are 0, in long rows too") {
  const std::int64_t n = 9000;  // several blocks
  const Tensor x = ones({n}, kFloat64);
  x[4500].fill_(0);
  x.set_requires_grad();
  x.cumprod(0).sum().backward();
  // Before the zero, a factor is in 4500 - i products that are not 0. The zero's gradient is the number of
  // products that have it. After the zero, all gradients are 0.
  CHECK(x.grad()[0].item() == 4500);
  CHECK(x.grad()[4499].item() == 1);
  CHECK(x.grad()[4500].item() == 4500);
  CHECK(x.grad()[4501].item() == 0);
}

TEST_CASE("the gradients of cummax are summed over runs that cross blocks") {
  const Tensor x = arange(0, 20000, 1, kFloat64);
  x.neg_();
  x[7].fill_(3);
  x.set_requires_grad();
  x.cummax(0).first.sum().backward();
  CHECK(x.grad()[0].item() == 7);
  CHECK(x.grad()[7].item() == 20000 - 7);
  CHECK(x.grad().sum().item() == 20000);
}

TEST_CASE("logcumsumexp of long rows, and its gradient, agree with loops over shifted numbers") {
  manual_seed(4);
  for (const Shape& sizes : {Shape{4097}, Shape{2, 9000}}) {
    CAPTURE(sizes.str());
    const std::int64_t n = sizes.back();
    const Tensor x = (randn(sizes, kFloat64) * 300).requires_grad_(), dy = randn(sizes, kFloat64);
    const Tensor y = x.logcumsumexp(-1);
    y.backward(dy);
    const Tensor grad = x.grad();
    std::int64_t bad = 0;
    for (std::int64_t row = 0; row < x.numel() / n; ++row) {
      const double *const in = x.data<double>() + row * n, *const out = y.data<double>() + row * n;
      double largest = -INFINITY, sum = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        if (in[i] > largest) sum = sum * std::exp(largest - in[i]) + 1, largest = in[i];
        else sum += std::exp(in[i] - largest);
        bad += !(std::abs(out[i] - (largest + std::log(sum))) <= 1e-12 * (1 + std::abs(largest)));
      }
      double later = 0;  // the sum of dy[j] exp(y[i] - y[j]) over j >= i
      for (std::int64_t i = n - 1; i >= 0; --i) {
        later = dy.data<double>()[row * n + i] + (i + 1 < n ? later * std::exp(out[i] - out[i + 1]) : 0);
        bad += !(std::abs(grad.data<double>()[row * n + i] - later * std::exp(in[i] - out[i])) <= 1e-9);
      }
    }
    CHECK(bad == 0);
  }
}
