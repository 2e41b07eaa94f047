#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/ops.h"
#include "tapestry/nn/functional.h"
#include "tapestry/nn/layers/activation.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("neg", "functions", [](const OpCase& c) { return -c[0]; });
GOLDEN_OP("abs", "functions", [](const OpCase& c) { return abs(c[0]); });
GOLDEN_OP("exp", "functions", [](const OpCase& c) { return exp(c[0]); });
GOLDEN_OP("log", "functions", [](const OpCase& c) { return log(c[0]); });
GOLDEN_OP("sqrt", "functions", [](const OpCase& c) { return sqrt(c[0]); });
GOLDEN_OP("rsqrt", "functions", [](const OpCase& c) { return rsqrt(c[0]); });
GOLDEN_OP("tanh", "functions", [](const OpCase& c) { return tanh(c[0]); });
GOLDEN_OP("sigmoid", "functions", [](const OpCase& c) { return sigmoid(c[0]); });
GOLDEN_OP("relu", "functions", [](const OpCase& c) { return relu(c[0]); });
GOLDEN_OP("silu", "functions", [](const OpCase& c) { return silu(c[0]); });
GOLDEN_OP("gelu", "functions", [](const OpCase& c) { return gelu(c[0], c.flag("tanh")); });
GOLDEN_OP("softplus", "functions",
          [](const OpCase& c) { return softplus(c[0], c.real("beta"), c.real("threshold")); });
BAD_INPUT("softplus", "does not take int64", [] { softplus(zeros({2}, kInt64)); });
TEST_CASE("softplus: the layer and nn::functional compute the same, and PyTorch's defaults hold") {
  const Tensor x = tensor({-3.0, 0.0, 0.5, 30.0}, kFloat64);
  CHECK(equal(nn::functional::softplus(x), softplus(x, 1, 20)));
  CHECK(equal(nn::Softplus({.beta = 0.5, .threshold = 1})(x), softplus(x, 0.5, 1)));
  CHECK(nn::Softplus().str() == "Softplus(beta=1, threshold=20)");
}
GOLDEN_OP("leaky_relu", "functions",
          [](const OpCase& c) { return leaky_relu(c[0], c.real("negative_slope")); });
GOLDEN_OP("elu", "functions", [](const OpCase& c) { return elu(c[0], c.real("alpha")); });
GOLDEN_OP("elu/celu", "functions", [](const OpCase& c) { return celu(c[0], c.real("alpha")); });
GOLDEN_OP("elu/selu", "functions", [](const OpCase& c) { return selu(c[0]); });
GOLDEN_OP("mish", "functions", [](const OpCase& c) { return mish(c[0]); });
GOLDEN_OP("hardswish", "functions", [](const OpCase& c) { return hardswish(c[0]); });
GOLDEN_OP("hardsigmoid", "functions", [](const OpCase& c) { return hardsigmoid(c[0]); });
GOLDEN_OP("hardtanh", "functions",
          [](const OpCase& c) { return hardtanh(c[0], c.scalar("min_val"), c.scalar("max_val")); });
