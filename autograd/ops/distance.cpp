// Distances and similarities, made of norms, products and sums.
#include "tapestry/autograd/ops/distance.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/linalg.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::check_operands;
using autograd::Grad;
using autograd::mT;
using autograd::Op;
using autograd::reduce_to;

const Op kCdist("cdist", Grad::twice, kFloats);
const Op kPairwiseDistance("pairwise_distance", Grad::twice, kFloats);
const Op kCosineSimilarity("cosine_similarity", Grad::twice, kFloats);
const Op kNormalize("normalize", Grad::twice, kFloats);

// Throws TypeError or DeviceError unless both have the same floating dtype and the same device.
void check_pair(const Op& op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  op.check_dtype(a.dtype());
  op.check_dtype(b.dtype());
}

// The 2-norms of the differences of all rows, by |a|^2 + |b|^2 - 2 a b. It records itself, because the
// gradient of sqrt() would be NaN at distance 0.
Tensor distances_by_products(const Tensor& a, const Tensor& b) {
  Tensor y;
  {
    const NoGradGuard no_grad;
    const Tensor squares = sum(mul(a, a), -1, true) + mT(sum(mul(b, b), -1, true));
    y = clamp(squares - 2 * matmul(a, mT(b)), 0).sqrt();
  }
  if (autograd::recording(a, b))
    autograd::record(
        kCdist, y, {&a, &b},
        [a = autograd::save(a), b = autograd::save(b), y = autograd::save_output(y)](Backward& back) {
          const Tensor x = back.saved(a), z = back.saved(b), distances = back.saved(y), g = back.grad();
          // d|x - z| / dx = (x - z) / |x - z|, so with w = g / |x - z| the gradient of x is x sum(w) - w z.
          const Tensor none = zeros({}, TensorOptions(g.dtype(), g.device()));
          const Tensor same = eq(distances, 0);
          const Tensor w =
              where(same, none, g / (back.create_graph() ? where(same, Scalar(1), distances) : distances));
          if (back.needs(0))
            back.set(0, reduce_to(x * sum(w, -1, true) - matmul(w, z), x.sizes(), x.dtype()));
          if (back.needs(1))
            back.set(1, reduce_to(z * mT(sum(w, -2, true)) - matmul(mT(w), x), z.sizes(), z.dtype()));
        });
  return y;
}

}  // namespace

Tensor cdist(const Tensor& a, const Tensor& b, double p) {
  if (const autograd::Autocast cast(kCdist, a, b); cast) return cdist(cast(a), cast(b), p);
  check_pair(kCdist, a, b);
  check<TypeError>(a.dtype() == b.dtype(), "[cdist] dtypes ", a.dtype(), " and ", b.dtype(),
                   " differ; convert one with to(dtype)");
  check(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-1), "[cdist] shapes ", a.sizes(), " and ",
        b.sizes(), "; expected (..., P, M) and (..., R, M)");
  check(p >= 0, "[cdist] p is ", p, "; use 0 or more");
  const Shape batch =
      broadcast_shapes("cdist", Shape(a.sizes().begin(), static_cast<std::size_t>(a.dim() - 2)),
                       Shape(b.sizes().begin(), static_cast<std::size_t>(b.dim() - 2)));
  constexpr std::int64_t kFewRows = 25;
  if (p == 2 && (a.size(-2) > kFewRows || b.size(-2) > kFewRows)) {
    const DType wide = autograd::accumulation_dtype(a.dtype());  // the subtraction of squares loses digits
    return distances_by_products(a.to(wide), b.to(wide)).to(a.dtype());
  }
  check(batch.size() + 3 <= kMaxDims, "[cdist] shapes ", a.sizes(), " and ", b.sizes(), " have more than ",
        kMaxDims - 3, " batch dimensions, which is the limit");
  // Distances of rows without elements are 0 for every p, but the norm of order inf of no elements is an
  // error.
  return norm(sub(unsqueeze(a, -2), unsqueeze(b, -3)), a.size(-1) == 0 ? 2 : p, -1);
}

Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p, double eps, bool keepdim) {
  check_pair(kPairwiseDistance, a, b);
  return norm(add(sub(a, b), eps), p, -1, keepdim);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim, double eps) {
  if (const autograd::Autocast cast(kCosineSimilarity, a, b); cast)
    return cosine_similarity(cast(a), cast(b), dim, eps);
  check_pair(kCosineSimilarity, a, b);
  const int dims = broadcast_shapes("cosine_similarity", a.sizes(), b.sizes()).size();
  const int d = wrap_dim("cosine_similarity", dim, dims);
  const std::vector<Tensor> both = broadcast_tensors({a, b});
  const auto unit = [&](const Tensor& x) { return div(x, clamp(norm(x, 2, d, true), eps)); };
  return sum(mul(unit(both[0]), unit(both[1])), d);
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  detail::check_defined("normalize", x);
  kNormalize.check_dtype(x.dtype());
  return div(x, clamp(norm(x, p, wrap_dim("normalize", dim, x.dim()), true), eps));
}

}  // namespace tapestry
