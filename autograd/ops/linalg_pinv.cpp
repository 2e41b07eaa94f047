// The pseudoinverse and what else is made of singular values, and powers of matrices.
#include <algorithm>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/linalg.h"
#include "tapestry/autograd/ops/linalg.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::linalg {
namespace {

using namespace autograd;

const Op kPinv("linalg.pinv", Grad::twice, kFullFloats);
const Op kMatrixRank("linalg.matrix_rank", Grad::none, kFullFloats);
const Op kLstsq("linalg.lstsq", Grad::twice, kFullFloats);
const Op kMatrixPower("linalg.matrix_power", Grad::twice, kFullFloats);

// True for the singular values s of a that count as more than 0.
Tensor above_limit(const Op& op, const Tensor& a, const Tensor& s, std::optional<double> atol,
                   std::optional<double> rtol) {
  for (const std::optional<double>& limit : {atol, rtol})
    check(!limit || *limit >= 0, "[", op.name, "] a tolerance is ", limit.value_or(0), "; use 0 or more");
  const double eps = a.dtype() == DType::f32 ? std::numeric_limits<float>::epsilon()
                                             : std::numeric_limits<double>::epsilon();
  const double relative =
      rtol.value_or(atol.value_or(0) > 0 ? 0 : static_cast<double>(std::max(a.size(-1), a.size(-2))) * eps);
  if (s.size(-1) == 0) return gt(s, 0);
  return gt(s, clamp(amax(s, -1, true) * relative, atol.value_or(0)));
}

struct Inverted {
  Tensor inverse, singular_values, kept;
};
// The pseudoinverse and the singular values. `kept` marks the values that are not 0. Not recorded.
Inverted inverted(const Op& op, const Tensor& a, std::optional<double> atol, std::optional<double> rtol) {
  const NoGradGuard no_grad;
  const auto [u, s, vh] = svd(a, false);
  const Tensor kept = above_limit(op, a, s, atol, rtol);
  const Tensor inverse = where(kept, 1 / s, Scalar(0.0));
  return {matmul(mT(vh) * unsqueeze(inverse, -2), mT(u)), s, kept};
}

Tensor record_pinv(const Op& op, const Tensor& a, const Tensor& p) {
  if (recording(a))
    record(op, p, {&a}, [a = save(a), p = save_output(p)](Backward& back) {
      // dP = -P dA P + P P^T dA^T (I - A P) + (I - P A) dA^T P^T P (Golub and Pereyra, "The differentiation
      // of pseudo-inverses and nonlinear least squares problems whose variables separate", 1973)
      const Tensor x = back.saved(a), y = back.saved(p), yt = mT(y), g = back.grad(), gt = mT(g);
      const Tensor right = matmul(gt, matmul(y, yt)), left = matmul(yt, matmul(y, gt));
      back.set(0, right - matmul(x, matmul(y, right)) + left - matmul(matmul(left, y), x) -
                      matmul(yt, matmul(g, yt)));
    });
  return p;
}

}  // namespace

Tensor pinv(const Tensor& a, std::optional<double> atol, std::optional<double> rtol) {
  check_matrices(kPinv, a);
  return record_pinv(kPinv, a, inverted(kPinv, a, atol, rtol).inverse);
}

Tensor matrix_rank(const Tensor& a, std::optional<double> atol, std::optional<double> rtol) {
  if (const autograd::Autocast cast(kMatrixRank, a); cast) return matrix_rank(cast(a), atol, rtol);
  check_matrices(kMatrixRank, a);
  const NoGradGuard no_grad;
  return sum(above_limit(kMatrixRank, a, svdvals(a), atol, rtol), -1);
}

LstsqResult lstsq(const Tensor& a, const Tensor& b, std::optional<double> rcond) {
  if (const autograd::Autocast cast(kLstsq, a, b); cast) return lstsq(cast(a), cast(b), rcond);
  check_operands(kLstsq, a, b);
  check_matrices(kLstsq, a, "the first operand");
  check_matches(kLstsq.name, a, b, "the second operand");
  const bool vectors = b.dim() == 1 || (b.dim() == a.dim() - 1 && b.sizes() == leading(a, 1));
  const Tensor right = vectors ? unsqueeze(b, -1) : b;
  check(right.dim() >= 2 && right.size(-2) == a.size(-2), "[linalg.lstsq] shapes ", a.sizes(), " and ",
        b.sizes(), "; expected (..., m, n) and (..., m, k)");
  const Inverted i = inverted(kLstsq, a, {}, rcond);
  LstsqResult result;
  result.solution = matmul(record_pinv(kLstsq, a, i.inverse), right);
  result.singular_values = i.singular_values;
  result.rank = sum(i.kept, -1);
  tapestry::detail::check_host_reads(kLstsq.name, i.kept);
  const bool overdetermined = a.size(-2) > a.size(-1) && all(i.kept).item<bool>();
  result.residuals = overdetermined ? sum(square(matmul(a, result.solution) - right), -2)
                                    : empty({0}, {a.dtype(), a.device()});
  if (vectors) {
    result.solution = squeeze(result.solution, -1);
    if (overdetermined) result.residuals = squeeze(result.residuals, -1);
  }
  return result;
}

Tensor matrix_power(const Tensor& a, std::int64_t n) {
  check_square(kMatrixPower, a);
  check(n != std::numeric_limits<std::int64_t>::min(), "[linalg.matrix_power] n is ", n,
        ", which is too small");
  if (n < 0) return matrix_power(inv(a), -n);
  Tensor result, power = a;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result = result.defined() ? matmul(result, power) : power;
    if (n > 1) power = matmul(power, power);
  }
  if (result.defined()) return result.storage() == a.storage() ? result.clone() : result;
  // A part of the graph, with gradients of 0.
  return a.clone().copy_(eye(a.size(-1), TensorOptions(a.dtype(), a.device())));
}

}  // namespace tapestry::linalg