GOLDEN_OP("hardtanh/relu6", "functions", [](const OpCase& c) { return relu6(c[0]); });
GOLDEN_OP("softsign", "functions", [](const OpCase& c) { return softsign(c[0]); });
GOLDEN_OP("logsigmoid", "functions", [](const OpCase& c) { return logsigmoid(c[0]); });
GOLDEN_OP("prelu", "functions", [](const OpCase& c) { return prelu(c[0], c[1]); });
GOLDEN_OP("glu", "functions", [](const OpCase& c) { return glu(c[0], c.integer("dim")); });
BAD_INPUT("leaky_relu", "does not take int64", [] { leaky_relu(zeros({2}, kInt64)); });
BAD_INPUT("elu", "does not take int64", [] { elu(zeros({2}, kInt64)); });
BAD_INPUT("elu", "alpha is 0", [] { celu(zeros({2}), 0); });
BAD_INPUT("mish", "does not take bool", [] { mish(zeros({2}, kBool)); });
BAD_INPUT("hardswish", "does not take int64", [] { hardswish(zeros({2}, kInt64)); });
BAD_INPUT("hardsigmoid", "does not take int64", [] { hardsigmoid(zeros({2}, kInt64)); });
BAD_INPUT("hardtanh", "min 2 is not below max 1", [] { hardtanh(zeros({2}), 2, 1); });
BAD_INPUT("softsign", "does not take int64", [] { softsign(zeros({2}, kInt64)); });
BAD_INPUT("logsigmoid", "undefined tensor", [] { logsigmoid(Tensor()); });
BAD_INPUT("prelu", "the weight has shape [2]", [] { prelu(zeros({2, 3}), zeros({2})); });
BAD_INPUT("glu", "size 3 of dimension -1 is odd", [] { glu(zeros({2, 3})); });
TEST_CASE("activation layers compute the functions of nn::functional, and print their options") {
  namespace F = nn::functional;
  const Tensor x = tensor({{-30.0, -2.5, -1.0, -0.25}, {0.0, 0.5, 4.0, 30.0}}, kFloat64);
  CHECK(equal(nn::ELU({.alpha = 0.5})(x), F::elu(x, 0.5)));
  CHECK(equal(nn::CELU({.alpha = 0.5})(x), F::celu(x, 0.5)));
  CHECK(equal(nn::SELU()(x), F::selu(x)));
  CHECK(equal(nn::Mish()(x), F::mish(x)));
  CHECK(equal(nn::Hardswish()(x), F::hardswish(x)));
  CHECK(equal(nn::Hardsigmoid()(x), F::hardsigmoid(x)));
  CHECK(equal(nn::Hardtanh({.min_val = -2, .max_val = 1})(x), F::hardtanh(x, -2, 1)));
  CHECK(equal(nn::ReLU6()(x), F::relu6(x)));
  CHECK(equal(nn::LeakyReLU()(x), F::leaky_relu(x, 0.01)));
  CHECK(equal(nn::Softsign()(x), F::softsign(x)));
  CHECK(equal(nn::LogSigmoid()(x), F::logsigmoid(x)));
  CHECK(equal(nn::GLU({.dim = 0})(x), F::glu(x, 0)));
  nn::PReLU prelu_layer({.num_parameters = 4, .init = 0.5});
  CHECK(equal(prelu_layer(x.to_float()), F::prelu(x.to_float(), full({4}, 0.5))));
  CHECK(prelu_layer.str() == "PReLU(num_parameters=4)");
  CHECK(nn::ELU().str() == "ELU(alpha=1)");
  CHECK(nn::GLU().str() == "GLU(dim=-1)");
  CHECK(nn::Hardtanh().str() == "Hardtanh(min_val=-1, max_val=1)");
}
GOLDEN_OP("clamp", "functions",
          [](const OpCase& c) { return clamp(c[0], c.maybe_scalar("min"), c.maybe_scalar("max")); });

GOLDEN_OP("neg/in_place", "functions", [](const OpCase& c) { return c[0].clone().neg_(); });
GOLDEN_OP("abs/in_place", "functions", [](const OpCase& c) { return c[0].clone().abs_(); });
GOLDEN_OP("log/in_place", "functions", [](const OpCase& c) { return c[0].clone().log_(); });
GOLDEN_OP("rsqrt/in_place", "functions", [](const OpCase& c) { return c[0].clone().rsqrt_(); });
GOLDEN_OP("exp/in_place", "functions", [](const OpCase& c) { return c[0].clone().exp_(); });
GOLDEN_OP("sqrt/in_place", "functions", [](const OpCase& c) { return c[0].clone().sqrt_(); });
GOLDEN_OP("tanh/in_place", "functions", [](const OpCase& c) { return c[0].clone().tanh_(); });
GOLDEN_OP("sigmoid/in_place", "functions", [](const OpCase& c) { return c[0].clone().sigmoid_(); });
GOLDEN_OP("relu/in_place", "functions", [](const OpCase& c) { return c[0].clone().relu_(); });
GOLDEN_OP("clamp/in_place", "functions",
          [](const OpCase& c) { return c[0].clone().clamp_(c.maybe_scalar("min"), c.maybe_scalar("max")); });

BAD_INPUT("neg", "does not take bool", [] { neg(zeros({2}, kBool)); });
BAD_INPUT("abs", "does not take bool", [] { abs(zeros({2}, kBool)); });
BAD_INPUT("exp", "float32 cannot be stored in place in a int64", [] { zeros({2}, kInt64).exp_(); });
BAD_INPUT("exp", "share memory", [] { zeros({1}).expand({3}).exp_(); });
BAD_INPUT("log", "cannot be stored in place", [] { zeros({2}, kInt64).log_(); });
BAD_INPUT("log", "undefined tensor", [] { log(Tensor()); });
BAD_INPUT("sqrt", "cannot be stored in place", [] { zeros({2}, kInt32).sqrt_(); });
BAD_INPUT("rsqrt", "cannot be stored in place", [] { zeros({2}, kBool).rsqrt_(); });
BAD_INPUT("rsqrt", "undefined tensor", [] { rsqrt(Tensor()); });
BAD_INPUT("tanh", "cannot be stored in place", [] { zeros({2}, kUInt8).tanh_(); });
BAD_INPUT("sigmoid", "cannot be stored in place", [] { zeros({2}, kBool).sigmoid_(); });
BAD_INPUT("relu", "does not take bool", [] { relu(zeros({2}, kBool)); });
BAD_INPUT("silu", "does not take int64", [] { silu(zeros({2}, kInt64)); });
BAD_INPUT("gelu", "does not take int64", [] { gelu(zeros({2}, kInt64)); });
TEST_CASE("clamp: a limit that is NaN gives NaN, as in PyTorch") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1.0, 2.0}).set_requires_grad();
  for (const Tensor& y :
       {clamp(x, nan), clamp(x, {}, nan), clamp(x, 0, nan), clamp(x, nan, 1), x.detach().clone().clamp_(nan)})
    CHECK(isnan(y).sum().item<int>() == 2);
  clamp(x, nan).sum().backward();
  CHECK(equal(x.grad(), zeros({2})));
}

