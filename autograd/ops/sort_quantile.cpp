// quantile sorts, and interpolates between two elements. Its gradient is that of these operations.
#include <cmath>
#include <vector>

#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

const autograd::Op kQuantile("quantile", autograd::Grad::twice, kFloats);

// Returns one tensor for each q.
std::vector<Tensor> quantiles(const Tensor& x, const std::vector<double>& qs, std::optional<std::int64_t> dim,
                              bool keepdim, const std::string& interpolation) {
  detail::check_defined(kQuantile.name, x);
  kQuantile.check_dtype(x.dtype());
  const bool linear = interpolation == "linear", lower = interpolation == "lower",
             higher = interpolation == "higher", midpoint = interpolation == "midpoint",
             nearest = interpolation == "nearest";
  check(linear || lower || higher || midpoint || nearest, "[quantile] interpolation is \"", interpolation,
        "\"; give linear, lower, higher, midpoint or nearest");
  for (const double q : qs) check(q >= 0 && q <= 1, "[quantile] q is ", q, "; give a number in [0, 1]");
  const int d = wrap_dim(kQuantile.name, dim.value_or(0), dim ? x.dim() : 1);
  const Tensor line = dim ? x : x.reshape({-1});
  const std::int64_t n = line.dim() > 0 ? line.size(d) : 1;
  check(n > 0, "[quantile] there are no elements to choose from in a tensor of shape ", x.sizes(),
        "; reduce dimensions that are not empty");
  const Tensor sorted = sort(line.dim() > 0 ? line : line.unsqueeze(0), d).first;

  const Tensor last = sorted.select(d, n - 1), has_nan = isnan(last);
  std::vector<Tensor> results;
  for (const double q : qs) {
    double rank = q * static_cast<double>(n - 1);
    if (lower) rank = std::floor(rank);
    if (higher) rank = std::ceil(rank);
    if (nearest) rank = std::nearbyint(rank);  // half to even
    const auto below = static_cast<std::int64_t>(rank);
    const double weight = midpoint && rank > std::floor(rank) ? 0.5 : rank - std::floor(rank);
    Tensor y = sorted.select(d, below);
    if (weight > 0) {
      const Tensor above = sorted.select(d, below + 1);
      y = weight < 0.5 ? y + (above - y) * weight : above - (above - y) * (1 - weight);
    }
    y = where(has_nan, last, y);
    if (keepdim) y = dim ? (x.dim() > 0 ? y.unsqueeze(d) : y) : y.reshape(Shape::filled(x.dim(), 1));
    results.push_back(y);
  }
  return results;
}

}  // namespace

Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim, bool keepdim,
                const std::string& interpolation) {
  return quantiles(x, {q}, dim, keepdim, interpolation)[0];
}
Tensor Tensor::quantile(double q, std::optional<std::int64_t> dim, bool keepdim) const {
  return tapestry::quantile(*this, q, dim, keepdim);
}
Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim, bool keepdim,
                const std::string& interpolation) {
  detail::check_defined(kQuantile.name, q, "q");
  check(q.dim() <= 1 && q.numel() > 0, "[quantile] q has shape ", q.sizes(), "; pass a number or a 1-d list");
  std::vector<double> qs;
  {
    q.check_has_elements(kQuantile.name);
    const NoGradGuard no_grad;
    const Tensor host = q.reshape({-1}).to(kCPU, DType::f64).contiguous();
    qs.assign(host.data<double>(), host.data<double>() + host.numel());
  }
  const std::vector<Tensor> results = quantiles(x, qs, dim, keepdim, interpolation);
  return q.dim() == 0 ? results[0] : stack(results);
}

}  // namespace tapestry
