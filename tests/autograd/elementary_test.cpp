#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("sin", "elementary", [](const OpCase& c) { return sin(c[0]); });
GOLDEN_OP("sin/in_place", "elementary", [](const OpCase& c) { return c[0].clone().sin_(); });
BAD_INPUT("sin", "cannot be stored in place", [] { zeros({2}, kInt64).sin_(); });
GOLDEN_OP("cos", "elementary", [](const OpCase& c) { return cos(c[0]); });
GOLDEN_OP("cos/in_place", "elementary", [](const OpCase& c) { return c[0].clone().cos_(); });
BAD_INPUT("cos", "cannot be stored in place", [] { zeros({2}, kInt64).cos_(); });
GOLDEN_OP("tan", "elementary", [](const OpCase& c) { return tan(c[0]); });
GOLDEN_OP("tan/in_place", "elementary", [](const OpCase& c) { return c[0].clone().tan_(); });
BAD_INPUT("tan", "cannot be stored in place", [] { zeros({2}, kInt64).tan_(); });
GOLDEN_OP("asin", "elementary", [](const OpCase& c) { return asin(c[0]); });
GOLDEN_OP("asin/in_place", "elementary", [](const OpCase& c) { return c[0].clone().asin_(); });
BAD_INPUT("asin", "cannot be stored in place", [] { zeros({2}, kInt64).asin_(); });
GOLDEN_OP("acos", "elementary", [](const OpCase& c) { return acos(c[0]); });
GOLDEN_OP("acos/in_place", "elementary", [](const OpCase& c) { return c[0].clone().acos_(); });
BAD_INPUT("acos", "cannot be stored in place", [] { zeros({2}, kInt64).acos_(); });
GOLDEN_OP("atan", "elementary", [](const OpCase& c) { return atan(c[0]); });
GOLDEN_OP("atan/in_place", "elementary", [](const OpCase& c) { return c[0].clone().atan_(); });
BAD_INPUT("atan", "cannot be stored in place", [] { zeros({2}, kInt64).atan_(); });
GOLDEN_OP("sinh", "elementary", [](const OpCase& c) { return sinh(c[0]); });
GOLDEN_OP("sinh/in_place", "elementary", [](const OpCase& c) { return c[0].clone().sinh_(); });
BAD_INPUT("sinh", "cannot be stored in place", [] { zeros({2}, kInt64).sinh_(); });
GOLDEN_OP("cosh", "elementary", [](const OpCase& c) { return cosh(c[0]); });
GOLDEN_OP("cosh/in_place", "elementary", [](const OpCase& c) { return c[0].clone().cosh_(); });
BAD_INPUT("cosh", "cannot be stored in place", [] { zeros({2}, kInt64).cosh_(); });
GOLDEN_OP("asinh", "elementary", [](const OpCase& c) { return asinh(c[0]); });
GOLDEN_OP("asinh/in_place", "elementary", [](const OpCase& c) { return c[0].clone().asinh_(); });
BAD_INPUT("asinh", "cannot be stored in place", [] { zeros({2}, kInt64).asinh_(); });
GOLDEN_OP("acosh", "elementary", [](const OpCase& c) { return acosh(c[0]); });
GOLDEN_OP("acosh/in_place", "elementary", [](const OpCase& c) { return c[0].clone().acosh_(); });
BAD_INPUT("acosh", "cannot be stored in place", [] { zeros({2}, kInt64).acosh_(); });
GOLDEN_OP("atanh", "elementary", [](const OpCase& c) { return atanh(c[0]); });
GOLDEN_OP("atanh/in_place", "elementary", [](const OpCase& c) { return c[0].clone().atanh_(); });
BAD_INPUT("atanh", "cannot be stored in place", [] { zeros({2}, kInt64).atanh_(); });
GOLDEN_OP("erf", "elementary", [](const OpCase& c) { return erf(c[0]); });
GOLDEN_OP("erf/in_place", "elementary", [](const OpCase& c) { return c[0].clone().erf_(); });
BAD_INPUT("erf", "cannot be stored in place", [] { zeros({2}, kInt64).erf_(); });
GOLDEN_OP("erfinv", "elementary", [](const OpCase& c) { return erfinv(c[0]); });
GOLDEN_OP("erfinv/in_place", "elementary", [](const OpCase& c) { return c[0].clone().erfinv_(); });
BAD_INPUT("erfinv", "cannot be stored in place", [] { zeros({2}, kInt64).erfinv_(); });
GOLDEN_OP("expm1", "elementary", [](const OpCase& c) { return expm1(c[0]); });
GOLDEN_OP("expm1/in_place", "elementary", [](const OpCase& c) { return c[0].clone().expm1_(); });
BAD_INPUT("expm1", "cannot be stored in place", [] { zeros({2}, kInt64).expm1_(); });
GOLDEN_OP("exp2", "elementary", [](const OpCase& c) { return exp2(c[0]); });
GOLDEN_OP("exp2/in_place", "elementary", [](const OpCase& c) { return c[0].clone().exp2_(); });
BAD_INPUT("exp2", "cannot be stored in place", [] { zeros({2}, kInt64).exp2_(); });
GOLDEN_OP("log1p", "elementary", [](const OpCase& c) { return log1p(c[0]); });
GOLDEN_OP("log1p/in_place", "elementary", [](const OpCase& c) { return c[0].clone().log1p_(); });
BAD_INPUT("log1p", "cannot be stored in place", [] { zeros({2}, kInt64).log1p_(); });
GOLDEN_OP("log2", "elementary", [](const OpCase& c) { return log2(c[0]); });
GOLDEN_OP("log2/in_place", "elementary", [](const OpCase& c) { return c[0].clone().log2_(); });
BAD_INPUT("log2", "cannot be stored in place", [] { zeros({2}, kInt64).log2_(); });
GOLDEN_OP("log10", "elementary", [](const OpCase& c) { return log10(c[0]); });
GOLDEN_OP("log10/in_place", "elementary", [](const OpCase& c) { return c[0].clone().log10_(); });
BAD_INPUT("log10", "cannot be stored in place", [] { zeros({2}, kInt64).log10_(); });
GOLDEN_OP("erfc", "elementary", [](const OpCase& c) { return erfc(c[0]); });
GOLDEN_OP("erfc/in_place", "elementary", [](const OpCase& c) { return c[0].clone().erfc_(); });
BAD_INPUT("erfc", "cannot be stored in place", [] { zeros({2}, kInt64).erfc_(); });
GOLDEN_OP("lgamma", "elementary", [](const OpCase& c) { return lgamma(c[0]); });
GOLDEN_OP("lgamma/in_place", "elementary", [](const OpCase& c) { return c[0].clone().lgamma_(); });
BAD_INPUT("lgamma", "cannot be stored in place", [] { zeros({2}, kInt64).lgamma_(); });
GOLDEN_OP("digamma", "elementary", [](const OpCase& c) { return digamma(c[0]); });
GOLDEN_OP("digamma/in_place", "elementary", [](const OpCase& c) { return c[0].clone().digamma_(); });
BAD_INPUT("digamma", "cannot be stored in place", [] { zeros({2}, kInt64).digamma_(); });
NOT_APPLICABLE("digamma", gradgradcheck, "the derivatives of trigamma are not among the operations");
GOLDEN_OP("logit", "elementary", [](const OpCase& c) { return c[0].logit(c.maybe_real("eps")); });
GOLDEN_OP("logit/in_place", "elementary", [](const OpCase& c) { return c[0].clone().logit_(); });
BAD_INPUT("logit", "eps 0.75 is outside", [] { logit(zeros({2}), 0.75); });
GOLDEN_OP("floor", "elementary", [](const OpCase& c) { return floor(c[0]); });
GOLDEN_OP("floor/in_place", "elementary", [](const OpCase& c) { return c[0].clone().floor_(); });
GOLDEN_OP("ceil", "elementary", [](const OpCase& c) { return ceil(c[0]); });
GOLDEN_OP("ceil/in_place", "elementary", [](const OpCase& c) { return c[0].clone().ceil_(); });
GOLDEN_OP("trunc", "elementary", [](const OpCase& c) { return trunc(c[0]); });
GOLDEN_OP("trunc/in_place", "elementary", [](const OpCase& c) { return c[0].clone().trunc_(); });
GOLDEN_OP("round", "elementary", [](const OpCase& c) { return round(c[0]); });
GOLDEN_OP("round/in_place", "elementary", [](const OpCase& c) { return c[0].clone().round_(); });
GOLDEN_OP("sign", "elementary", [](const OpCase& c) { return sign(c[0]); });
GOLDEN_OP("sign/in_place", "elementary", [](const OpCase& c) { return c[0].clone().sign_(); });
BAD_INPUT("floor", "does not take bool", [] { floor(zeros({2}, kBool)); });
BAD_INPUT("ceil", "does not take bool", [] { ceil(zeros({2}, kBool)); });
BAD_INPUT("trunc", "does not take bool", [] { trunc(zeros({2}, kBool)); });
BAD_INPUT("round", "does not take bool", [] { round(zeros({2}, kBool)); });
BAD_INPUT("sign", "undefined tensor", [] { sign(Tensor()); });
GOLDEN_OP("round/decimals", "elementary", [](const OpCase& c) { return round(c[0], c.integer("decimals")); });
BAD_INPUT("round", "does not take int64 with decimals 2", [] { round(zeros({2}, kInt64), 2); });
TEST_CASE("round_ with decimals changes the tensor in place") {
  const Tensor x = tensor({1.26, -3.14}, kFloat64);
  CHECK(allclose(x.round_(1), tensor({1.3, -3.1}, kFloat64)));
}