TEST_CASE("clamp: limits beyond what an integer dtype holds do not limit, as in PyTorch") {
  const std::int64_t far = std::int64_t{1} << 40;
  const Tensor bytes = tensor({1, 2, 200}, kUInt8), ints = tensor({-1, 2, 200}, kInt32);
  CHECK(equal(bytes.clamp(-5, 10), tensor({1, 2, 10}, kUInt8)));
  CHECK(equal(bytes.clamp(-5), bytes));
  CHECK(equal(bytes.clamp({}, 300), bytes));
  CHECK(equal(ints.clamp(0, far), tensor({0, 2, 200}, kInt32)));
  CHECK(equal(ints.clone().clamp_(-far, 100), tensor({-1, 2, 100}, kInt32)));
}
BAD_INPUT("clamp", "min 300 is more than uint8 can hold", [] { zeros({2}, kUInt8).clamp(300); });
BAD_INPUT("clamp", "max -1 is less than uint8 can hold", [] { zeros({2}, kUInt8).clamp_({}, -1); });

BAD_INPUT("clamp", "neither min nor max", [] { clamp(zeros({2}), {}); });
BAD_INPUT("clamp", "does not take bool", [] { clamp(zeros({2}, kBool), 0); });
BAD_INPUT("clamp", "cannot be stored in place", [] { zeros({2}, kInt64).clamp_(0.5); });

namespace {

// Returns the largest error of an f32 function, compared with the same function in f64, in units in the last
// place.
double worst_ulps(float from, float to, Tensor (*f)(const Tensor&), double (*reference)(double)) {
  const int n = 20001;
  std::vector<float> x(n);
  for (int i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = from + (to - from) * static_cast<float>(i) / (n - 1);
  const Tensor y = f(tensor(x));
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    const double exact = reference(static_cast<double>(x[static_cast<std::size_t>(i)]));
    const float rounded = static_cast<float>(exact);
    const double ulp =
        static_cast<double>(std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity())) -
        std::abs(static_cast<double>(rounded));
    worst = std::max(worst, std::abs(static_cast<double>(y.data<float>()[i]) - exact) / ulp);
  }
  return worst;
}

}  // namespace

TEST_CASE("f32 functions are exact to a few units in the last place") {
  const auto sigmoid_of = [](double x) { return 1 / (1 + std::exp(-x)); };
  CHECK(worst_ulps(-87.0f, 88.7f, exp, [](double x) { return std::exp(x); }) < 2);
  CHECK(worst_ulps(-103.9f, -87.0f, exp, [](double x) { return std::exp(x); }) < 2);  // denormal results
  CHECK(worst_ulps(-0.01f, 0.01f, exp, [](double x) { return std::exp(x); }) < 2);
  CHECK(worst_ulps(1e-6f, 3.0f, log, [](double x) { return std::log(x); }) < 3);
  CHECK(worst_ulps(1.0f, 1e30f, log, [](double x) { return std::log(x); }) < 3);
  CHECK(worst_ulps(-12.0f, 12.0f, tanh, [](double x) { return std::tanh(x); }) < 4);
  CHECK(worst_ulps(-0.7f, 0.7f, tanh, [](double x) { return std::tanh(x); }) < 4);
  CHECK(worst_ulps(-1e-3f, 1e-3f, tanh, [](double x) { return std::tanh(x); }) < 4);
  CHECK(worst_ulps(-80.0f, 20.0f, sigmoid, sigmoid_of) < 4);
  // If x < -1, the formula of gelu, x Phi(x), loses digits by cancellation. So the error is measured in units
  // of the largest term, which is x.
  CHECK(worst_ulps(
            -1.0f, 10.0f, [](const Tensor& x) { return gelu(x); },
            [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }) < 8);
}
