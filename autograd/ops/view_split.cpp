// atleast_1d() to atleast_3d(), and hsplit(), vsplit() and dsplit().
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"

namespace tapestry {
namespace {

using autograd::Grad;
using autograd::Op;

const Op kAtleast1d("atleast_1d", Grad::twice, kAllDTypes);
const Op kAtleast2d("atleast_2d", Grad::twice, kAllDTypes);
const Op kAtleast3d("atleast_3d", Grad::twice, kAllDTypes);
const Op kHsplit("hsplit", Grad::twice, kAllDTypes);
const Op kVsplit("vsplit", Grad::twice, kAllDTypes);
const Op kDsplit("dsplit", Grad::twice, kAllDTypes);

// The dimension that the operation splits: `dim`, but 0 for the columns of a vector.
std::int64_t split_dim(const Op& op, const Tensor& x, int dim, int least) {
  detail::check_defined(op.name, x);
  check(x.dim() >= least, "[", op.name, "] a tensor of shape ", x.sizes(), "; it needs at least ", least,
        least == 1 ? " dimension" : " dimensions");
  return x.dim() == 1 ? 0 : dim;
}
std::vector<Tensor> sections_of(const Op& op, const Tensor& x, std::int64_t sections, int dim, int least) {
  const std::int64_t d = split_dim(op, x, dim, least), size = x.sizes()[static_cast<int>(d)];
  check(sections > 0 && size % sections == 0, "[", op.name, "] ", sections, " sections of dimension ", d,
        ", which has ", size, " elements; give a number that divides it, or call tensor_split()");
  return tensor_split(x, sections, d);
}

}  // namespace

Tensor atleast_1d(const Tensor& x) {
  detail::check_defined(kAtleast1d.name, x);
  return x.dim() == 0 ? unsqueeze(x, 0) : x;
}
Tensor atleast_2d(const Tensor& x) {
  detail::check_defined(kAtleast2d.name, x);
  const Tensor row = x.dim() == 0 ? unsqueeze(x, 0) : x;
  return row.dim() == 1 ? unsqueeze(row, 0) : row;
}
Tensor atleast_3d(const Tensor& x) {
  detail::check_defined(kAtleast3d.name, x);
  const Tensor matrix = atleast_2d(x);
  return matrix.dim() == 2 ? unsqueeze(matrix, 2) : matrix;
}

std::vector<Tensor> hsplit(const Tensor& x, std::int64_t sections) {
  return sections_of(kHsplit, x, sections, 1, 1);
}
std::vector<Tensor> hsplit(const Tensor& x, const std::vector<std::int64_t>& indices) {
  return tensor_split(x, indices, split_dim(kHsplit, x, 1, 1));
}
std::vector<Tensor> vsplit(const Tensor& x, std::int64_t sections) {
  return sections_of(kVsplit, x, sections, 0, 2);
}
std::vector<Tensor> vsplit(const Tensor& x, const std::vector<std::int64_t>& indices) {
  return tensor_split(x, indices, split_dim(kVsplit, x, 0, 2));
}
std::vector<Tensor> dsplit(const Tensor& x, std::int64_t sections) {
  return sections_of(kDsplit, x, sections, 2, 3);
}
std::vector<Tensor> dsplit(const Tensor& x, const std::vector<std::int64_t>& indices) {
  return tensor_split(x, indices, split_dim(kDsplit, x, 2, 3));
}

std::vector<Tensor> Tensor::hsplit(std::int64_t sections) const { return tapestry::hsplit(*this, sections); }
std::vector<Tensor> Tensor::hsplit(const std::vector<std::int64_t>& indices) const {
  return tapestry::hsplit(*this, indices);
}
std::vector<Tensor> Tensor::vsplit(std::int64_t sections) const { return tapestry::vsplit(*this, sections); }
std::vector<Tensor> Tensor::vsplit(const std::vector<std::int64_t>& indices) const {
  return tapestry::vsplit(*this, indices);
}
std::vector<Tensor> Tensor::dsplit(std::int64_t sections) const { return tapestry::dsplit(*this, sections); }
std::vector<Tensor> Tensor::dsplit(const std::vector<std::int64_t>& indices) const {
  return tapestry::dsplit(*this, indices);
}

}  // namespace tapestry
