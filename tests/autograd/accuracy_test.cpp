// Measures errors of f32 functions against f64 references at the arguments where they are largest, and checks
// that the loops for AVX-512 give the bits of the other loops.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/kernels/ops/functions.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;

namespace {

/// The values of f in f32 and in f64 at the points.
struct Values {
  Tensor x, y, exact;
  Values(const Tensor& points, const std::function<Tensor(const Tensor&)>& f)
      : x(points.to(kFloat64)), y(f(points).to(kFloat64)), exact(f(x)) {}
};

double ulp_of(double y) {
  const float size = std::abs(static_cast<float>(y));
  return static_cast<double>(std::nextafter(size, std::numeric_limits<float>::infinity())) -
         static_cast<double>(size);
}
double worst_ulps(const Tensor& points, const std::function<Tensor(const Tensor&)>& f) {
  const Values v(points, f);
  double worst = 0;
  for (std::int64_t i = 0; i < v.x.numel(); ++i) {
    const double exact = v.exact.data<double>()[i];
    worst = std::max(worst, std::abs(v.y.data<double>()[i] - exact) / ulp_of(exact));
  }
  return worst;
}

Tensor between(double low, double high) { return rand({20000}) * (high - low) + low; }
/// The f32 numbers next to x, 5000 on each side.
Tensor around(float x) {
  std::vector<float> points;
  const std::int32_t bits = std::bit_cast<std::int32_t>(x);
  for (std::int32_t i = -5000; i < 5000; ++i) points.push_back(std::bit_cast<float>(bits + i));
  return tensor(points);
}

/// Random bit patterns: numbers of all magnitudes, infinities and NaN.
Tensor any_bits(std::int64_t n) {
  const Tensor bits =
      randint(std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), {n});
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] =
        std::bit_cast<float>(static_cast<std::int32_t>(bits.data<std::int64_t>()[i]));
  return tensor(x);
}

std::uint32_t bits_of(float x) { return x != x ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x); }

void check_same(const char* name, const std::function<Tensor()>& f) {
  CAPTURE(name);
  std::vector<Tensor> results;
  for (const bool on : {false, true}) {
    const WideLoops use(on);
    results.push_back(f());
  }
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < results[0].numel(); ++i)
    different += bits_of(results[0].data<float>()[i]) != bits_of(results[1].data<float>()[i]);
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("digamma in f32 is accurate at its positive root and everywhere above 0") {
  manual_seed(1);
  const auto f = [](const Tensor& x) { return digamma(x); };
  CHECK(worst_ulps(between(1e-6, 1), f) < 4);
  CHECK(worst_ulps(between(1, 1.4), f) < 4);
  CHECK(worst_ulps(between(1.5, 2), f) < 4);
  CHECK(worst_ulps(between(2, 3), f) < 7);
  CHECK(worst_ulps(between(3, 1000), f) < 5);
  CHECK(worst_ulps(around(1.0f), f) < 4);
  CHECK(worst_ulps(around(2.0f), f) < 7);
  // At the root the f64 kernel has an absolute error of 1e-15. The reference is psi's Taylor series there.
  const Tensor x = around(1.46163214f), y = digamma(x);
  double worst = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double d = static_cast<double>(x.data<float>()[i]) - 1.4616321449683623413;
    const double exact = d * (0.96767224544762117 + d * (-0.4427631689 + d * 0.258499760959));
    worst = std::max(worst, std::abs(static_cast<double>(y.data<float>()[i]) - exact) / ulp_of(exact));
  }
  CHECK(worst < 4);
}

TEST_CASE("digamma in f32 loses a few units of its two terms below 0") {
  manual_seed(2);
  for (const double low : {-1.0, -4.0, -100.0, -1e5}) {
    CAPTURE(low);
    const Tensor points = between(low, 0);
    const Values v(points, [](const Tensor& x) { return digamma(x); });
    const Tensor above = digamma(1 - v.x);
    double worst = 0;
    for (std::int64_t i = 0; i < points.numel(); ++i) {
      const double exact = v.exact.data<double>()[i], psi = above.data<double>()[i];
      const double scale = std::abs(psi) + std::abs(exact - psi);
      worst = std::max(worst, std::abs(v.y.data<double>()[i] - exact) / (0x1p-24 * scale));
    }
    CHECK(worst < 8);
  }
}

TEST_CASE("the gradient of lgamma in f32 is accurate at its root") {
  const Tensor x = around(1.46163214f).requires_grad_();
  lgamma(x).sum().backward();
  CHECK(equal(x.grad(), digamma(x.detach())));
}

