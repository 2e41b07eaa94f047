#include "tapestry/autograd/ops/linalg.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;
using tapestry::test::Outputs;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const TensorOptions kF64(DType::f64);

Tensor mT(const Tensor& x) { return x.transpose(-2, -1); }
Tensor symmetric(const Tensor& x) { return is_floating(x.dtype()) ? (x + mT(x)) / 2 : x; }
Tensor spd(const Tensor& x) { return matmul(x, mT(x)) + eye(x.size(-2), {x.dtype(), x.device()}); }
Tensor regular(const Tensor& x) {
  return is_floating(x.dtype()) ? x / 4 + 3 * eye(x.size(-1), {x.dtype(), x.device()}) : x;
}
Dims dims_of(const OpCase& c) { return c.dims("dim", Shape()); }

std::optional<linalg::Order> order_of(const OpCase& c) {
  if (c.has("name")) return c.text("name").c_str();
  if (c.has("ord")) return c.real("ord");
  return {};
}
linalg::QrMode mode_of(const OpCase& c) {
  const std::string mode = c.text("mode");
  return mode == "r"          ? linalg::QrMode::r
         : mode == "complete" ? linalg::QrMode::complete
                              : linalg::QrMode::reduced;
}

// Matrices of random numbers with a mean far from 0.
Tensor random(const Shape& sizes, DType dtype = DType::f64) {
  return randn(sizes, TensorOptions(dtype)) + 0.7;
}
double distance(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
}
Tensor identity_like(const Tensor& x) { return eye(x.size(-1), {x.dtype(), x.device()}).expand(x.sizes()); }

}  // namespace

GOLDEN_OP("linalg.inv", "linalg", [](const OpCase& c) { return linalg::inv(regular(c[0])); });
GOLDEN_OP("linalg.inv/plain", "linalg", [](const OpCase& c) { return linalg::inv(c[0]); });
GOLDEN_OP("linalg.slogdet/plain", "linalg", [](const OpCase& c) { return linalg::slogdet(c[0]); });
GOLDEN_OP("linalg.solve/plain", "linalg", [](const OpCase& c) { return linalg::solve(c[0], c[1]); });
GOLDEN_OP("linalg.solve_triangular/plain", "linalg",
          [](const OpCase& c) { return linalg::solve_triangular(c[0], c[1], true); });
GOLDEN_OP("linalg.matrix_power/plain", "linalg",
          [](const OpCase& c) { return linalg::matrix_power(c[0], c.integer("n")); });
GOLDEN_OP("linalg.lstsq/solution", "linalg",
          [](const OpCase& c) { return linalg::lstsq(c[0], c[1]).solution; });
GOLDEN_OP("linalg.det", "linalg", [](const OpCase& c) { return linalg::det(c[0]); });
GOLDEN_OP("linalg.slogdet", "linalg", [](const OpCase& c) { return linalg::slogdet(regular(c[0])); });
GOLDEN_OP("linalg.solve", "linalg",
          [](const OpCase& c) { return linalg::solve(regular(c[0]), c[1], c.flag("left")); });
GOLDEN_OP("linalg.solve_triangular", "linalg", [](const OpCase& c) {
  return linalg::solve_triangular(regular(c[0]), c[1], c.flag("upper"), c.flag("left"),
                                  c.flag("unitriangular"));
});
GOLDEN_OP("linalg.cholesky", "linalg",
          [](const OpCase& c) { return linalg::cholesky(spd(c[0]), c.flag("upper")); });
