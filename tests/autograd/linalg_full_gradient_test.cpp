// Gradients of factorisations with respect to the full matrix. gradcheck() through a symmetric argument sees
// only their symmetric part.
#include <functional>

#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/linalg.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

const TensorOptions kF64(DType::f64);

Tensor mT(const Tensor& x) { return x.transpose(-2, -1); }
double distance(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item(); }

Tensor gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& a) {
  const Tensor x = a.clone().requires_grad_(true);
  f(x).sum().backward();
  return x.grad();
}

/// The gradient of f by central differences, in which every element moves alone. If `symmetric`, the element
/// and its mirror image each move by half, because f reads one triangle for both.
Tensor numerical(const std::function<Tensor(const Tensor&)>& f, const Tensor& a, bool symmetric) {
  constexpr double kStep = 1e-5;
  const NoGradGuard no_grad;
  const Tensor g = zeros(a.sizes(), kF64);
  for (std::int64_t i = 0; i < a.size(0); ++i)
    for (std::int64_t j = 0; j < a.size(1); ++j) {
      Tensor step = zeros(a.sizes(), kF64);
      step[i][j].fill_(kStep);
      if (symmetric) step = (step + mT(step)) / 2;
      g[i][j].fill_((f(a + step).sum().item() - f(a - step).sum().item()) / (2 * kStep));
    }
  return g;
}

}  // namespace

TEST_CASE("eigh: the gradient through the eigenvectors is symmetric") {
  const Tensor a = tensor({2.0, 1.0, 1.0, 3.0}, DType::f64).reshape({2, 2});
  const Tensor g = gradient([](const Tensor& x) { return pow(linalg::eigh(x).second[0][0], 4); }, a);
  const Tensor right =
      tensor({-0.258885438, -0.129442719, -0.129442719, 0.258885438}, DType::f64).reshape({2, 2});
  CHECK(distance(g, right) < 1e-8);
}

TEST_CASE("gradients of factorisations hold for every element of the matrix") {
  manual_seed(5);
  const Tensor x = randn({4, 4}, kF64), weights = randn({4, 4}, kF64);
  const Tensor symmetric = x + mT(x), positive = matmul(x, mT(x)) + 4 * eye(4, kF64);
  const auto weigh = [&](const Tensor& y) { return y * y * weights; };  // the signs of vectors are free
  struct Case {
    const char* name;
    Tensor at;
    bool symmetric;
    std::function<Tensor(const Tensor&)> f;
  };
  const Case cases[] = {
      {"eigh vectors", symmetric, true, [&](const Tensor& a) { return weigh(linalg::eigh(a).second); }},
      {"eigh upper", symmetric, true, [&](const Tensor& a) { return weigh(linalg::eigh(a, 'U').second); }},
      {"eigh both", symmetric, true,
       [&](const Tensor& a) {
         const auto [w, v] = linalg::eigh(a);
         return matmul(weigh(v), w * w);
       }},
      {"eigvalsh", symmetric, true, [&](const Tensor& a) { return pow(linalg::eigvalsh(a), 3); }},
      {"cholesky", positive, true, [&](const Tensor& a) { return linalg::cholesky(a) * weights; }},
      {"cholesky upper", positive, true,
       [&](const Tensor& a) { return linalg::cholesky(a, true) * weights; }},
      {"qr Q", x, false, [&](const Tensor& a) { return weigh(linalg::qr(a).first); }},
      {"qr R", x, false, [&](const Tensor& a) { return weigh(linalg::qr(a).second); }},
      {"svd U", x, false, [&](const Tensor& a) { return weigh(linalg::svd(a, false).U); }},
      {"svd Vh", x, false, [&](const Tensor& a) { return weigh(linalg::svd(a, false).Vh); }},
      {"svdvals", x, false, [&](const Tensor& a) { return pow(linalg::svdvals(a), 3); }},
      {"inv", positive, false, [&](const Tensor& a) { return linalg::inv(a) * weights; }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(distance(gradient(c.f, c.at), numerical(c.f, c.at, c.symmetric)) < 1e-5);
  }
}
