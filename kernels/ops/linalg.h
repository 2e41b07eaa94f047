#pragma once
// Contracts of the kernels that solve linear systems and factor matrices. For all slots in this file:
//   Shapes: every array holds `batch` matrices or vectors, one after another.
//   Layout: matrices are dense and row-major. Sizes may be 0.
//   Dtypes: all arrays but `info` have the slot's dtype, f32 or f64.
//   Devices: the slots have CPU kernels only. autograd/ops/linalg.cpp copies the tensors of a GPU to the
//   host.
// `info` has one i64 per matrix: 0, or the reason why the matrix has no result. The results of that matrix
// are then unspecified.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Solves a x = b with partial pivoting. a is (n, n); b and x are (n, k). If b is null, x becomes the inverse
/// of a, and k is n. info is the number (from 1) of the first pivot that is 0.
struct SolveArgs {
  std::int64_t batch, n, k;
  ConstArray a, b;
  MutableArray x, info;
};
inline constinit Slot<SolveArgs> linalg_solve{"linalg.solve"};

/// The determinant of a, which is (n, n), its sign (-1, 0 or 1), and the log of its absolute value. det
/// cannot be computed from the other two, because it would lose digits.
struct DetArgs {
  std::int64_t batch, n;
  ConstArray a;
  MutableArray det, sign, logabs;
};
inline constinit Slot<DetArgs> linalg_det{"linalg.det"};

/// Solves a x = b, where a is (n, n) and only its upper or lower triangle is read. If `unit`, the diagonal is
/// taken as 1 and not read. x is (n, k); it holds b at the beginning.
struct SolveTriangularArgs {
  std::int64_t batch, n, k;
  bool upper, unit;
  ConstArray a;
  MutableArray x;
};
inline constinit Slot<SolveTriangularArgs> linalg_solve_triangular{"linalg.solve_triangular"};

/// Factors a = l l^T. a is (n, n), symmetric and positive-definite; only its lower triangle is read. The
/// upper triangle of l becomes 0. info is 1 if a is not positive-definite.
struct CholeskyArgs {
  std::int64_t batch, n;
  ConstArray a;
  MutableArray l, info;
};
inline constinit Slot<CholeskyArgs> linalg_cholesky{"linalg.cholesky"};

/// Factors a = q r by Householder reflections. a is (m, n), q is (m, k), r is (k, n), where k is m or
/// min(m, n). The diagonal of r has the signs that LAPACK gives it. q may be null.
struct QrArgs {
  std::int64_t batch, m, n, k;
  ConstArray a;
  MutableArray q, r;
};
inline constinit Slot<QrArgs> linalg_qr{"linalg.qr"};

/// Factors a = u diag(s) vh. a is (m, n), and s has min(m, n) elements in descending order. u is (m, m) and
/// vh (n, n) if `full`; otherwise both have min(m, n) singular vectors. Without `vectors`, u and vh are null.
/// info is 1 if a has infinite or NaN elements.
struct SvdArgs {
  std::int64_t batch, m, n;
  bool full, vectors;
  ConstArray a;
  MutableArray u, s, vh, info;
};
inline constinit Slot<SvdArgs> linalg_svd{"linalg.svd"};

/// Factors a = v diag(w) v^T. a is (n, n) and symmetric; only its lower triangle is read. w is ascending. v
/// may be null. info is 1 if a has infinite or NaN elements, and 2 if the iteration did not converge.
struct EighArgs {
  std::int64_t batch, n;
  ConstArray a;
  MutableArray w, v, info;
};
inline constinit Slot<EighArgs> linalg_eigh{"linalg.eigh"};

}  // namespace tapestry::kernels