GOLDEN_OP("linalg.qr", "linalg", [](const OpCase& c) { return linalg::qr(c[0], mode_of(c)); });
GOLDEN_OP("linalg.svd", "linalg", [](const OpCase& c) -> Outputs {
  const auto [u, s, vh] = linalg::svd(c[0], c.flag("full"));
  if (c[0].numel() == 0) return {u, s, vh};
  const Tensor left = u.narrow(-1, 0, s.size(-1)), right = vh.narrow(-2, 0, s.size(-1));
  return {s, left * left, right * right, matmul(left, right)};
});
GOLDEN_OP("linalg.svdvals", "linalg", [](const OpCase& c) { return linalg::svdvals(c[0]); });
GOLDEN_OP("linalg.eigh", "linalg", [](const OpCase& c) -> Outputs {
  const auto [w, v] = linalg::eigh(symmetric(c[0]), c.text("uplo")[0]);
  return {w, v * v};
});
GOLDEN_OP("linalg.eigvalsh", "linalg",
          [](const OpCase& c) { return linalg::eigvalsh(symmetric(c[0]), c.text("uplo")[0]); });
GOLDEN_OP("linalg.pinv", "linalg",
          [](const OpCase& c) { return linalg::pinv(c[0], c.maybe_real("atol"), c.maybe_real("rtol")); });
GOLDEN_OP("linalg.matrix_rank", "linalg", [](const OpCase& c) {
  return linalg::matrix_rank(c[0], c.maybe_real("atol"), c.maybe_real("rtol"));
});
GOLDEN_OP("linalg.lstsq", "linalg", [](const OpCase& c) -> Outputs {
  const linalg::LstsqResult r = linalg::lstsq(c[0], c[1]);
  return {r.solution, r.rank, r.singular_values};
});
GOLDEN_OP("linalg.lstsq/residuals", "linalg",
          [](const OpCase& c) { return linalg::lstsq(c[0], c[1]).residuals; });
GOLDEN_OP("linalg.matrix_power", "linalg",
          [](const OpCase& c) { return linalg::matrix_power(regular(c[0]), c.integer("n")); });
GOLDEN_OP("linalg.vector_norm", "linalg", [](const OpCase& c) {
  return linalg::vector_norm(c[0], c.real("ord", 2), dims_of(c), c.flag("keepdim", false));
});
GOLDEN_OP("linalg.matrix_norm", "linalg", [](const OpCase& c) {
  return linalg::matrix_norm(c[0], order_of(c).value_or("fro"), c.dims("dim", Dims{-2, -1}),
                             c.flag("keepdim", false));
});
GOLDEN_OP("linalg.norm", "linalg", [](const OpCase& c) {
  return linalg::norm(c[0], order_of(c), dims_of(c), c.flag("keepdim", false));
});

BAD_INPUT("linalg.inv", "expected square", [] { linalg::inv(zeros({2, 3})); });
BAD_INPUT("linalg.inv", "expected matrices", [] { linalg::inv(zeros({2})); });
BAD_INPUT("linalg.inv", "does not take int64", [] { linalg::inv(zeros({2, 2}, kInt64)); });
BAD_INPUT("linalg.inv", "does not take bfloat16", [] { linalg::inv(zeros({2, 2}, kBFloat16)); });
BAD_INPUT("linalg.inv", "the matrix is singular: pivot 2", [] {
  linalg::inv(tensor({{1.0, 2.0}, {2.0, 4.0}}));
});
BAD_INPUT("linalg.inv", "the matrix at index (1, 2) of the batch is singular", [] {
  const Tensor x = eye(3).expand({2, 3, 3, 3}).clone();
  x[1][2][0].fill_(0);
  linalg::inv(x);
});
BAD_INPUT("linalg.solve", "is singular", [] { linalg::solve(zeros({2, 2}), zeros({2, 1})); });
BAD_INPUT("linalg.solve", "expected (..., n, n) and (..., n, k)", [] {
  linalg::solve(eye(3), zeros({2, 3}));
});
BAD_INPUT("linalg.solve", "expected (..., n, n) and (..., k, n)", [] {
  linalg::solve(eye(3), zeros({3, 2}), false);
});
BAD_INPUT("linalg.solve", "left = false needs matrices", [] { linalg::solve(eye(3), zeros({3}), false); });
BAD_INPUT("linalg.solve", "has dtype float64", [] { linalg::solve(eye(3), zeros({3, 1}, kFloat64)); });
BAD_INPUT("linalg.solve", "do not broadcast", [] { linalg::solve(zeros({2, 3, 3}), zeros({4, 3, 1})); });
BAD_INPUT("linalg.solve_triangular", "expected (..., n, n) and (..., n, k)",
          [] { linalg::solve_triangular(eye(3), zeros({3}), true); });
