// The QR factorization, singular values and eigenvalues.
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/linalg.h"
#include "tapestry/autograd/ops/linalg.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/kernels/ops/linalg.h"

namespace tapestry::linalg {
namespace {

using namespace autograd;

const Op kQr("linalg.qr", Grad::twice, kFullFloats);
const Op kSvd("linalg.svd", Grad::twice, kFullFloats);
const Op kSvdvals("linalg.svdvals", Grad::twice, kFullFloats);
const Op kEigh("linalg.eigh", Grad::twice, kFullFloats);
const Op kEigvalsh("linalg.eigvalsh", Grad::twice, kFullFloats);

Tensor scaled_columns(const Tensor& x, const Tensor& s) { return x * unsqueeze(s, -2); }
Tensor scaled_rows(const Tensor& x, const Tensor& s) { return x * unsqueeze(s, -1); }
// x, with `value` on the diagonals.
Tensor with_diagonal(const Tensor& x, double value) {
  return where(eye(x.size(-1), TensorOptions(DType::boolean, x.device())), Scalar(value), x);
}

// The gradient of a = Q R for m >= n: (gQ + Q (M + M^T, with M's diagonal once)) R^-T with the upper triangle
// M = triu(gR R^T - Q^T gQ) (Walter and Lehmann 2010).
Tensor qr_gradient(const Tensor& q, const Tensor& r, const Tensor& gq, const Tensor& gr) {
  const Tensor product = matmul(gr, mT(r)) - matmul(mT(q), gq);
  const Tensor symmetric = triu(product) + mT(triu(product, 1));
  return solve_triangular(mT(r), gq + matmul(q, symmetric), false, false);
}

// For m < n, the first m columns are Q R1, and the others are Q R2.
Tensor wide_qr_gradient(const Tensor& q, const Tensor& r, const Tensor& gq, const Tensor& gr) {
  const std::int64_t m = r.size(-2), rest = r.size(-1) - m;
  const Tensor r1 = narrow(r, -1, 0, m), r2 = narrow(r, -1, m, rest);
  const Tensor g1 = narrow(gr, -1, 0, m), g2 = narrow(gr, -1, m, rest);
  // R2 = Q^T A2, so Q also gets the gradient A2 gR2^T = Q R2 gR2^T.
  const Tensor gq_all = gq + matmul(q, matmul(r2, mT(g2)));
  return cat({qr_gradient(q, r1, gq_all, g1), matmul(q, g2)}, -1);
}

// The factors of SvdResult, not recorded. Without `vectors`, U and Vh are undefined.
SvdResult factors(const Op& op, const Tensor& a, bool full, bool vectors) {
  const Tensor in = on_cpu(op.name, a);
  const Shape batch = leading(a);
  const std::int64_t m = a.size(-2), n = a.size(-1), rank = std::min(m, n);
  SvdResult r;
  r.S = cpu_result(in, joined(batch, {rank}));
  if (vectors) {
    r.U = cpu_result(in, joined(batch, {m, full ? m : rank}));
    r.Vh = cpu_result(in, joined(batch, {full ? n : rank, n}));
  }
  const MatrixInfo errors(in, batch);
  kernels::linalg_svd(in.device(), in.dtype(),
                      {.batch = batch.numel(),
                       .m = m,
                       .n = n,
                       .full = full,
                       .vectors = vectors,
                       .a = in,
                       .u = r.U,
                       .s = r.S,
                       .vh = r.Vh,
                       .info = errors.info});
  errors.check([&](const std::string& matrix, std::int64_t) {
    fail("[", op.name, "] ", matrix, " has infinite or NaN elements; find where they come from");
  });
  const Device device = a.device();
  return {vectors ? r.U.to(device) : Tensor(), r.S.to(device), vectors ? r.Vh.to(device) : Tensor()};
}

// x^T g - g^T x, divided by differences of eigenvalues.
Tensor rotation(const Tensor& x, const Tensor& g, const Tensor& differences) {
  const Tensor product = matmul(mT(x), g);
  return (product - mT(product)) / differences;
}

// The gradient of a = U diag(s) Vh in the reduced form. An undefined gradient is 0.
Tensor svd_gradient(const Tensor& u, const Tensor& s, const Tensor& vh, const Tensor& gu, const Tensor& gs,
                    const Tensor& gvh) {
  Tensor inner = gs.defined() ? diag_embed(gs) : Tensor();
  const auto add = [&](const Tensor& x) { inner = inner.defined() ? inner + x : x; };
  if (gu.defined() || gvh.defined()) {
    const Tensor row = unsqueeze(s, -2), column = unsqueeze(s, -1);
    const Tensor differences = with_diagonal((row - column) * (row + column), 1);
    if (gu.defined()) add(scaled_columns(rotation(u, gu, differences), s));
    if (gvh.defined()) add(scaled_rows(rotation(mT(vh), mT(gvh), differences), s));
  }
  Tensor ga = matmul(u, matmul(inner, vh));
  // The parts of the vectors' gradients outside of the space of u and of vh.
  if (gu.defined() && u.size(-2) > u.size(-1)) {
    const Tensor scaled = scaled_columns(gu, 1 / s);
    ga = ga + matmul(scaled - matmul(u, matmul(mT(u), scaled)), vh);
  }
  if (gvh.defined() && vh.size(-1) > vh.size(-2)) {
    const Tensor scaled = scaled_rows(gvh, 1 / s);
    ga = ga + matmul(u, scaled - matmul(matmul(scaled, mT(vh)), vh));
  }
  return ga;
}

// Ascending eigenvalues and, if `vectors`, eigenvectors of the lower triangles. Not recorded.
std::pair<Tensor, Tensor> eigen(const Op& op, const Tensor& a, bool vectors) {
  const Tensor in = on_cpu(op.name, a), w = cpu_result(in, leading(a, 1));
  const Tensor v = vectors ? cpu_result(in, a.sizes()) : Tensor();
  const MatrixInfo errors(in, leading(a));
  kernels::linalg_eigh(
      in.device(), in.dtype(),
      {.batch = errors.info.numel(), .n = a.size(-1), .a = in, .w = w, .v = v, .info = errors.info});
  errors.check([&](const std::string& matrix, std::int64_t reason) {
    fail("[", op.name, "] ", matrix,
         reason == 1 ? " has infinite or NaN elements; find where they come from"
                     : " has eigenvalues that the iteration did not find; scale it");
  });
  return {w.to(a.device()), vectors ? v.to(a.device()) : Tensor()};
}

// Checks the arguments of eigh(). Returns matrices of which the lower triangle is to be read.
Tensor lower(const Op& op, const Tensor& a, char uplo) {
  check_square(op, a);
  check(uplo == 'L' || uplo == 'U', "[", op.name, "] uplo is '", std::string(1, uplo), "'; give 'L' or 'U'");
  return uplo == 'L' ? a : mT(a);
}

}  // namespace

std::pair<Tensor, Tensor> qr(const Tensor& a, QrMode mode) {
  if (const autograd::Autocast cast(kQr, a); cast) return qr(cast(a), mode);
  check_matrices(kQr, a);
  const Shape batch = leading(a);
  const std::int64_t m = a.size(-2), n = a.size(-1), k = mode == QrMode::complete ? m : std::min(m, n);
  const Tensor in = on_cpu(kQr.name, a), r_in = cpu_result(in, joined(batch, {k, n}));
  const Tensor q_in = mode == QrMode::r ? Tensor() : cpu_result(in, joined(batch, {m, k}));
  kernels::linalg_qr(in.device(), in.dtype(),
                     {.batch = batch.numel(), .m = m, .n = n, .k = k, .a = in, .q = q_in, .r = r_in});
  const Tensor r = r_in.to(a.device());
  const Tensor q = mode == QrMode::r ? empty({0}, {a.dtype(), a.device()}) : q_in.to(a.device());
  if (recording(a)) {
    const Tensor *const outputs[] = {&q, &r}, *const inputs[] = {&a};
    record(
        kQr.name, outputs, inputs,
        [=, q = save_output(q, 0), r = save_output(r, 1)](Backward& back) {
          check<AutogradError>(mode != QrMode::r,
                               "[linalg.qr] the gradient of mode r needs Q; use QrMode::reduced");
          check<AutogradError>(mode == QrMode::reduced || m <= n,
                               "[linalg.qr] mode complete has no gradient for ", m, " x ", n,
                               " matrices, which have more rows than columns; use QrMode::reduced");
          const Tensor gq = back.grad_or_zeros(0), gr = back.grad_or_zeros(1);
          back.set(0, (m < n ? wide_qr_gradient : qr_gradient)(back.saved(q), back.saved(r), gq, gr));
        },
        kQr.twice);
  }
  return {q, r};
}

SvdResult svd(const Tensor& a, bool full_matrices) {
  if (const autograd::Autocast cast(kSvd, a); cast) return svd(cast(a), full_matrices);
  check_matrices(kSvd, a);
  const SvdResult result = factors(kSvd, a, full_matrices, true);
  if (recording(a)) {
    const Tensor *const outputs[] = {&result.U, &result.S, &result.Vh}, *const inputs[] = {&a};
    record(
        kSvd.name, outputs, inputs,
        [u = save_output(result.U, 0), s = save_output(result.S, 1),
         vh = save_output(result.Vh, 2)](Backward& back) {
          const Tensor values = back.saved(s);
          const std::int64_t rank = values.size(-1);
          const auto reduced = [&](const Tensor& x, int dim) {
            return x.defined() ? narrow(x, dim, 0, rank) : x;
          };
          back.set(0, svd_gradient(reduced(back.saved(u), -1), values, reduced(back.saved(vh), -2),
                                   reduced(back.grad(0), -1), back.grad(1), reduced(back.grad(2), -2)));
        },
        kSvd.twice);
  }
  return result;
}

Tensor svdvals(const Tensor& a) {
  if (const autograd::Autocast cast(kSvdvals, a); cast) return svdvals(cast(a));
  check_matrices(kSvdvals, a);
  const SvdResult result = factors(kSvdvals, a, false, recording(a));
  if (recording(a))
    record(kSvdvals, result.S, {&a}, [a = save(a), u = save(result.U), vh = save(result.Vh)](Backward& back) {
      // The saved vectors have no history.
      const SvdResult f = back.create_graph() ? svd(back.saved(a), false)
                                              : SvdResult{back.saved(u), Tensor(), back.saved(vh)};
      back.set(0, matmul(scaled_columns(f.U, back.grad()), f.Vh));
    });
  return result.S;
}

std::pair<Tensor, Tensor> eigh(const Tensor& a, char uplo) {
  if (const autograd::Autocast cast(kEigh, a); cast) return eigh(cast(a), uplo);
  const Tensor x = lower(kEigh, a, uplo);
  const auto found = eigen(kEigh, x, true);
  if (recording(x)) {
    const Tensor *const outputs[] = {&found.first, &found.second}, *const inputs[] = {&x};
    record(
        kEigh.name, outputs, inputs,
        [w = save_output(found.first, 0), v = save_output(found.second, 1)](Backward& back) {
          const Tensor values = back.saved(w), vectors = back.saved(v);
          // V (diag(gw) + skew(V^T gV) / (w_j - w_i)) V^T, where skew(x) = (x - x^T) / 2: a rotation of the
          // vectors is all that a symmetric change of the matrix can cause.
          Tensor inner = back.grad(0).defined() ? diag_embed(back.grad(0)) : Tensor();
          if (back.grad(1).defined()) {
            const Tensor differences = with_diagonal(unsqueeze(values, -2) - unsqueeze(values, -1), 1);
            const Tensor turned = rotation(vectors, back.grad(1), differences) * 0.5;
            inner = inner.defined() ? inner + turned : turned;
          }
          back.set(0, matmul(vectors, matmul(inner, mT(vectors))));
        },
        kEigh.twice);
  }
  return found;
}

Tensor eigvalsh(const Tensor& a, char uplo) {
  if (const autograd::Autocast cast(kEigvalsh, a); cast) return eigvalsh(cast(a), uplo);
  const Tensor x = lower(kEigvalsh, a, uplo);
  const auto [values, vectors] = eigen(kEigvalsh, x, recording(x));
  if (recording(x))
    record(kEigvalsh, values, {&x}, [x = save(x), v = save(vectors)](Backward& back) {
      // The saved vectors have no history.
      const Tensor columns = back.create_graph() ? eigh(back.saved(x)).second : back.saved(v);
      back.set(0, matmul(scaled_columns(columns, back.grad()), mT(columns)));
    });
  return values;
}

}  // namespace tapestry::linalg
