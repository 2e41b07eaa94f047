// Log-probabilities, entropies and moments against values from PyTorch and closed forms; samples against
// their distributions.
#include "tapestry/nn/distributions.h"

#include <cmath>
#include <vector>

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributions;

namespace {

void check_near(const Tensor& got, const std::vector<double>& want, double tolerance = 1e-12) {
  REQUIRE(got.numel() == static_cast<std::int64_t>(want.size()));
  const Tensor dense = got.to(kFloat64).contiguous();
  for (std::size_t i = 0; i < want.size(); ++i)
    CHECK(dense.data<double>()[i] == Approx(want[i]).epsilon(tolerance).margin(tolerance));
}

const std::vector<double> kProbs = {0.1, 0.2, 0.3, 0.4};

}  // namespace

TEST_CASE("Categorical: probabilities, entropy and log_prob") {
  const Tensor probs = tensor(kProbs, kFloat64);
  double entropy = 0;
  for (const double p : kProbs) entropy -= p * std::log(p);
  // Unnormalised probabilities and shifted logits give the same distribution.
  for (const Categorical& c : {Categorical({.probs = probs * 3}), Categorical({.logits = probs.log() + 7})}) {
    CHECK(c.batch_shape() == Shape{});
    check_near(c.probs(), kProbs);
    check_near(c.entropy(), {entropy});
    check_near(c.log_prob(tensor({3, 0})), {std::log(0.4), std::log(0.1)});
    CHECK(std::isnan(c.mean().item()));
  }
  const Categorical rows({.logits = stack({probs.log(), (probs * 0 + 1).log()})});
  CHECK(rows.batch_shape() == Shape{2});
  check_near(rows.log_prob(tensor({1, 1})), {std::log(0.2), std::log(0.25)});
  // Values broadcast: one sample per row of a (3, 2) tensor.
  CHECK(rows.log_prob(zeros({3, 2}, kInt64)).sizes() == Shape{3, 2});
  CHECK(rows.log_prob(zeros({3, 1}, kInt64)).sizes() == Shape{3, 2});
  CHECK(rows.sample({5, 3}).sizes() == Shape{5, 3, 2});
  CHECK(rows.sample({0}).sizes() == Shape{0, 2});
  // A probability of 0 adds nothing to the entropy, and gives finite gradients.
  const Tensor logits = tensor({0.0, -INFINITY, 0.0}, kFloat64).set_requires_grad();
  const Tensor h = Categorical({.logits = logits}).entropy();
  CHECK(h.item() == Approx(std::log(2.0)));
  h.backward();
  for (const int i : {0, 1, 2}) CHECK(std::isfinite(logits.grad()[i].item()));
}

TEST_CASE("Categorical: samples have the given frequencies, each column its own") {
  manual_seed(1);
  const Tensor probs = tensor({{0.1, 0.2, 0.3, 0.4}, {0.25, 0.25, 0.25, 0.25}}, kFloat64);
  const std::int64_t n = 20000;
  const Tensor drawn = Categorical({.probs = probs}).sample({n});
  CHECK(drawn.sizes() == Shape{n, 2});
  CHECK(drawn.dtype() == kInt64);
  for (const int column : {0, 1}) {
    const Tensor counts = drawn.select(1, column).bincount({}, 4);
    double chi_square = 0;
    for (int i = 0; i < 4; ++i) {
      const double want = static_cast<double>(n) * probs[column][i].item();
      chi_square += std::pow(counts[i].item() - want, 2) / want;
    }
    CHECK(chi_square < 16.3);  // exceeded with probability 0.001 for 3 degrees of freedom
  }
}

