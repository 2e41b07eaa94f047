// Values and gradients under autocast against f64, within bounds that follow from the arithmetic; and
// overflow, subnormal numbers, NaN and infinities.
//
// u is the unit roundoff, half of the distance from 1 to its upper neighbour: 2^-8 for bf16, 2^-11 for f16
// and 2^-24 for f32. Operands are rounded to the low dtype, products are exact in f32, sums of n terms are
// f32 sums, and results are rounded to the low dtype (Higham, "Accuracy and stability of numerical
// algorithms", 2002, chapter 3).
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double unit(DType low) { return low == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// Numbers with full mantissas whose mean is not 0.
Tensor wave(const Shape& sizes, double salt) {
  return (sin(arange(sizes.numel(), DType::f64) * 0.7316 + salt) + 0.2).to(DType::f32).reshape(sizes);
}
Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

// An operation that is linear in each of its two inputs. `terms`: the terms of a sum in y, da and db.
struct Bilinear {
  const char* name;
  std::function<Tensor(const Tensor&, const Tensor&)> fn;
  Shape a, b;
  std::vector<std::int64_t> terms;
};
const std::vector<Bilinear> kProducts = {
    {"matmul",
     [](const Tensor& a, const Tensor& b) { return matmul(a, b); },
     {37, 300},
     {300, 21},
     {300, 21, 37}},
    {"bmm",
     [](const Tensor& a, const Tensor& b) { return matmul(a, b); },
     {3, 17, 65},
     {3, 65, 9},
     {65, 9, 17}},
    {"linear",
     [](const Tensor& a, const Tensor& b) { return linear(a, b, Tensor()); },
     {33, 130},
     {48, 130},
     {130, 48, 33}},
    {"conv2d",
     [](const Tensor& a, const Tensor& b) { return conv2d(a, b, Tensor(), {.stride = 2, .padding = 1}); },
     {2, 5, 13, 11},
     {7, 5, 3, 3},
     {45, 63, 84}}};

// y, da and db of sum(fn(a, b) * g).
std::vector<Tensor> results(const Bilinear& p, const Tensor& a, const Tensor& b, const Tensor& g, DType low) {
  const Tensor x = leaf(a), w = leaf(b);
  Tensor y;
  if (low == DType::f64) {
    y = p.fn(x, w);
  } else {
    const AutocastGuard guard(low);
    y = p.fn(x, w);
    CHECK(y.dtype() == low);
  }
  (y.to(g.dtype()) * g).sum().backward();
  return {y.detach(), x.grad(), w.grad()};
}

}  // namespace

TEST_CASE(
    "autocast bounds: products, convolutions and their gradients are within the bounds of the arithmetic",
    "[isa]") {
  for (const DType low : {DType::bf16, DType::f16})
    for (const Bilinear& p : kProducts) {
      CAPTURE(p.name, low);
      const Tensor a = wave(p.a, 0.1), b = wave(p.b, 0.5);
      const Tensor g = wave(p.fn(a, b).sizes(), 0.9);
      const auto got = results(p, a, b, g, low);
      const auto want = results(p, a.to(DType::f64), b.to(DType::f64), g.to(DType::f64), DType::f64);
      // The same sums over magnitudes: sum |a_i| |b_i|.
      const auto scale =
          results(p, a.abs().to(DType::f64), b.abs().to(DType::f64), g.abs().to(DType::f64), DType::f64);
      for (std::size_t i = 0; i < 3; ++i) {
        CAPTURE(i);
        const double u = unit(low), n = static_cast<double>(p.terms[i]);
        // Two rounded operands, the sum, and the rounded result.
        const double factor = (1 + u) * (1 + u) * (1 + n * 0x1p-24 / (1 - n * 0x1p-24)) * (1 + u) - 1;
        const Tensor ratio = (got[i].to(DType::f64) - want[i]).abs() / (scale[i] * factor);
        const double worst = ratio.max().item();
        CHECK(worst <= 1);
        CHECK(worst > 0.02);  // the bound is no empty one, and the dtype is not f32
        CHECK((i == 0 ? low : DType::f32) == got[i].dtype());
      }
    }
}

namespace {

/// A value of the low computation as its exact f64 value and a bound of its error.
struct Bounded {
  Tensor value, error;
};
Bounded rounded(const Bounded& x, double u) { return {x.value, x.error + (x.value.abs() + x.error) * u}; }
/// A product of two bounded matrices with f32 sums of n terms, not yet rounded.
Bounded product(const Bounded& a, const Bounded& b) {
  const double n = static_cast<double>(a.value.size(1)) * 0x1p-24;
  const Tensor exact = matmul(a.value, b.value), magnitudes = matmul(a.value.abs(), b.value.abs());
  const Tensor upper = matmul(a.value.abs() + a.error, b.value.abs() + b.error);
  return {exact, upper * (1 + n / (1 - n)) - magnitudes};
}
Bounded transposed(const Bounded& x) { return {x.value.t(), x.error.t()}; }
Bounded exactly(const Tensor& x) { return {x.to(DType::f64), zeros_like(x.to(DType::f64))}; }

}  // namespace

