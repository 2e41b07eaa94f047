// Determinants, linear systems and the Cholesky factorization. linalg_factor.cpp has the other
// factorizations, linalg_norm.cpp the norms, and linalg_pinv.cpp what is made of singular values.
#include "tapestry/autograd/ops/linalg.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/linalg.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/linalg.h"

namespace tapestry::linalg {
namespace {

using namespace autograd;

const Op kDet("linalg.det", Grad::twice, kFullFloats);
const Op kSlogdet("linalg.slogdet", Grad::twice, kFullFloats);
const Op kInv("linalg.inv", Grad::twice, kFullFloats);
const Op kSolve("linalg.solve", Grad::twice, kFullFloats);
const Op kSolveTriangular("linalg.solve_triangular", Grad::twice, kFullFloats);
const Op kCholesky("linalg.cholesky", Grad::twice, kFullFloats);

// Numbers per matrix (...) as (..., 1, 1).
Tensor per_matrix(const Tensor& x) { return unsqueeze(unsqueeze(x, -1), -1); }

// a^-1 b, or a^-1 if b is undefined. The batches of a and b are equal.
Tensor solved(const Op& op, const Tensor& a, const Tensor& b) {
  const Tensor left = on_cpu(op.name, a), right = b.defined() ? on_cpu(op.name, b) : Tensor();
  const Tensor x = cpu_result(left, b.defined() ? b.sizes() : a.sizes());
  const MatrixInfo errors(left, leading(a));
  kernels::linalg_solve(left.device(), left.dtype(),
                        {.batch = errors.info.numel(),
                         .n = a.size(-1),
                         .k = x.size(-1),
                         .a = left,
                         .b = right,
                         .x = x,
                         .info = errors.info});
  errors.check([&](const std::string& matrix, std::int64_t pivot) {
    fail("[", op.name, "] ", matrix, " is singular: pivot ", pivot,
         " of its LU factorization is 0; linalg::pinv() and linalg::lstsq() take singular matrices");
  });
  return x.to(a.device());
}

struct Determinants {
  Tensor det, sign, logabs;
};
Determinants determinants(const Tensor& a) {
  const Tensor in = on_cpu(kDet.name, a);
  const Shape batch = leading(a);
  const Determinants d{cpu_result(in, batch), cpu_result(in, batch), cpu_result(in, batch)};
  kernels::linalg_det(
      in.device(), in.dtype(),
      {.batch = batch.numel(), .n = a.size(-1), .a = in, .det = d.det, .sign = d.sign, .logabs = d.logabs});
  return {d.det.to(a.device()), d.sign.to(a.device()), d.logabs.to(a.device())};
}

// The cofactors of matrices of any rank. With a = U S V^T they are det(U) det(V) U G V^T, where the diagonal
// matrix G has the products of all singular values but one.
Tensor cofactors(const Tensor& a) {
  const auto [u, s, vh] = svd(a, false);
  const Tensor one = eye(s.size(-1), TensorOptions(DType::boolean, s.device()));
  const Tensor others = prod(where(one, Scalar(1), unsqueeze(s, -2)), -1);
  return per_matrix(det(u) * det(vh)) * matmul(u * unsqueeze(others, -2), vh);
}

// a x = b for matrices with equal batches.
Tensor solve_matrices(const Tensor& a, const Tensor& b) {
  const Tensor x = solved(kSolve, a, b);
  if (recording(a, b))
    record(kSolve, x, {&a, &b}, [a = save(a), x = save_output(x)](Backward& back) {
      const Tensor db = solve(mT(back.saved(a)), back.grad());
      if (back.needs(0)) back.set(0, neg(matmul(db, mT(back.saved(x)))));
      if (back.needs(1)) back.set(1, db);
    });
  return x;
}

// Throws unless a and b are matrices of one dtype on one device that fit. Expands them to a common batch.
std::pair<Tensor, Tensor> expanded(const Op& op, const Tensor& a, const Tensor& b, bool left) {
  check_operands(op, a, b);
  check_square(op, a, "the first operand");
  check_matches(op.name, a, b, "the second operand");
  check(b.dim() >= 2 && b.size(left ? -2 : -1) == a.size(-1), "[", op.name, "] shapes ", a.sizes(), " and ",
        b.sizes(),
        left ? "; expected (..., n, n) and (..., n, k)" : "; expected (..., n, n) and (..., k, n)");
  const Shape batch = broadcast_shapes(op.name, leading(a), leading(b));
  return {expand(a, joined(batch, {a.size(-2), a.size(-1)})),
          expand(b, joined(batch, {b.size(-2), b.size(-1)}))};
}

// a x = b where only a triangle of a is read. The batches are equal.
Tensor solve_triangular_left(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  const Tensor left = on_cpu("linalg.solve_triangular", a);
  Tensor x;
  {
    const NoGradGuard no_grad;
    x = tapestry::clone(on_cpu("linalg.solve_triangular", b));
  }
  kernels::linalg_solve_triangular(left.device(), left.dtype(),
                                   {.batch = leading(a).numel(),
                                    .n = a.size(-1),
                                    .k = b.size(-1),
                                    .upper = upper,
                                    .unit = unit,
                                    .a = left,
                                    .x = x});
  const Tensor y = x.to(a.device());
  if (recording(a, b))
    record(kSolveTriangular, y, {&a, &b}, [=, a = save(a), y = save_output(y)](Backward& back) {
      const Tensor db = solve_triangular(mT(back.saved(a)), back.grad(), !upper, true, unit);
      if (back.needs(0)) {
        const Tensor da = neg(matmul(db, mT(back.saved(y))));
        back.set(0, upper ? triu(da, unit ? 1 : 0) : tril(da, unit ? -1 : 0));
      }
      if (back.needs(1)) back.set(1, db);
    });
  return y;
}

}  // namespace

Tensor det(const Tensor& a) {
  check_square(kDet, a);
  const Tensor y = determinants(a).det;
  if (recording(a))
    record(kDet, y, {&a}, [a = save(a), y = save_output(y)](Backward& back) {
      const Tensor x = back.saved(a), d = back.saved(y), g = back.grad();
      if (!x.device().is_meta()) tapestry::detail::check_host_reads(kDet.name, d);
      if (!x.device().is_meta() && any(eq(d, 0)).item<bool>()) back.set(0, per_matrix(g) * cofactors(x));
      else back.set(0, per_matrix(g * d) * mT(inv(x)));
    });
  return y;
}

std::pair<Tensor, Tensor> slogdet(const Tensor& a) {
  check_square(kSlogdet, a);
  const Determinants d = determinants(a);
  if (recording(a))
    record(kSlogdet, d.logabs, {&a},
           [a = save(a)](Backward& back) { back.set(0, per_matrix(back.grad()) * mT(inv(back.saved(a)))); });
  return {d.sign, d.logabs};
}

Tensor inv(const Tensor& a) {
  if (const autograd::Autocast cast(kInv, a); cast) return inv(cast(a));
  check_square(kInv, a);
  const Tensor y = solved(kInv, a, Tensor());
  if (recording(a))
    record(kInv, y, {&a}, [y = save_output(y)](Backward& back) {
      const Tensor transposed = mT(back.saved(y));
      back.set(0, neg(matmul(transposed, matmul(back.grad(), transposed))));
    });
  return y;
}

Tensor solve(const Tensor& a, const Tensor& b, bool left) {
  if (const autograd::Autocast cast(kSolve, a, b); cast) return solve(cast(a), cast(b), left);
  check_operands(kSolve, a, b);
  check_square(kSolve, a, "the first operand");
  const bool vectors = b.dim() == 1 || (b.dim() == a.dim() - 1 && b.sizes() == leading(a, 1));
  if (vectors) {
    check(left, "[linalg.solve] left = false needs matrices, but the second operand has shape ", b.sizes(),
          "; add a dimension with unsqueeze(-2)");
    return squeeze(solve(a, unsqueeze(b, -1)), -1);
  }
  const auto [matrix, right] = expanded(kSolve, a, b, left);
  return left ? solve_matrices(matrix, right) : mT(solve_matrices(mT(matrix), mT(right)));
}

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular) {
  const auto [matrix, right] = expanded(kSolveTriangular, a, b, left);
  if (left) return solve_triangular_left(matrix, right, upper, unitriangular);
  return mT(solve_triangular_left(mT(matrix), mT(right), !upper, unitriangular));
}

