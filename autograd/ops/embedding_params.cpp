// The parameters of embedding() that are not a matter of its kernels.
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/search.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/internal/part_memory.h"

namespace tapestry {
namespace {

// Scales down the selected rows whose norm is greater than max_norm.
void limit_norms(const Tensor& weight, const Tensor& indices, double max_norm, double p) {
  const NoGradGuard no_grad;
  const Tensor table = weight.detach(), at = indices.detach().flatten().to(DType::i64);
  const Tensor rows = embedding(table, at);  // throws for an invalid index, before anything is changed
  const Tensor norms = norm(rows, p, 1, true);
  // As in PyTorch, 1e-7 keeps the new norm below the limit in spite of rounding.
  const Tensor scale = where(norms > max_norm, rdiv(max_norm, norms + 1e-7), ones_like(norms));
  table.index_copy_(0, at, rows * scale);
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingParams& params) {
  if (params.max_norm) {
    check(*params.max_norm > 0 && params.norm_type > 0, "[embedding] max_norm ", *params.max_norm,
          " and norm_type ", params.norm_type, "; both must be positive");
    detail::check_defined("embedding", weight, "weight");
    detail::check_defined("embedding", indices, "the indices");
    const auto* const divided = dynamic_cast<const detail::DividedMemory*>(weight.storage()->source());
    check(
        !divided || !divided->is_divided(), "[embedding] max_norm ", *params.max_norm,
        " would scale down the rows that this rank's indices ",
        "select, and the weight is sharded: the ranks' weights would differ; leave max_norm out, and scale ",
        "the rows of the whole weight after Optimizer::step()");
    limit_norms(weight, indices, *params.max_norm, params.norm_type);
  }
  const Tensor y = embedding(weight, indices, params.padding_idx);
  if (!params.scale_grad_by_freq || !autograd::recording(weight)) return y;
  const NoGradGuard no_grad;
  const Tensor at = indices.detach().flatten().to(DType::i64);
  Shape sizes = indices.sizes();
  sizes.push_back(1);
  const Tensor counts = index_select(bincount(at, {}, weight.sizes()[0]), 0, at).view(sizes);
  y.register_hook([counts](const Tensor& g) { return g / counts.to(g.dtype()); });
  return y;
}

}  // namespace tapestry