BAD_INPUT("linalg.det", "expected square", [] { linalg::det(zeros({2, 3})); });
BAD_INPUT("linalg.slogdet", "expected square", [] { linalg::slogdet(zeros({2, 3})); });
BAD_INPUT("linalg.cholesky", "the matrix is not positive-definite", [] { linalg::cholesky(eye(2) * -1); });
BAD_INPUT("linalg.cholesky", "at index (1) of the batch is not positive-definite", [] {
  linalg::cholesky(stack({eye(2), tensor({{1.0, 2.0}, {2.0, 1.0}})}));
});
BAD_INPUT("linalg.cholesky", "not positive-definite", [] { linalg::cholesky(full({2, 2}, kNan)); });
BAD_INPUT("linalg.qr", "expected matrices", [] { linalg::qr(zeros({2})); });
BAD_INPUT("linalg.qr", "mode r needs Q",
          [] { linalg::qr(eye(2).set_requires_grad(), linalg::QrMode::r).second.sum().backward(); });
BAD_INPUT("linalg.qr", "mode complete has no gradient for 3 x 2", [] {
  linalg::qr(ones({3, 2}).set_requires_grad(), linalg::QrMode::complete).second.sum().backward();
});
BAD_INPUT("linalg.svd", "at index (1) of the batch has infinite or NaN elements", [] {
  linalg::svd(stack({eye(2), full({2, 2}, kNan)}));
});
BAD_INPUT("linalg.svdvals", "has infinite or NaN elements", [] { linalg::svdvals(full({2, 2}, kNan)); });
BAD_INPUT("linalg.eigh", "has infinite or NaN elements", [] { linalg::eigh(full({2, 2}, kNan)); });
BAD_INPUT("linalg.eigh", "uplo is 'l'", [] { linalg::eigh(eye(2), 'l'); });
BAD_INPUT("linalg.eigvalsh", "expected square", [] { linalg::eigvalsh(zeros({2, 3})); });
BAD_INPUT("linalg.pinv", "expected matrices", [] { linalg::pinv(zeros({2})); });
BAD_INPUT("linalg.pinv", "a tolerance is -1", [] { linalg::pinv(eye(2), -1.0); });
BAD_INPUT("linalg.matrix_rank", "a tolerance is -2", [] { linalg::matrix_rank(eye(2), {}, -2.0); });
BAD_INPUT("linalg.lstsq", "expected (..., m, n) and (..., m, k)", [] {
  linalg::lstsq(zeros({3, 2}), zeros({2, 1}));
});
BAD_INPUT("linalg.matrix_power", "expected square", [] { linalg::matrix_power(zeros({2, 3}), 2); });
BAD_INPUT("linalg.matrix_power", "is singular", [] { linalg::matrix_power(zeros({2, 2}), -1); });
BAD_INPUT("linalg.vector_norm", "the order is NaN", [] { linalg::vector_norm(zeros({2}), kNan); });
BAD_INPUT("linalg.vector_norm", "does not take int64", [] { linalg::vector_norm(zeros({2}, kInt64)); });
BAD_INPUT("linalg.vector_norm", "the norm of order -1 of no elements (shape [2, 0])", [] {
  linalg::vector_norm(zeros({2, 0}), -1, 1);
});
BAD_INPUT("linalg.vector_norm", "the norm of order -inf of no elements",
          [] { linalg::vector_norm(zeros({0}), -std::numeric_limits<double>::infinity()); });