TEST_CASE("erfc in f32 is accurate to 6 ulp where it is small") {
  manual_seed(3);
  const auto f = [](const Tensor& x) { return erfc(x); };
  CHECK(worst_ulps(between(-5, 0), f) < 6);
  CHECK(worst_ulps(between(0, 1), f) < 6);
  CHECK(worst_ulps(between(1, 4), f) < 6);
  CHECK(worst_ulps(between(4, 9.2), f) < 6);
  CHECK(worst_ulps(between(9.2, 10), f) < 4);  // subnormal results
}

TEST_CASE("logaddexp in f32 loses a few units of its logarithm where the sum is 0") {
  manual_seed(4);
  const Tensor a = between(-3, 0), b = log(1 - exp(a.to(kFloat64))).to(kFloat32);
  const Tensor y = logaddexp(a, b).to(kFloat64), exact = logaddexp(a.to(kFloat64), b.to(kFloat64));
  double worst = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i)
    worst = std::max(worst, std::abs(y.data<double>()[i] - exact.data<double>()[i]) * 0x1p24);
  CHECK(worst < 3);
}

TEST_CASE("pow in f32 is exact to 0.6 ulp and has the special cases of IEEE 754", "[isa]") {
  manual_seed(5);
  const auto check_pow = [](const Tensor& x, const Tensor& y) {
    const Tensor z = pow(x, y);
    double worst = 0;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < z.numel(); ++i) {
      const float a = x.data<float>()[i], b = y.data<float>()[i], got = z.data<float>()[i];
      const double exact = std::pow(static_cast<double>(a), static_cast<double>(b));
      const float rounded = static_cast<float>(exact);
      if (rounded == 0 || !std::isfinite(rounded)) wrong += bits_of(got) != bits_of(rounded);
      else worst = std::max(worst, std::abs(static_cast<double>(got) - exact) / ulp_of(exact));
    }
    CHECK(wrong == 0);
    CHECK(worst < 0.6);
  };
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> special = {
      0.0f,   -0.0f,       1.0f,     -1.0f,      inf,         -inf,       nan,         2.0f,
      -2.0f,  3.0f,        -3.0f,    0.5f,       -0.5f,       1e-45f,     -1e-45f,     3e38f,
      -3e38f, 16777216.0f, -1.0e10f, 8388607.0f, 0.99999994f, 1.0000001f, -1.0000001f, -33554432.0f};
  std::vector<float> first, second;
  for (const float a : special)
    for (const float b : special) first.push_back(a), second.push_back(b);
  check_pow(tensor(first), tensor(second));
  check_pow(any_bits(20000), any_bits(20000));
  check_pow(any_bits(20000), randint(-40, 40, {20000}).to(kFloat32));
  check_pow(between(0, 3), between(-80, 80));
  check_pow(around(1.0f), full({10000}, -1e6f));
}

TEST_CASE("loops for AVX-512 give the bits of the other loops", "[isa]") {
  manual_seed(6);
  const Tensor a = any_bits(5003), b = any_bits(5003), c = randn({5003}) * 3, d = rand({5003});
  using F = Tensor (*)(const Tensor&);
  const std::pair<const char*, F> functions[] = {
      {"exp2", exp2},     {"expm1", expm1},    {"log1p", log1p}, {"log2", log2}, {"log10", log10},
      {"asin", asin},     {"acos", acos},      {"atan", atan},   {"sinh", sinh}, {"cosh", cosh},
      {"asinh", asinh},   {"acosh", acosh},    {"atanh", atanh}, {"erf", erf},   {"erfc", erfc},
      {"erfinv", erfinv}, {"digamma", digamma}};
  for (const auto& [name, f] : functions)
    for (const Tensor& x : {a, c, d, c.narrow(0, 1, 7), c.reshape({5003, 1}).expand({5003, 3})})
      check_same(name, [f = f, &x] { return f(x).contiguous(); });
  kernels::for_rows_of(kernels::Functions(), [&]<class Row>() {
    const Tensor low = c.to(kBFloat16), narrow = c.narrow(0, 1, 7),
                 expanded = c.reshape({5003, 1}).expand({5003, 3});
    for (const Tensor& x : {a, c, d, low, narrow, expanded})
      check_same(Row::kSlotName.text, [&] {
        return autograd::call_function<Row::kSlotName>(x, {2, 10, 0.5}).to(kFloat32).contiguous();
      });
  });
  check_same("pow", [&] { return pow(a, b); });
  check_same("pow", [&] { return pow(d, c); });
  check_same("pow", [&] { return pow(d, 2.25); });
  check_same("pow", [&] { return pow(full({}, 1.5), c); });
  check_same("atan2", [&] { return atan2(a, b); });
  check_same("logaddexp", [&] { return logaddexp(c, d); });
}