TEST_CASE("Bernoulli: log_prob, entropy, moments and frequency") {
  const Tensor p = tensor({0.2, 0.5}, kFloat64);
  const std::vector<double> log_p = {std::log(0.8), std::log(0.5)};
  for (const Bernoulli& b : {Bernoulli({.probs = p}), Bernoulli({.logits = (p / (1 - p)).log()})}) {
    check_near(b.log_prob(tensor({0.0, 1.0}, kFloat64)), log_p);
    check_near(b.entropy(), {-0.2 * std::log(0.2) - 0.8 * std::log(0.8), std::log(2.0)});
    check_near(b.mean(), {0.2, 0.5});
    check_near(b.variance(), {0.16, 0.25});
    check_near(b.stddev(), {0.4, 0.5});
  }
  manual_seed(2);
  const Tensor drawn = Bernoulli({.probs = p}).sample({10000});
  CHECK(drawn.dtype() == kFloat64);
  CHECK(eq(drawn, 0).mul(eq(drawn, 1)).any().item<bool>() == false);
  check_near(drawn.mean(0), {0.2, 0.5}, 0.02);  // 4 standard deviations
  // Far from 0, log(1 + exp(x)) must not overflow.
  check_near(Bernoulli({.logits = tensor({800.0, -800.0}, kFloat64)}).log_prob(tensor({0.0, 1.0}, kFloat64)),
             {-800, -800});
}

TEST_CASE("Normal: log_prob, entropy, moments and samples") {
  const Normal d(tensor({0.0, 1.0}, kFloat64), tensor({1.0, 2.0}, kFloat64));
  // torch.distributions.Normal(...).log_prob and .entropy
  check_near(d.log_prob(tensor({0.5, -2.0}, kFloat64)), {-1.0439385332046727, -2.737085713764618});
  check_near(d.entropy(), {1.4189385332046727, 2.112085713764618});
  check_near(d.mean(), {0, 1});
  check_near(d.stddev(), {1, 2});
  manual_seed(3);
  const Tensor x = d.sample({20000});
  CHECK(x.sizes() == Shape{20000, 2});
  check_near(x.mean(0), {0, 1}, 0.06);  // 4 standard deviations
  check_near(x.std(0), {1, 2}, 0.04);
  CHECK(Normal(0, 1).sample({3}).dtype() == kFloat32);
}

TEST_CASE("Uniform: log_prob, entropy, moments and samples") {
  const Uniform d(tensor({0.0, -1.0}, kFloat64), tensor({2.0, 3.0}, kFloat64));
  check_near(d.log_prob(tensor({0.0, 2.5}, kFloat64)), {-std::log(2.0), -std::log(4.0)});
  for (const double outside : {-0.5, 2.0})
    CHECK(d.log_prob(full({2}, outside, kFloat64))[0].item() == -INFINITY);
  check_near(d.entropy(), {std::log(2.0), std::log(4.0)});
  check_near(d.mean(), {1, 1});
  check_near(d.variance(), {4 / 12.0, 16 / 12.0});
  manual_seed(4);
  const Tensor x = d.sample({20000});
  CHECK(x.select(1, 0).min().item() >= 0);
  CHECK(x.select(1, 0).max().item() < 2);
  check_near(x.mean(0), {1, 1}, 0.04);  // 4 standard deviations
}

TEST_CASE("gradients of log_prob and entropy agree with finite differences") {
  manual_seed(5);
  const Tensor logits = randn({3, 4}, kFloat64).set_requires_grad(), index = tensor({1, 3, 0});
  const Tensor a = randn({4}, kFloat64).set_requires_grad(),
               b = (rand({4}, kFloat64) + 0.5).set_requires_grad();
  using In = std::vector<Tensor>;
  CHECK(autograd::gradcheck([&](const In& in) { return Categorical({.logits = in[0]}).log_prob(index); },
                            {logits}));
  CHECK(autograd::gradcheck([](const In& in) { return Categorical({.logits = in[0]}).entropy(); }, {logits}));
  CHECK(autograd::gradcheck([](const In& in) { return Bernoulli({.logits = in[0]}).entropy(); }, {a}));
  CHECK(autograd::gradcheck(
      [](const In& in) { return Bernoulli({.logits = in[0]}).log_prob(full({4}, 1.0, kFloat64)); }, {a}));
  CHECK(autograd::gradcheck(
      [](const In& in) { return Normal(in[0], in[1]).log_prob(full({4}, 0.3, kFloat64)); }, {a, b}));
  CHECK(autograd::gradcheck(
      [](const In& in) { return Uniform(in[0] - 9, in[1] + 9).log_prob(full({4}, 0.3, kFloat64)); }, {a, b}));
}