TEST_CASE("autocast bounds: the gradients of a network are within the error that its steps add up to",
          "[isa]") {
  for (const DType low : {DType::bf16, DType::f16}) {
    CAPTURE(low);
    const double u = unit(low);
    const Tensor x = wave({16, 24}, 0.3), target = wave({16, 5}, 0.6);
    const Tensor w1 = leaf(wave({32, 24}, 0.8) * 0.1), w2 = leaf(wave({5, 32}, 0.2) * 0.1);
    Tensor loss;
    {
      const AutocastGuard guard(low);
      loss = mse_loss(linear(tanh(linear(x, w1, Tensor())), w2, Tensor()), target);
    }
    loss.backward();

    // The same in f64, each value with a bound of the low computation's error. tanh has slope of at most 1,
    // and each operation rounds its result; the casts round the operands.
    const Bounded xl = rounded(exactly(x), u), w1l = rounded(exactly(w1.detach()), u),
                  w2l = rounded(exactly(w2.detach()), u);
    const Bounded h = rounded(product(xl, transposed(w1l)), u);
    const Bounded a = rounded(rounded({tanh(h.value), h.error}, u), u);  // the kernel's own error, too
    const Bounded y = rounded(product(a, transposed(w2l)), u);
    const double n = static_cast<double>(y.value.numel());
    const Tensor difference = y.value - target.to(DType::f64);
    const Bounded dy = rounded({difference * (2 / n), y.error * (2 / n) + difference.abs() * 0x1p-22}, u);
    const Bounded dw2 = rounded(product(transposed(dy), a), u);
    const Bounded da = rounded(product(dy, w2l), u);
    // dh = da (1 - a^2)
    const Tensor slope = 1 - a.value * a.value, slope_error = a.error * (2 * a.value.abs() + a.error) + u;
    const Bounded dh = rounded({da.value * slope, (da.value.abs() + da.error) * (slope.abs() + slope_error) -
                                                      (da.value * slope).abs()},
                               2 * u);
    const Bounded dw1 = rounded(product(transposed(dh), xl), u);

    for (const auto& [got, want] : {std::pair(w1.grad(), dw1), std::pair(w2.grad(), dw2)}) {
      const Tensor off = (got.to(DType::f64) - want.value).abs();
      CHECK((off / want.error).max().item() <= 1);
      CHECK((off / want.error).max().item() > 0.001);
      // The bound of the worst case says something: it is about the size of the gradients, and an eighth for
      // f16.
      CHECK(want.error.mean().item() < (low == DType::bf16 ? 2 : 0.25) * want.value.abs().mean().item());
    }
  }
}

TEST_CASE("autocast: what exceeds the range of the low dtype is infinite, and NaN and infinities stay",
          "[isa]") {
  // f32's largest number is nearer to 2^128 than to bf16's largest one. f16 ends at 65504.
  const Tensor one = ones({1, 1});
  for (const auto& [low, value] : {std::pair(DType::bf16, 3.4028234e38), std::pair(DType::f16, 65520.0)})
    for (const double sign : {1.0, -1.0}) {
      const AutocastGuard guard(low);
      CHECK(matmul(full({1, 1}, sign * value), one).item() == sign * kInf);
    }
  {
    const AutocastGuard guard(DType::f16);
    CHECK(matmul(full({1, 1}, 65519.0), one).item() == 65504);
    CHECK(matmul(full({1, 2}, 300.0), full({2, 1}, 200.0)).item() == kInf);  // the sum overflows
    CHECK(matmul(full({1, 2}, 300.0), tensor({{200.0}, {-199.0}}).to(DType::f32)).item() == 300);
  }
  // Shapes for small and large products. One special element changes its own row alone.
  for (const DType low : {DType::bf16, DType::f16})
    for (const std::int64_t n : {5, 96})
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1})
        for (const double special : {std::nan(""), kInf, -kInf}) {
          CAPTURE(low, n, at, special);
          Tensor a = wave({n, n}, 0.4);
          a[at][n - 1 - at].fill_(special);
          const AutocastGuard guard(low);
          const Tensor y = matmul(a, ones({n, 3})).to(DType::f32);
          for (std::int64_t row = 0; row < n; ++row) {
            const double value = y[row][1].item();
            if (row != at) CHECK(std::isfinite(value));
            else if (std::isnan(special)) CHECK(std::isnan(value));
            else CHECK(value == special);
          }
        }
}

TEST_CASE("autocast: subnormal numbers of f16 count, and those of bf16 may count as 0", "[isa]") {
  for (const std::int64_t n : {3, 80}) {
    CAPTURE(n);
    // 2^-24 is f16's smallest number, and a normal one of f32, in which the products are summed.
    const AutocastGuard f16(DType::f16);
    const Tensor y = matmul(full({n, n}, 0x1p-24), full({n, n}, 2.0));
    CHECK(equal(y.to(DType::f32), full({n, n}, (0x1p-23 * static_cast<double>(n)))));
    CHECK(matmul(full({1, 1}, 0x1p-26), full({1, 1}, 1.0)).item() == 0);  // rounds to 0

    // bf16 has f32's exponents. AVX512_BF16's instruction takes subnormal numbers as 0 and returns none,
    // other kernels compute them. Whichever it is, each term is off by less than 2^-126 of the other factor.
    const AutocastGuard bf16(DType::bf16);
    const double tiny = 0x1.4p-128;
    const Tensor z = matmul(full({n, n}, tiny), full({n, n}, 2.0)).to(DType::f64);
    CHECK(((z - 2 * tiny * static_cast<double>(n)).abs() <= 2 * 0x1p-126 * static_cast<double>(n) + 0x1p-126)
              .all()
              .item<bool>());
    CHECK((z >= 0).all().item<bool>());
    const Tensor normal = matmul(full({n, n}, 0x1p-100), full({n, n}, 2.0)).to(DType::f64);
    CHECK(allclose(normal, full({n, n}, 0x1p-99 * static_cast<double>(n), DType::f64), 0x1p-8, 0));
  }
}