Tensor cholesky(const Tensor& a, bool upper) {
  if (const autograd::Autocast cast(kCholesky, a); cast) return cholesky(cast(a), upper);
  check_square(kCholesky, a);
  if (upper) return mT(cholesky(mT(a)));
  const Tensor in = on_cpu(kCholesky.name, a), l = cpu_result(in, a.sizes());
  const MatrixInfo errors(in, leading(a));
  kernels::linalg_cholesky(
      in.device(), in.dtype(),
      {.batch = errors.info.numel(), .n = a.size(-1), .a = in, .l = l, .info = errors.info});
  errors.check([&](const std::string& matrix, std::int64_t) {
    fail("[linalg.cholesky] ", matrix,
         " is not positive-definite; check it, or add a small multiple of the identity");
  });
  const Tensor y = l.to(a.device());
  if (recording(a))
    record(kCholesky, y, {&a}, [y = save_output(y)](Backward& back) {
      // L^-T P L^-1 with P = tril(L^T G), whose diagonal is halved (Murray, "Differentiation of the Cholesky
      // decomposition", 2016). The gradient is its symmetric part.
      const Tensor factor = back.saved(y), product = matmul(mT(factor), back.grad());
      const Tensor p = (tril(product) + tril(product, -1)) * 0.5;
      const Tensor half = solve_triangular(mT(factor), p, true);
      const Tensor g = solve_triangular(factor, half, false, false);
      back.set(0, (g + mT(g)) * 0.5);
    });
  return y;
}

}  // namespace tapestry::linalg
