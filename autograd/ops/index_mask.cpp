// Masks: masked_select, nonzero and one_hot.
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/indexed.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kMaskedSelect{"masked_select", Grad::twice, kAllDTypes};
const Op kNonzero{"nonzero", Grad::none, kAllDTypes};
const Op kOneHot{"one_hot", Grad::none, kIntegers};
const Op kMaskedScatter{"masked_scatter", Grad::twice, kAllDTypes};
const Op kTake{"take", Grad::twice, kAllDTypes};

}  // namespace

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_operands(kMaskedSelect, x, mask);
  check<TypeError>(mask.dtype() == DType::boolean, "[masked_select] the mask is ", mask.dtype(),
                   "; compare, or convert it to bool");
  tapestry::detail::check_host_reads(kMaskedSelect.name, mask);  // the result's shape depends on them
  const Shape sizes = broadcast_shapes(kMaskedSelect.name, x.sizes(), mask.sizes());
  const Tensor flat = reshape(expand(x, sizes), -1), flat_mask = reshape(expand(mask, sizes), -1);
  Selection s;
  const Tensor positions = reshape(true_coordinates(flat_mask, true), -1);
  s.sizes = positions.sizes();
  s.dims = Shape(-1);
  s.index.push_back({positions, 0});
  s.unique = true;
  return taken(kMaskedSelect, flat, s, s.sizes);
}
Tensor Tensor::masked_select(const Tensor& mask) const { return tapestry::masked_select(*this, mask); }

Tensor nonzero(const Tensor& x) {
  tapestry::detail::check_defined(kNonzero.name, x);
  tapestry::detail::check_host_reads(kNonzero.name, x);
  return true_coordinates(x, false);
}
Tensor Tensor::nonzero() const { return tapestry::nonzero(*this); }
Tensor Tensor::argwhere() const { return tapestry::argwhere(*this); }

namespace {

// The elements of the flattened tensor at these positions, an i64 tensor.
Selection flat_selection(const Tensor& positions) {
  Selection s;
  s.sizes = positions.sizes();
  s.dims = Shape::filled(positions.dim(), -1);
  s.index.push_back({positions, 0});
  return s;
}

}  // namespace

Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source) {
  check_operands(kMaskedScatter, x, mask);
  check<TypeError>(mask.dtype() == DType::boolean, "[masked_scatter] the mask is ", mask.dtype(),
                   "; compare, or convert it to bool");
  tapestry::detail::check_defined(kMaskedScatter.name, source, "source");
  check_matches(kMaskedScatter.name, x, source, "source");
  tapestry::detail::check_host_reads(kMaskedScatter.name, mask);
  const Shape sizes = broadcast_shapes(kMaskedScatter.name, x.sizes(), mask.sizes());
  const Tensor positions = reshape(true_coordinates(reshape(expand(mask, sizes), -1), true), -1);
  const std::int64_t n = positions.numel();
  check(source.numel() >= n, "[masked_scatter] the mask selects ", n, " elements, but source has ",
        source.numel(), "; give at least as many");
  Selection s = flat_selection(positions);
  s.unique = true;
  const Tensor flat = reshape(expand(x, sizes), -1), values = narrow(reshape(source, -1), 0, 0, n);
  return reshape(put_recorded(kMaskedScatter, flat, s, values), sizes);
}
Tensor Tensor::masked_scatter(const Tensor& mask, const Tensor& source) const {
  return tapestry::masked_scatter(*this, mask, source);
}
const Tensor& Tensor::masked_scatter_(const Tensor& mask, const Tensor& source) const {
  return compute_in_place(kMaskedScatter, *this, {&mask, &source},
                          [&](const Tensor& x) { return tapestry::masked_scatter(x, mask, source); });
}

Tensor take(const Tensor& x, const Tensor& index) {
  tapestry::detail::check_defined(kTake.name, x);
  Selection s = flat_selection(checked_index(kTake.name, x, index));
  s.wraps = true;
  return taken(kTake, reshape(x, -1), s, s.sizes);
}
Tensor Tensor::take(const Tensor& index) const { return tapestry::take(*this, index); }

std::vector<Tensor> nonzero_numpy(const Tensor& x) {
  tapestry::detail::check_defined(kNonzero.name, x);
  tapestry::detail::check_host_reads(kNonzero.name, x);
  const Tensor coordinates = true_coordinates(x.dim() == 0 ? reshape(x.detach(), 1) : x, true);
  std::vector<Tensor> by_dim;
  for (std::int64_t d = 0; d < coordinates.sizes()[0]; ++d) by_dim.push_back(coordinates[d]);
  return by_dim;
}

Tensor one_hot(const Tensor& index, std::int64_t num_classes) {
  tapestry::detail::check_defined(kOneHot.name, index, "index");
  if (!is_index(index.dtype())) kOneHot.check_dtype(index.dtype());
  check(num_classes >= -1, "[one_hot] num_classes is ", num_classes,
        "; give 1 or more, or -1 to count the classes");
  check(index.dim() < kMaxDims, "[one_hot] an index of shape ", index.sizes(),
        " leaves no room for the classes; ", kMaxDims, " dimensions are the limit");
  if (num_classes == -1) {
    check(index.numel() > 0,
          "[one_hot] the index is empty, so the classes cannot be counted; give num_classes");
    tapestry::detail::check_host_reads(kOneHot.name, index);
    const auto highest = max(converted(index.detach(), DType::i64)).item<std::int64_t>();
    check(highest >= 0, "[one_hot] index ", highest, " is negative; classes are numbered from 0");
    num_classes = highest < std::numeric_limits<std::int64_t>::max() ? highest + 1 : highest;
  }
  check(index.numel() == 0 || num_classes <= std::numeric_limits<std::int64_t>::max() / 8 / index.numel(),
        "[one_hot] ", num_classes, " classes of an index of shape ", index.sizes(),
        " do not fit in memory; pass smaller class numbers");
  check(num_classes > 0 || index.numel() == 0, "[one_hot] num_classes is 0 for an index of shape ",
        index.sizes(), "; give 1 or more");
  const Tensor classes = unsqueeze(converted(index.detach(), DType::i64), -1);
  Shape sizes = index.sizes();
  sizes.push_back(num_classes);
  Tensor y = zeros(sizes, {DType::i64, index.device()});
  Selection s;
  s.sizes = classes.sizes();
  for (int d = 0; d < index.dim(); ++d) s.dims.push_back(d);
  s.dims.push_back(-1);
  s.index.push_back({classes, index.dim()});
  s.unique = true;
  write_at(kOneHot.name, y, s, scalar_tensor(1, {DType::i64, index.device()}));
  return y;
}

}  // namespace tapestry