BAD_INPUT("linalg.vector_norm", "order inf of no elements",
          [] { linalg::vector_norm(zeros({0}), std::numeric_limits<double>::infinity()); });
BAD_INPUT("linalg.matrix_norm", "no elements", [] { linalg::matrix_norm(zeros({2, 0}), -1); });
BAD_INPUT("linalg.matrix_norm", "the order is 3", [] { linalg::matrix_norm(eye(2), 3); });
BAD_INPUT("linalg.matrix_norm", "expected matrices", [] { linalg::matrix_norm(zeros({2})); });
BAD_INPUT("linalg.matrix_norm", "both dimensions are 1", [] { linalg::matrix_norm(eye(2), 1, {1, -1}); });
BAD_INPUT("linalg.matrix_norm", "give the two dimensions", [] { linalg::matrix_norm(eye(2), 1, {1}); });
BAD_INPUT("linalg.matrix_norm", "singular values of a bfloat16", [] {
  linalg::matrix_norm(zeros({2, 2}, kBFloat16), "nuc");
});
BAD_INPUT("linalg.norm", "the order \"max\" does not exist", [] { linalg::norm(eye(2), "max"); });
BAD_INPUT("linalg.norm", "norms of matrices", [] { linalg::norm(zeros({2}), "nuc"); });
BAD_INPUT("linalg.norm", "there are 3", [] { linalg::norm(zeros({2, 2, 2}), 1); });

TEST_CASE("linalg: factors of larger matrices multiply to the matrix, on several threads") {
  manual_seed(3);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double eps = dtype == DType::f32 ? 1.2e-7 : 2.3e-16;
    for (const Shape& sizes : {Shape{67, 41}, Shape{41, 67}, Shape{5, 33, 33}, Shape{70, 3, 2}}) {
      const Tensor a = random(sizes, dtype);
      // Backward errors of orthogonal transformations are a small multiple of eps |a|.
      const double limit = 40 * eps * linalg::matrix_norm(a).max().item<double>();
      for (const auto mode : {linalg::QrMode::reduced, linalg::QrMode::complete}) {
        const auto [q, r] = linalg::qr(a, mode);
        CHECK(distance(matmul(q, r), a) < limit);
        CHECK(distance(matmul(mT(q), q), identity_like(matmul(mT(q), q))) < 40 * eps);
        CHECK(distance(r, r.triu()) == 0);
      }
      for (const bool full : {false, true}) {
        const auto [u, s, vh] = linalg::svd(a, full);
        const std::int64_t k = s.size(-1);
        CHECK(distance(matmul(u.narrow(-1, 0, k) * s.unsqueeze(-2), vh.narrow(-2, 0, k)), a) < limit);
        CHECK(distance(matmul(mT(u), u), identity_like(matmul(mT(u), u))) < 80 * eps);
        CHECK(distance(matmul(vh, mT(vh)), identity_like(matmul(vh, mT(vh)))) < 80 * eps);
        CHECK(s.narrow(-1, 0, k - 1).ge(s.narrow(-1, 1, k - 1)).all().item<bool>());
        CHECK(distance(s, linalg::svdvals(a)) <= limit);
      }
      if (a.size(-1) != a.size(-2)) continue;
      const Tensor x = symmetric(a);
      const auto [w, v] = linalg::eigh(x);
      CHECK(distance(matmul(v * w.unsqueeze(-2), mT(v)), x) < limit);
      CHECK(w.narrow(-1, 0, w.size(-1) - 1).le(w.narrow(-1, 1, w.size(-1) - 1)).all().item<bool>());
      const Tensor p = spd(a);
      const Tensor l = linalg::cholesky(p);
      CHECK(distance(matmul(l, mT(l)), p) < 40 * eps * linalg::matrix_norm(p).max().item<double>());
      CHECK(distance(l, l.tril()) == 0);
      CHECK(distance(matmul(p, linalg::inv(p)), identity_like(p)) <
            400 * eps *
                (linalg::matrix_norm(p, 2) * linalg::matrix_norm(linalg::inv(p), 2)).max().item<double>());
    }
  }
}