TEST_CASE("rsample passes gradients to the parameters, sample does not") {
  const Tensor loc = zeros({3}).set_requires_grad(), scale = ones({3}).set_requires_grad();
  manual_seed(6);
  const Normal d(loc, scale);
  CHECK(!d.sample({2}).requires_grad());
  manual_seed(6);
  const Tensor x = d.rsample({2});
  x.sum().backward();
  CHECK(equal(loc.grad(), full({3}, 2.0f)));
  CHECK(allclose(scale.grad(), x.detach().sum(0)));  // d x / d scale is the standard normal number
  CHECK_THROWS_WITH(Bernoulli({.probs = full({1}, 0.5f)}).rsample(),
                    ContainsSubstring("use sample() and log_prob()"));
}

TEST_CASE("parameters are checked") {
  CHECK_THROWS_WITH(Categorical({}), ContainsSubstring("neither probs nor logits"));
  CHECK_THROWS_WITH(Categorical({.probs = ones({2}), .logits = ones({2})}),
                    ContainsSubstring("both probs and logits"));
  CHECK_THROWS_WITH(Categorical({.probs = tensor({0.5, -0.5})}), ContainsSubstring("must be at least 0"));
  CHECK_THROWS_WITH(Categorical({.probs = zeros({2})}), ContainsSubstring("all probs of a row are 0"));
  CHECK_THROWS_WITH(Categorical({.logits = zeros({})}), ContainsSubstring("last dimension"));
  CHECK_THROWS_WITH(Categorical({.logits = arange(3)}), ContainsSubstring("int64"));
  CHECK_THROWS_WITH(Categorical({.logits = zeros({3})}).log_prob(tensor({3})),
                    ContainsSubstring("outside [0, 3)"));
  CHECK_THROWS_WITH(Bernoulli({.probs = tensor({1.5})}), ContainsSubstring("above 1"));
  CHECK_THROWS_WITH(Normal(0, -1), ContainsSubstring("must be positive"));
  CHECK_THROWS_WITH(Uniform(1, 1), ContainsSubstring("low is not below high"));
}

TEST_CASE(
    "kl_divergence is the mean of the difference of log_prob over samples, and infinite where q excludes") {
  const auto d64 = [](std::initializer_list<NumberOrList> v) { return tensor(v, kFloat64); };
  const distributions::Categorical p({.probs = d64({0.5, 0.25, 0.25})}), q({.probs = d64({0.25, 0.25, 0.5})});
  const double want = 0.5 * std::log(2.0) + 0.25 * std::log(0.5);
  CHECK(distributions::kl_divergence(p, q).item() == Approx(want));
  const distributions::Bernoulli a({.probs = d64({0.25, 1.0, 0.5})}), b({.probs = d64({0.5, 0.5, 0.5})});
  const Tensor both = distributions::kl_divergence(a, b);
  CHECK(both[0].item() == Approx(0.25 * std::log(0.5) + 0.75 * std::log(1.5)));
  CHECK(both[1].item() == Approx(std::log(2.0)).epsilon(1e-6));
  CHECK(std::abs(both[2].item()) < 1e-12);
  const distributions::Normal m(d64({1.0}), d64({2.0})), n(d64({0.0}), d64({1.0}));
  CHECK(distributions::kl_divergence(m, n).item() == Approx((4 + 1 - 1 - std::log(4.0)) / 2));
  const distributions::Uniform u(d64({0.0, -1.0}), d64({1.0, 1.0})), v(d64({0.0, 0.0}), d64({4.0, 4.0}));
  CHECK(distributions::kl_divergence(u, v)[0].item() == Approx(std::log(4.0)));
  CHECK(std::isinf(distributions::kl_divergence(u, v)[1].item()));
  const distributions::Categorical none({.probs = d64({0.0, 1.0})}), some({.probs = d64({0.5, 0.5})});
  CHECK(distributions::kl_divergence(none, some).item() == Approx(std::log(2.0)).epsilon(1e-6));
}
