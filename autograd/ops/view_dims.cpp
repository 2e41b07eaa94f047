// Views with other dimensions that are made of the views in view.cpp: unflatten, movedim, broadcast_tensors,
// meshgrid, and further names of views.
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

using autograd::Grad;
using autograd::Op;
using detail::check_defined;

const Op kUnflatten("unflatten", Grad::twice, kAllDTypes);
const Op kMovedim("movedim", Grad::twice, kAllDTypes);
const Op kBroadcastTensors("broadcast_tensors", Grad::twice, kAllDTypes);
const Op kMeshgrid("meshgrid", Grad::twice, kAllDTypes);

}  // namespace

Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes) {
  check_defined("unflatten", x);
  check<IndexError>(x.dim() > 0, "[unflatten] a 0-d tensor has no dimension ", dim,
                    "; unsqueeze(0) gives it one");
  const int d = wrap_dim("unflatten", dim, x.dim());
  const std::int64_t length = x.sizes()[d];
  check(!sizes.empty(), "[unflatten] an empty list of sizes; give at least one");
  Shape parts = sizes;
  int unknown = -1;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != -1) continue;
    check(unknown < 0, "[unflatten] more than one size in ", sizes, " is -1; only one can be worked out");
    unknown = i;
    parts[i] = 1;
  }
  const std::int64_t known = checked_numel("unflatten", parts);
  check(unknown < 0 || known > 0, "[unflatten] the size -1 in ", sizes,
        " cannot be worked out beside a size of 0; give it");
  check(unknown < 0 ? known == length : length % known == 0, "[unflatten] sizes ", sizes,
        " do not multiply to size ", length, " of dimension ", d, " of shape ", x.sizes());
  if (unknown >= 0) parts[unknown] = length / known;
  check(x.dim() - 1 + parts.size() <= kMaxDims, "[unflatten] ", sizes, " in shape ", x.sizes(),
        " gives more than ", kMaxDims, " dimensions, which is the limit");
  Shape to = x.sizes();
  to.erase(d);
  for (int i = 0; i < parts.size(); ++i) to.insert(d + i, parts[i]);
  return view(x, to);
}
Tensor Tensor::unflatten(std::int64_t dim, const Shape& sizes) const {
  return tapestry::unflatten(*this, dim, sizes);
}

Tensor movedim(const Tensor& x, const Dims& source, const Dims& destination) {
  check_defined("movedim", x);
  check(source.size() == destination.size(), "[movedim] ", source.size(), " source dimensions ", source,
        " and ", destination.size(), " destinations ", destination, "; give as many");
  if (x.dim() == 0) {
    for (const Dims& dims : {source, destination})
      for (const std::int64_t dim : dims) wrap_dim("movedim", dim, 0);
    return view(x, {});
  }
  constexpr int kFree = -1;
  Dims order = Dims::filled(x.dim(), kFree);
  unsigned moved = 0;
  for (int i = 0; i < source.size(); ++i) {
    const int from = wrap_dim("movedim", source[i], x.dim());
    const int to = wrap_dim("movedim", destination[i], x.dim());
    check((moved >> from & 1) == 0 && order[to] == kFree, "[movedim] a dimension appears twice in ", source,
          " or in ", destination, "; name each dimension once");
    moved |= 1u << from;
    order[to] = from;
  }
  int next = 0;
  for (std::int64_t& d : order) {
    if (d != kFree) continue;
    while (moved >> next & 1) ++next;
    d = next++;
  }
  return permute(x, order);
}
Tensor Tensor::movedim(const Dims& source, const Dims& destination) const {
  return tapestry::movedim(*this, source, destination);
}

std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors) {
  Shape sizes;
  for (const Tensor& t : tensors) {
    check_defined("broadcast_tensors", t, "a tensor of the list");
    sizes = broadcast_shapes("broadcast_tensors", sizes, t.sizes());
  }
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(expand(t, sizes));
  return out;
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& tensors, Indexing indexing) {
  check(!tensors.empty(), "[meshgrid] an empty list of tensors; pass at least one");
  check(tensors.size() <= kMaxDims, "[meshgrid] ", tensors.size(), " tensors give grids of more than ",
        kMaxDims, " dimensions, which is the limit");
  Shape sizes;
  for (const Tensor& t : tensors) {
    check_defined("meshgrid", t, "a tensor of the list");
    check(t.dim() <= 1, "[meshgrid] a tensor of shape ", t.sizes(),
          "; pass tensors of at most one dimension");
    check<TypeError>(t.dtype() == tensors[0].dtype(), "[meshgrid] tensors of dtypes ", tensors[0].dtype(),
                     " and ", t.dtype(), "; convert them to one dtype");
    check<DeviceError>(t.device() == tensors[0].device(), "[meshgrid] tensors are on ", tensors[0].device(),
                       " and on ", t.device(), "; move them to one device with .to()");
    sizes.push_back(t.numel());
  }
  std::vector<Tensor> grids;
  for (int k = 0; k < sizes.size(); ++k) {
    Shape own = Shape::filled(sizes.size(), 1);
    own[k] = sizes[k];
    const Tensor grid = expand(view(tensors[static_cast<std::size_t>(k)], own), sizes);
    grids.push_back(indexing == Indexing::xy && sizes.size() >= 2 ? transpose(grid, 0, 1) : grid);
  }
  return grids;
}

Tensor Tensor::ravel() const { return tapestry::ravel(*this); }
Tensor Tensor::moveaxis(const Dims& source, const Dims& destination) const {
  return tapestry::movedim(*this, source, destination);
}
Tensor Tensor::swapaxes(std::int64_t a, std::int64_t b) const { return tapestry::transpose(*this, a, b); }
Tensor Tensor::swapdims(std::int64_t a, std::int64_t b) const { return tapestry::transpose(*this, a, b); }
Tensor Tensor::broadcast_to(const Shape& sizes) const { return tapestry::expand(*this, sizes); }
Tensor Tensor::view_as(const Tensor& other) const { return view(other.sizes()); }
Tensor Tensor::reshape_as(const Tensor& other) const { return reshape(other.sizes()); }
Tensor Tensor::expand_as(const Tensor& other) const { return expand(other.sizes()); }

}  // namespace tapestry
