// Initialisers of special matrices, apart from init.cpp because small programs need only those there.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/part_memory.h"
#include "tapestry/core/parallel.h"
#include "tapestry/nn/init.h"

namespace tapestry::nn::init {

using tapestry::detail::check_all_rows;

const Tensor& eye_(const Tensor& t) {
  check_all_rows("eye_", t);
  tapestry::detail::check_defined("eye_", t);
  check(t.dim() == 2, "[eye_] expected a matrix, but got ", t.sizes());
  zeros_(t);
  const NoGradGuard no_grad;
  t.detach().fill_diagonal_(1);
  return t;
}

namespace {

// Orthonormalises the columns of a matrix with rows >= columns, by Householder's QR decomposition (Golub and
// Van Loan, "Matrix computations", algorithms 5.2.1 and 5.1.5). Column c is stored at a + c * rows. The signs
// are those for which R has a positive diagonal. Then Q is uniformly distributed if the matrix was normal
// (Mezzadri, "How to generate random matrices from the classical compact groups", 2007).
void orthonormalize(double* a, std::int64_t rows, std::int64_t columns) {
  const auto dot = [](const double* x, const double* y, std::int64_t n) {
    double sums[8] = {};  // independent sums, which the compiler vectorises
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8)
      for (int k = 0; k < 8; ++k) sums[k] += x[i + k] * y[i + k];
    for (; i < n; ++i) sums[0] += x[i] * y[i];
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  };
  std::vector<double> v(static_cast<std::size_t>(rows * columns)), sign(static_cast<std::size_t>(columns), 1);
  // Applies the reflection I - 2 v v^T to the columns [first, columns).
  const auto reflect = [&](std::int64_t c, std::int64_t first) {
    const double* const normal = v.data() + c * rows + c;
    parallel_for(columns - first, std::max<std::int64_t>(1, 16384 / rows), [&](auto begin, auto end) {
      for (std::int64_t j = first + begin; j < first + end; ++j) {
        double* const x = a + j * rows + c;
        const double twice = 2 * dot(normal, x, rows - c);
        for (std::int64_t i = 0; i < rows - c; ++i) x[i] -= twice * normal[i];
      }
    });
  };
  for (std::int64_t c = 0; c < columns; ++c) {
    double* const x = a + c * rows + c;
    double* const normal = v.data() + c * rows + c;
    const double norm = std::sqrt(dot(x, x, rows - c));
    std::copy_n(x, rows - c, normal);
    // The reflection gives -copysign(norm, x[0]) as R's diagonal element, which avoids cancellation.
    sign[static_cast<std::size_t>(c)] = std::signbit(x[0]) ? 1 : -1;
    normal[0] += std::copysign(norm, x[0]);
    const double length = std::sqrt(dot(normal, normal, rows - c));
    for (std::int64_t i = 0; i < rows - c && length > 0; ++i) normal[i] /= length;
    reflect(c, c);
  }
  std::fill_n(a, rows * columns, 0.0);
  for (std::int64_t c = 0; c < columns; ++c) a[c * rows + c] = 1;
  for (std::int64_t c = columns; c-- > 0;) reflect(c, c);
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t i = 0; i < rows; ++i) a[c * rows + i] *= sign[static_cast<std::size_t>(c)];
}

}  // namespace

const Tensor& orthogonal_(const Tensor& t, double gain) {
  check_all_rows("orthogonal_", t);
  tapestry::detail::check_defined("orthogonal_", t);
  check(t.dim() >= 2, "[orthogonal_] expected a tensor of two dimensions or more but got ", t.sizes());
  if (t.numel() == 0) return t;
  const NoGradGuard no_grad;
  const std::int64_t rows = t.size(0), columns = t.numel() / rows;
  // The rows of this matrix are the vectors that become orthonormal.
  const Tensor normal = empty({std::min(rows, columns), std::max(rows, columns)},
                              {t.dtype() == DType::f64 ? DType::f64 : DType::f32, t.device()});
  normal.normal_();
  const auto fill = [=](const Tensor& out, const std::vector<Tensor>& from) {
    const Tensor vectors = from[0].to(kCPU, DType::f64).contiguous();
    orthonormalize(vectors.data<double>(), vectors.size(1), vectors.size(0));
    const Tensor matrix = rows <= columns ? vectors : vectors.t();
    out.copy_((matrix * gain).reshape(out.sizes()));
  };
  if (t.device().is_meta()) autograd::defer_values("orthogonal_", t, {normal}, fill);
  else fill(t.detach(), {normal});
  return t;
}

const Tensor& sparse_(const Tensor& t, double sparsity, double std) {
  check_all_rows("sparse_", t);
  tapestry::detail::check_defined("sparse_", t);
  check(t.dim() == 2, "[sparse_] expected a 2-d tensor but got ", t.sizes());
  check(sparsity >= 0 && sparsity <= 1, "[sparse_] sparsity must lie in [0, 1] but is ", sparsity);
  normal_(t, 0, std);
  const NoGradGuard no_grad;
  const std::int64_t rows = t.size(0), columns = t.size(1);
  const auto zeros_per_column = static_cast<std::int64_t>(std::ceil(sparsity * static_cast<double>(rows)));
  if (t.numel() == 0 || zeros_per_column == 0) return t;
  std::vector<bool> keep(static_cast<std::size_t>(t.numel()), true);
  for (std::int64_t c = 0; c < columns; ++c) {
    const Tensor order = randperm(rows, {DType::i64, kCPU});
    for (std::int64_t i = 0; i < zeros_per_column; ++i)
      keep[static_cast<std::size_t>(order.data<std::int64_t>()[i] * columns + c)] = false;
  }
  const Tensor mask = tensor(keep, t.sizes(), {DType::boolean, kCPU});
  const auto clear = [](const Tensor& values, const std::vector<Tensor>& kept) {
    values.copy_(where(kept[0].to(values.device()), values, zeros_like(values)));
  };
  if (t.device().is_meta()) autograd::defer_change("sparse_", t, {mask}, clear);
  else clear(t.detach(), {mask});
  return t;
}

const Tensor& dirac_(const Tensor& t, std::int64_t groups) {
  check_all_rows("dirac_", t);
  tapestry::detail::check_defined("dirac_", t);
  check(t.dim() >= 3 && t.dim() <= 5, "[dirac_] expected the weight of a convolution, 3-d to 5-d, but got ",
        t.sizes());
  check(groups > 0 && t.size(0) % groups == 0, "[dirac_] groups must divide the ", t.size(0),
        " output channels but is ", groups);
  zeros_(t);
  const NoGradGuard no_grad;
  const std::int64_t per_group = t.size(0) / groups, passed = std::min(per_group, t.size(1));
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t c = 0; c < passed; ++c) {
      Tensor element = t.detach().select(0, g * per_group + c).select(0, c);
      while (element.dim() > 0) element = element.select(0, element.size(0) / 2);
      element.fill_(1);
    }
  return t;
}

}  // namespace tapestry::nn::init