namespace {

using Reference = double (*)(double);

// Returns the largest error of an f32 function, compared with the same function in f64, in units in the last
// place of the result.
double worst_ulps(const std::vector<float>& x, Tensor (*f)(const Tensor&), Reference reference) {
  const Tensor y = f(tensor(x));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = reference(static_cast<double>(x[i]));
    const float rounded = static_cast<float>(exact);
    const float got = y.data<float>()[i];
    if (std::isnan(rounded) ? std::isnan(got) : got == rounded) continue;
    const double ulp =
        static_cast<double>(std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity())) -
        std::abs(static_cast<double>(rounded));
    const double error = std::abs(static_cast<double>(got) - exact) / ulp;
    if (!(error <= worst)) worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return worst;
}
// About 65,000 numbers: every 65,537th bit pattern of f32 with an absolute value in [low, high], of both
// signs if `negative`. They include subnormal numbers, and infinity and NaN if `high` is infinite.
std::vector<float> numbers(float low, float high, bool negative = true) {
  std::vector<float> all;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65537) {
    const auto word = static_cast<std::uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, sizeof x);
    const float a = std::abs(x);
    const bool special = std::isinf(high) && std::isnan(x);
    if (special || (a >= low && a <= high && (negative || !std::signbit(x)))) all.push_back(x);
  }
  return all;
}
std::vector<float> evenly(double from, double to) {
  std::vector<float> all(20001);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<float>(from + (to - from) * static_cast<double>(i) / 20000);
  return all;
}
constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("f32 elementary functions are exact to a few units in the last place over all inputs") {
  CHECK(worst_ulps(numbers(0, kInf), sin, [](double x) { return std::sin(x); }) < 2);
  CHECK(worst_ulps(numbers(0, kInf), cos, [](double x) { return std::cos(x); }) < 2);
  CHECK(worst_ulps(numbers(0, kInf), tan, [](double x) { return std::tan(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), asin, [](double x) { return std::asin(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), acos, [](double x) { return std::acos(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), atan, [](double x) { return std::atan(x); }) < 3);
  CHECK(worst_ulps(numbers(0, kInf), sinh, [](double x) { return std::sinh(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), cosh, [](double x) { return std::cosh(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), asinh, [](double x) { return std::asinh(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), acosh, [](double x) { return std::acosh(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), atanh, [](double x) { return std::atanh(x); }) < 4);
  CHECK(worst_ulps(numbers(0, kInf), erf, [](double x) { return std::erf(x); }) < 3);
  CHECK(worst_ulps(numbers(0, kInf), expm1, [](double x) { return std::expm1(x); }) < 3);
  CHECK(worst_ulps(numbers(0, kInf), exp2, [](double x) { return std::exp2(x); }) < 2);
  CHECK(worst_ulps(numbers(0, kInf), log1p, [](double x) { return std::log1p(x); }) < 3);
  CHECK(worst_ulps(numbers(0, kInf), log2, [](double x) { return std::log2(x); }) < 3);
  CHECK(worst_ulps(numbers(0, kInf), log10, [](double x) { return std::log10(x); }) < 3);
  CHECK(worst_ulps(evenly(-10, 10), sin, [](double x) { return std::sin(x); }) < 2);
  CHECK(worst_ulps(evenly(-10, 10), cos, [](double x) { return std::cos(x); }) < 2);
  CHECK(worst_ulps(evenly(-10, 10), tan, [](double x) { return std::tan(x); }) < 4);
  CHECK(worst_ulps(evenly(-1, 1), asin, [](double x) { return std::asin(x); }) < 4);
  CHECK(worst_ulps(evenly(-1, 1), acos, [](double x) { return std::acos(x); }) < 4);
  CHECK(worst_ulps(evenly(-90, 90), sinh, [](double x) { return std::sinh(x); }) < 4);
  CHECK(worst_ulps(evenly(-90, 90), cosh, [](double x) { return std::cosh(x); }) < 4);
  CHECK(worst_ulps(evenly(-4, 4), asinh, [](double x) { return std::asinh(x); }) < 4);
  CHECK(worst_ulps(evenly(1, 4), acosh, [](double x) { return std::acosh(x); }) < 4);
  CHECK(worst_ulps(evenly(-1, 1), atanh, [](double x) { return std::atanh(x); }) < 4);
  CHECK(worst_ulps(evenly(-4, 4), erf, [](double x) { return std::erf(x); }) < 3);
  CHECK(worst_ulps(evenly(-20, 89), expm1, [](double x) { return std::expm1(x); }) < 3);
  CHECK(worst_ulps(evenly(-150, 129), exp2, [](double x) { return std::exp2(x); }) < 2);
  CHECK(worst_ulps(evenly(-1, 3), log1p, [](double x) { return std::log1p(x); }) < 3);
  CHECK(worst_ulps(evenly(0.5, 3), log2, [](double x) { return std::log2(x); }) < 3);
  CHECK(worst_ulps(evenly(0.5, 3), log10, [](double x) { return std::log10(x); }) < 3);
}

TEST_CASE("erfinv is the inverse of erf") {
  // In f64 it is exact to the rounding of its argument.
  for (const double x : {1e-300, 1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9, 1 - 0x1p-53}) {
    const double y = erfinv(tensor({x}, kFloat64)).item();
    const double slope = 2 / std::sqrt(3.14159265358979323846) * std::exp(-y * y);
    CHECK(std::abs(std::erf(y) - x) <= 4 * (0x1p-53 * x + slope * y * 0x1p-52));
    CHECK(erfinv(tensor({-x}, kFloat64)).item() == -y);
  }
  // Giles's polynomials have a relative error of 4e-7 in f32.
  const std::vector<float> x = evenly(-0.9999, 0.9999);
  const Tensor y = erfinv(tensor(x)), exact = erfinv(tensor(x).to_double());
  CHECK(allclose(y.to_double(), exact, 6e-7, 1e-30));
}

TEST_CASE("sin of large angles, of infinity and of NaN does not depend on its neighbours") {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.37f;
  const Tensor small = sin(tensor(x));
  x[300] = 3e38f;
  x[999] = kInf;
  const Tensor mixed = sin(tensor(x)), in_place = tensor(x).sin_();
  CHECK(allclose(mixed.narrow(0, 0, 256), small.narrow(0, 0, 256), 0, 0));
  CHECK(allclose(mixed.narrow(0, 301, 698), small.narrow(0, 301, 698), 1e-6, 1e-7));
  CHECK(std::abs(mixed.select(0, 300).item() - std::sin(static_cast<double>(3e38f))) < 1e-7);
  CHECK(std::isnan(mixed.select(0, 999).item()));
  CHECK(allclose(mixed, in_place, 0, 0, true));
}
