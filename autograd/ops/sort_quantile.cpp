// quantile and nanquantile sort, and interpolate between two elements. Their gradient is that of these
// operations.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry {
namespace {

const autograd::Op kQuantile("quantile", autograd::Grad::twice, kFloats);
const autograd::Op kNanquantile("nanquantile", autograd::Grad::twice, kFloats);

enum class Between { linear, lower, higher, midpoint, nearest };

Between between(const char* op, const std::string& name) {
  if (name == "linear") return Between::linear;
  if (name == "lower") return Between::lower;
  if (name == "higher") return Between::higher;
  if (name == "midpoint") return Between::midpoint;
  check(name == "nearest", "[", op, "] interpolation is \"", name,
        "\"; give linear, lower, higher, midpoint or nearest");
  return Between::nearest;
}

// The two elements of a sorted line that a quantile lies between, and how near it is to the second.
struct Place {
  std::int64_t below;
  double weight;

  Place(double rank, Between how) {
    if (how == Between::lower) rank = std::floor(rank);
    if (how == Between::higher) rank = std::ceil(rank);
    if (how == Between::nearest) rank = std::nearbyint(rank);  // half to even
    below = static_cast<std::int64_t>(rank);
    weight = rank - std::floor(rank);
    if (how == Between::midpoint && weight > 0) weight = 0.5;
  }
};

// The quantiles of lines of n elements without their NaN, which the sort puts at the end. The numbers of
// other elements differ between lines, so the host computes the places.
Tensor of_numbers(const Tensor& sorted, int d, double q, Between how) {
  const std::int64_t n = sorted.size(d);
  const Tensor numbers = logical_not(isnan(sorted.detach())).sum(d, true).to(kCPU).contiguous();
  const std::int64_t* const count = numbers.data<std::int64_t>();
  std::vector<std::int64_t> below, above;
  std::vector<double> weight;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const Place place(q * static_cast<double>(count[i] > 0 ? count[i] - 1 : 0), how);
    below.push_back(place.below);
    above.push_back(place.weight > 0 ? std::min(place.below + 1, n - 1) : place.below);
    weight.push_back(place.weight);
  }
  const Device device = sorted.device();
  const auto at = [&](const std::vector<std::int64_t>& places) {
    return sorted.gather(d, autograd::uploaded(places, device).view(numbers.sizes())).squeeze(d);
  };
  const Tensor w =
      autograd::uploaded(tensor(weight, numbers.sizes(), TensorOptions(sorted.dtype(), kCPU)), device)
          .squeeze(d);
  const Tensor low = at(below), high = at(above), step = high - low;
  // A weight of 0 must not multiply the infinite step to an infinite element.
  const Tensor y = where(lt(w, 0.5), low + step * w, high - step * (1 - w));
  return where(eq(w, 0), low, y);
}

// Returns one tensor for each q.
std::vector<Tensor> quantiles(const autograd::Op& op, const Tensor& x, const std::vector<double>& qs,
                              std::optional<std::int64_t> dim, bool keepdim,
                              const std::string& interpolation) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const Between how = between(op.name, interpolation);
  for (const double q : qs) check(q >= 0 && q <= 1, "[", op.name, "] q is ", q, "; give a number in [0, 1]");
  const int d = wrap_dim(op.name, dim.value_or(0), dim ? x.dim() : 1);
  const Tensor line = dim ? x : x.reshape({-1});
  const std::int64_t n = line.dim() > 0 ? line.size(d) : 1;
  check(n > 0, "[", op.name, "] there are no elements to choose from in a tensor of shape ", x.sizes(),
        "; reduce dimensions that are not empty");
  const bool skips_nan = &op == &kNanquantile;
  if (skips_nan) tapestry::detail::check_host_reads(op.name, x);
  const Tensor sorted = sort(line.dim() > 0 ? line : line.unsqueeze(0), d).first;

  const Tensor last = sorted.select(d, n - 1), has_nan = isnan(last);
  std::vector<Tensor> results;
  for (const double q : qs) {
    Tensor y;
    if (skips_nan) {
      y = of_numbers(sorted, d, q, how);
    } else {
      const Place place(q * static_cast<double>(n - 1), how);
      y = sorted.select(d, place.below);
      if (place.weight > 0) {
        const Tensor above = sorted.select(d, place.below + 1);
        y = place.weight < 0.5 ? y + (above - y) * place.weight : above - (above - y) * (1 - place.weight);
      }
      y = where(has_nan, last, y);
    }
    if (keepdim) y = dim ? (x.dim() > 0 ? y.unsqueeze(d) : y) : y.reshape(Shape::filled(x.dim(), 1));
    results.push_back(y);
  }
  return results;
}

Tensor quantiles_of(const autograd::Op& op, const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim,
                    bool keepdim, const std::string& interpolation) {
  detail::check_defined(op.name, q, "q");
  check(q.dim() <= 1 && q.numel() > 0, "[", op.name, "] q has shape ", q.sizes(),
        "; pass a number or a 1-d list");
  tapestry::detail::check_host_reads(op.name, q);
  std::vector<double> qs = q.to_vector();
  const std::vector<Tensor> results = quantiles(op, x, qs, dim, keepdim, interpolation);
  return q.dim() == 0 ? results[0] : stack(results);
}

}  // namespace

Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim, bool keepdim,
                const std::string& interpolation) {
  if (const autograd::Autocast cast(kQuantile, x); cast)
    return quantile(cast(x), q, dim, keepdim, interpolation);
  return quantiles(kQuantile, x, {q}, dim, keepdim, interpolation)[0];
}
Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim, bool keepdim,
                const std::string& interpolation) {
  if (const autograd::Autocast cast(kQuantile, x, q); cast)
    return quantile(cast(x), cast(q), dim, keepdim, interpolation);
  return quantiles_of(kQuantile, x, q, dim, keepdim, interpolation);
}
Tensor nanquantile(const Tensor& x, double q, std::optional<std::int64_t> dim, bool keepdim,
                   const std::string& interpolation) {
  if (const autograd::Autocast cast(kNanquantile, x); cast)
    return nanquantile(cast(x), q, dim, keepdim, interpolation);
  return quantiles(kNanquantile, x, {q}, dim, keepdim, interpolation)[0];
}
Tensor nanquantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim, bool keepdim,
                   const std::string& interpolation) {
  if (const autograd::Autocast cast(kNanquantile, x, q); cast)
    return nanquantile(cast(x), cast(q), dim, keepdim, interpolation);
  return quantiles_of(kNanquantile, x, q, dim, keepdim, interpolation);
}

Tensor Tensor::quantile(double q, std::optional<std::int64_t> dim, bool keepdim,
                        const std::string& interpolation) const {
  return tapestry::quantile(*this, q, dim, keepdim, interpolation);
}
Tensor Tensor::quantile(const Tensor& q, std::optional<std::int64_t> dim, bool keepdim,
                        const std::string& interpolation) const {
  return tapestry::quantile(*this, q, dim, keepdim, interpolation);
}
Tensor Tensor::nanquantile(double q, std::optional<std::int64_t> dim, bool keepdim,
                           const std::string& interpolation) const {
  return tapestry::nanquantile(*this, q, dim, keepdim, interpolation);
}
Tensor Tensor::nanquantile(const Tensor& q, std::optional<std::int64_t> dim, bool keepdim,
                           const std::string& interpolation) const {
  return tapestry::nanquantile(*this, q, dim, keepdim, interpolation);
}

}  // namespace tapestry