TEST_CASE("linalg: the singular values of matrices that are not of full rank") {
  manual_seed(4);
  const Tensor a = matmul(randn({9, 3}, kF64), randn({3, 7}, kF64));
  const auto [u, s, vh] = linalg::svd(a);
  CHECK(distance(matmul(mT(u), u), eye(9, kF64)) < 1e-14);
  CHECK(distance(matmul(vh, mT(vh)), eye(7, kF64)) < 1e-14);
  CHECK(s.narrow(0, 3, 4).lt(1e-14).all().item<bool>());
  CHECK(linalg::matrix_rank(a).item<std::int64_t>() == 3);
  const Tensor p = linalg::pinv(a);
  CHECK(distance(matmul(a, matmul(p, a)), a) < 1e-12);
  // All zero: any orthonormal vectors are right.
  const auto zero = linalg::svd(zeros({4, 2}));
  CHECK(distance(matmul(mT(zero.U), zero.U), eye(4)) < 1e-6);
  CHECK(zero.S.eq(0).all().item<bool>());
  // Elements that overflow or underflow when squared.
  for (const double scale : {1e-200, 1e200}) {
    const Tensor scaled = linalg::svdvals(tensor({{3.0, 4.0}, {4.0, -3.0}}, kFloat64) * scale);
    CHECK(distance(scaled / scale, full({2}, 5.0, kFloat64)) < 1e-14);
  }
}

TEST_CASE("linalg: only the named triangle is read, and the gradient is symmetric") {
  const Tensor lower = tensor({{4.0, kNan}, {2.0, 3.0}}, kFloat64), upper = mT(lower);
  const Tensor both = tensor({{4.0, 2.0}, {2.0, 3.0}}, kFloat64);
  CHECK(equal(linalg::cholesky(lower), linalg::cholesky(both)));
  CHECK(equal(linalg::cholesky(upper, true), linalg::cholesky(both, true)));
  CHECK(equal(linalg::eigvalsh(lower), linalg::eigvalsh(both)));
  CHECK(equal(linalg::eigh(upper, 'U').first, linalg::eigvalsh(both)));
  const Tensor a = both.clone().set_requires_grad();
  linalg::cholesky(a).sum().backward();
  CHECK(equal(a.grad(), mT(a.grad())));
  CHECK_THROWS_AS(linalg::cholesky(upper), ValueError);
}

TEST_CASE("linalg: no gradient flows from outputs that are not used, or only from one of them") {
  manual_seed(5);
  const Tensor x = random({4, 3});
  const auto check_one = [&](const auto& pick) {
    const auto f = [&](const std::vector<Tensor>& in) { return pick(in[0]); };
    autograd::gradcheck(f, {x.clone().set_requires_grad()});
  };
  check_one([](const Tensor& a) { return linalg::qr(a).first; });
  check_one([](const Tensor& a) { return linalg::qr(a).second; });
  check_one([](const Tensor& a) { return linalg::qr(mT(a)).first; });
  check_one([](const Tensor& a) { return linalg::qr(mT(a)).second; });
  check_one([](const Tensor& a) { return square(linalg::svd(a, false).U); });
  check_one([](const Tensor& a) { return square(linalg::svd(a, false).Vh); });
  check_one([](const Tensor& a) { return linalg::svd(a).S; });
  check_one([](const Tensor& a) { return square(linalg::eigh(spd(a)).second); });
  check_one([](const Tensor& a) { return linalg::eigh(spd(a)).first; });
  check_one([](const Tensor& a) { return linalg::slogdet(spd(a)).second; });
}

