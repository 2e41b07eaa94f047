#include "tapestry/nn/init.h"

#include <algorithm>
#include <cmath>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;
namespace init = tapestry::nn::init;

namespace {

struct Moments {
  double mean, std, low, high;
};
Moments moments(const Tensor& t) {
  const std::vector<double> v = values_of(t);
  double sum = 0, squares = 0;
  for (const double x : v) sum += x;
  const double n = static_cast<double>(v.size()), mean = sum / n;
  for (const double x : v) squares += (x - mean) * (x - mean);
  const auto [low, high] = std::minmax_element(v.begin(), v.end());
  return {mean, std::sqrt(squares / n), *low, *high};
}

// The tolerance is five standard errors. With 40000 numbers this is 2.5% of std for the mean and, for
// kurtosis up to 3, 1.8% for std.
void check_normal(const Tensor& t, double std) {
  const Moments m = moments(t);
  const double n = static_cast<double>(t.numel());
  CHECK(std::abs(m.mean) < 5 * std / std::sqrt(n));
  CHECK(m.std == Approx(std).epsilon(5 / std::sqrt(2 * n)));
  CHECK(m.high > 3 * std);  // the distribution has tails: P(40000 values <= 3 std) is below 1e-23
}
void check_uniform(const Tensor& t, double bound) {
  const Moments m = moments(t);
  const double n = static_cast<double>(t.numel()), std = bound / std::sqrt(3.0);
  CHECK(std::abs(m.mean) < 5 * std / std::sqrt(n));
  CHECK(m.std == Approx(std).epsilon(5 / std::sqrt(2 * n)));
  CHECK(m.low >= -bound * (1 + 1e-6));
  CHECK(m.high <= bound * (1 + 1e-6));
  CHECK(m.high > bound * (1 - 20 / n));  // P(no value in the last 10/n of the range) is e^-10
}

}  // namespace

TEST_CASE("fans() and gain() give PyTorch's numbers, and fans() refuses vectors") {
  CHECK(init::fans(zeros({5, 3})).in == 3);
  CHECK(init::fans(zeros({5, 3})).out == 5);
  CHECK(init::fans(zeros({8, 3, 2, 4})).in == 24);
  CHECK(init::fans(zeros({8, 3, 2, 4})).out == 64);
  CHECK_THROWS_WITH(init::fans(zeros({5})), ContainsSubstring("two dimensions or more but got [5]"));
  CHECK_THROWS_AS(init::kaiming_uniform_(zeros({5})), ValueError);
  CHECK(init::gain(init::Nonlinearity::relu) == std::sqrt(2.0));
  CHECK(init::gain(init::Nonlinearity::leaky_relu, 0.2) == Approx(std::sqrt(2 / 1.04)));
  CHECK(init::gain(init::Nonlinearity::tanh) == 5.0 / 3);
  CHECK(init::gain(init::Nonlinearity::selu) == 0.75);
  CHECK(init::gain(init::Nonlinearity::linear) == 1);
}

TEST_CASE("each initialisation has the moments and limits of its distribution") {
  manual_seed(7);
  const Shape sizes{160, 250};
  check_uniform(init::uniform_(empty(sizes), -2, 2), 2);
  check_normal(init::normal_(empty(sizes), 0, 0.3), 0.3);
  check_uniform(init::kaiming_uniform_(empty(sizes)), std::sqrt(6.0 / 250));
  check_uniform(init::kaiming_uniform_(empty(sizes), std::sqrt(5.0)), 1 / std::sqrt(250.0));
  check_uniform(init::kaiming_uniform_(empty(sizes), 0, init::Fan::out, init::Nonlinearity::tanh),
                5.0 / 3 * std::sqrt(3.0 / 160));
  check_normal(init::kaiming_normal_(empty(sizes), 0, init::Fan::out), std::sqrt(2.0 / 160));
  check_uniform(init::xavier_uniform_(empty(sizes)), std::sqrt(6.0 / 410));
  check_normal(init::xavier_normal_(empty(sizes), 2.0), 2 * std::sqrt(2.0 / 410));
  check_normal(init::normal_(empty(sizes, DType::f64)), 1);

  // A normal distribution truncated at 2 std has 0.8796 of the standard deviation.
  const Moments cut = moments(init::trunc_normal_(empty(sizes), 1.0, 0.5, 0.0, 2.0));
  CHECK(cut.low >= 0);
  CHECK(cut.high <= 2);
  CHECK(cut.mean == Approx(1).margin(5 * 0.44 / 200));
  CHECK(cut.std == Approx(0.5 * 0.87963).epsilon(5 / std::sqrt(80000.0)));
  CHECK_THROWS_WITH(init::trunc_normal_(empty(sizes), 0, 1, 20, 21), ContainsSubstring("keep only"));
  CHECK_THROWS_AS(init::trunc_normal_(empty(sizes), 0, 1, 2, 1), ValueError);
  CHECK_THROWS_AS(init::normal_(empty(sizes), 0, -1), ValueError);
}