TEST_CASE(
    "linalg: singular matrices have the gradient of the determinant, equal singular values that of their "
    "sum") {
  const auto check_gradient = [](const Tensor& x, const auto& f) {
    autograd::gradcheck([&](const std::vector<Tensor>& in) { return f(in[0]); }, {x.set_requires_grad()});
  };
  const auto determinant = [](const Tensor& a) { return linalg::det(a); };
  check_gradient(tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}, {5.0, 7.0, 9.0}}, kFloat64), determinant);
  check_gradient(
      tensor({{{2.0, 1.0}, {4.0, 2.0}}, {{1.0, 0.0}, {0.0, 3.0}}, {{0.0, 0.0}, {0.0, 0.0}}}, kFloat64),
      determinant);
  check_gradient(zeros({1, 1}, kF64), determinant);
  check_gradient(eye(3, kF64), [](const Tensor& a) { return square(linalg::svdvals(a)).sum(); });
}

TEST_CASE("linalg: determinants that overflow, and vectors on the right side of solve") {
  const Tensor big = eye(200, kF64) * 1e3;
  CHECK(linalg::slogdet(big).second.item<double>() == Approx(200 * std::log(1e3)));
  CHECK(linalg::slogdet(big).first.item<double>() == 1);
  CHECK(linalg::det(big).item<double>() == std::numeric_limits<double>::infinity());
  const Tensor a = random({2, 3, 3}), b = random({2, 3});
  CHECK(distance(linalg::solve(a, b), linalg::solve(a, b.unsqueeze(-1)).squeeze(-1)) == 0);
  // 1-d is a vector for each matrix.
  CHECK(linalg::solve(a, b[0]).sizes() == Shape{2, 3});
  CHECK(linalg::lstsq(a, b).solution.sizes() == Shape{2, 3});
  // The inputs are not changed, and results do not share their storage.
  const Tensor power = linalg::matrix_power(a, 1);
  CHECK(power.storage() != a.storage());
}

TEST_CASE("linalg: backward of slogdet names the singular matrix") {
  const Tensor x = ones({2, 2}).set_requires_grad();
  const auto [sign, logabs] = linalg::slogdet(x);
  CHECK(sign.item() == 0);
  CHECK(std::isinf(logabs.item()));
  CHECK_THROWS_WITH(logabs.backward(), ContainsSubstring("is singular"));
}

TEST_CASE("linalg: gradients have gradients also where the golden cases use only some outputs") {
  manual_seed(6);
  const Tensor square_matrix = random({3, 3}) * 0.3 + eye(3, kF64) * 2, tall = random({4, 3});
  const auto check_twice = [&](const Tensor& x, const auto& f) {
    const auto function = [&](const std::vector<Tensor>& in) { return f(in[0]); };
    autograd::gradgradcheck(function, {x.clone().set_requires_grad()});
  };
  check_twice(square_matrix, [](const Tensor& a) { return linalg::det(a); });
  check_twice(tall, [](const Tensor& a) { return linalg::qr(a).first; });
  check_twice(tall, [](const Tensor& a) { return linalg::qr(mT(a)).second; });
  check_twice(tall, [](const Tensor& a) { return square(linalg::svd(a, false).U); });
  check_twice(tall, [](const Tensor& a) { return linalg::svd(mT(a)).S; });
  check_twice(tall, [](const Tensor& a) { return linalg::svdvals(a); });
  check_twice(square_matrix, [](const Tensor& a) { return square(linalg::eigh(symmetric(a)).second); });
  check_twice(square_matrix, [](const Tensor& a) { return linalg::eigvalsh(symmetric(a), 'U'); });
  check_twice(tall, [](const Tensor& a) { return linalg::lstsq(a, square(a)).solution; });
  check_twice(tall, [](const Tensor& a) { return linalg::matrix_norm(a, "nuc"); });
}

TEST_CASE("the power 0 of a matrix is part of the graph") {
  const Tensor a = randn({2, 3, 3}).requires_grad_(), y = linalg::matrix_power(a, 0);
  CHECK(y.requires_grad());
  CHECK(equal(y, eye(3).expand({2, 3, 3})));
  CHECK_NOTHROW(y.sum().backward());
}