TEST_CASE("orthogonal_ gives orthonormal rows or columns") {
  manual_seed(3);
  for (const Shape& sizes : {Shape{7, 7}, Shape{4, 9}, Shape{9, 4}, Shape{1, 5}, Shape{5, 1},
                             Shape{6, 2, 3, 2}, Shape{130, 140}}) {
    const Tensor t = init::orthogonal_(empty(sizes, DType::f64), 3),
                 m = t.reshape({sizes[0], t.numel() / sizes[0]});
    const bool wide = m.size(0) <= m.size(1);
    const Tensor product = wide ? matmul(m, m.t()) : matmul(m.t(), m);
    CHECK(allclose(product, eye(product.size(0), DType::f64) * 9, 1e-12, 1e-12));
  }
  // The determinant of a random rotation or reflection of the plane is 1 or -1 with equal probability, and
  // its first element has mean 0. Without the signs of R's diagonal all diagonals would have one sign.
  int positive = 0, rotations = 0;
  for (int i = 0; i < 400; ++i) {
    const std::vector<double> m = values_of(init::orthogonal_(empty({2, 2}, DType::f64)));
    positive += m[0] > 0;
    rotations += m[0] * m[3] - m[1] * m[2] > 0;
  }
  CHECK(std::abs(positive - 200) < 50);  // five standard deviations
  CHECK(std::abs(rotations - 200) < 50);
  CHECK_NOTHROW(init::orthogonal_(empty({0, 3})));
  CHECK(init::orthogonal_(empty({3, 3}, DType::bf16)).dtype() == DType::bf16);
  CHECK_THROWS_WITH(init::orthogonal_(empty({3})), ContainsSubstring("[orthogonal_] expected"));
}

TEST_CASE("sparse_ sets the same number of zeros in each column") {
  manual_seed(4);
  const Tensor t = init::sparse_(empty({200, 30}), 0.255, 0.5);
  for (int c = 0; c < 30; ++c) CHECK((t.select(1, c) == 0).sum().item() == 51);
  CHECK(t.abs().sum().item() == Approx(149 * 30 * 0.5 * 0.798).epsilon(0.1));
  CHECK(init::sparse_(empty({3, 2}), 1).abs().sum().item() == 0);
  CHECK_THROWS_WITH(init::sparse_(empty({3}), 0.5), ContainsSubstring("2-d"));
  CHECK_THROWS_WITH(init::sparse_(empty({3, 3}), 1.5), ContainsSubstring("sparsity"));
}

TEST_CASE("eye_ fills a matrix with ones on its diagonal") {
  CHECK(values_of(init::eye_(empty({2, 3}))) == std::vector<double>{1, 0, 0, 0, 1, 0});
  CHECK_THROWS_WITH(init::eye_(empty({3})), ContainsSubstring("expected a matrix"));
}

TEST_CASE("a convolution with dirac_ weights passes channels unchanged") {
  nn::Conv2d conv(
      {.in_channels = 4, .out_channels = 6, .kernel_size = 3, .padding = 1, .groups = 2, .bias = false});
  init::dirac_(conv.weight, 2);
  const Tensor x = formula({2, 4, 5, 5}, 1, 1, DType::f32), y = conv(x).detach();
  CHECK(equal(y.narrow(1, 0, 2), x.narrow(1, 0, 2)));
  CHECK(equal(y.narrow(1, 3, 2), x.narrow(1, 2, 2)));
  CHECK(y.select(1, 2).abs().sum().item() ==
        0);  // each group has three output channels and two input channels
  CHECK(values_of(init::dirac_(empty({2, 1, 2}))) == std::vector<double>{0, 1, 0, 0});
  CHECK_THROWS_WITH(init::dirac_(empty({4, 4})), ContainsSubstring("3-d to 5-d"));
  CHECK_THROWS_WITH(init::dirac_(empty({4, 4, 3}), 3), ContainsSubstring("groups"));
}

TEST_CASE("initialisation is not recorded on the tape and returns its argument") {
  const Tensor w = zeros({3, 4}).set_requires_grad();
  CHECK(init::xavier_uniform_(w).is_same(w));
  CHECK(w.is_leaf());
  CHECK(w.abs().sum().item() > 0);
  init::constant_(w, 0.5);
  CHECK(w.sum().item() == 6);
  init::ones_(w);
  CHECK(w.sum().item() == 12);
  init::zeros_(w);
  CHECK(w.abs().sum().item() == 0);
  CHECK_NOTHROW(init::kaiming_normal_(empty({0, 0})));
}

TEST_CASE("layers start with PyTorch's distributions") {
  manual_seed(11);
  const nn::Linear fc({.in_features = 200, .out_features = 300});
  check_uniform(fc.weight, 1 / std::sqrt(200.0));
  const nn::Linear wide({.in_features = 16, .out_features = 20000});
  check_uniform(wide.bias, 0.25);
  const nn::Conv2d conv({.in_channels = 32, .out_channels = 64, .kernel_size = {5, 3}, .groups = 2});
  check_uniform(conv.weight, 1 / std::sqrt(16.0 * 15));
  const nn::Conv2d many({.in_channels = 2, .out_channels = 20000, .kernel_size = 2});
  check_uniform(many.bias, 1 / std::sqrt(8.0));
  check_normal(nn::Embedding({.num_embeddings = 200, .embedding_dim = 200}).weight, 1);
  const nn::MultiheadAttention attn({.embed_dim = 120, .num_heads = 2});
  check_uniform(attn.in_proj_weight, std::sqrt(6.0 / (120 + 360)));
  check_uniform(attn.out_proj.weight, 1 / std::sqrt(120.0));
  CHECK(attn.in_proj_bias->abs().sum().item() == 0);
  CHECK(attn.out_proj.bias->abs().sum().item() == 0);
  const nn::BatchNorm2d bn({.num_features = 3});
  CHECK(bn.weight->sum().item() == 3);
  CHECK(bn.bias->abs().sum().item() == 0);
  CHECK(bn.running_var->sum().item() == 3);

  // The same seed gives the same model.
  manual_seed(5);
  const nn::Linear a({.in_features = 3, .out_features = 2});
  manual_seed(5);
  const nn::Linear b({.in_features = 3, .out_features = 2});
  CHECK(equal(a.weight, b.weight));
  CHECK(equal(a.bias, b.bias));
}
