#include "tapestry/autograd/ops/embedding.h"

#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/embedding.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kEmbedding{"embedding", Grad::twice, kFloats};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices, std::optional<std::int64_t> padding_idx) {
  tapestry::detail::check_defined(kEmbedding.name, weight, "weight");
  check_operands(kEmbedding, weight, indices);
  kEmbedding.check_dtype(weight.dtype());
  check<TypeError>(is_index(indices.dtype()), "[embedding] indices are ", indices.dtype(),
                   "; convert them to an integer dtype");
  check(weight.dim() == 2, "[embedding] expected a weight of 2 dimensions (rows, columns), got ",
        weight.sizes());
  const std::int64_t rows = weight.sizes()[0], columns = weight.sizes()[1];
  std::int64_t padding = -1;
  if (padding_idx) {
    check<IndexError>(*padding_idx >= -rows && *padding_idx < rows, "[embedding] padding_idx ", *padding_idx,
                      " is outside a weight of ", rows, " rows; give one from ", -rows, " to ", rows - 1);
    padding = *padding_idx < 0 ? *padding_idx + rows : *padding_idx;
  }
  // The kernels read i64 and i32.
  const Tensor flat = raw_contiguous(indices.dtype() == DType::i32 ? indices.detach()
                                                                   : converted(indices.detach(), DType::i64));
  Shape sizes = indices.sizes();
  check(sizes.size() < kMaxDims, "[embedding] indices of shape ", sizes,
        " leave no room for the columns; a tensor has ", kMaxDims, " dimensions at most");
  sizes.push_back(columns);
  Tensor y = empty(sizes, {weight.dtype(), weight.device()});
  BadIndex bad(y.device());
  kernels::embedding(y.device(), y.dtype(),
                     {.count = flat.numel(),
                      .rows = rows,
                      .columns = columns,
                      .row_stride = weight.strides()[0],
                      .column_stride = weight.strides()[1],
                      .weight = weight,
                      .indices = flat,
                      .out = y,
                      .first_bad = bad.cell()});
  bad.check(kEmbedding.name, "index", flat, rows);
  const CallNote note({.constants = {&indices}});
  if (recording(weight))
    record(kEmbedding, y, {&weight}, [flat = save(flat), rows, columns, padding](Backward& g) {
      if (g.create_graph()) {
        const Tensor at = flatten(g.saved(flat)), none = zeros({}, {g.grad().dtype(), g.grad().device()});
        const Tensor each = reshape(g.grad(), {at.numel(), columns});
        return g.set(0, index_add(expand(none, {rows, columns}), 0, at,
                                  where(unsqueeze(eq(at, padding), 1), none, each)));
      }
      const Tensor grad = contiguous(g.grad()), indices = g.saved(flat);
      // The weight of a language model's head is often that of the embedding. Its dense gradient arrives
      // first, and the few rows of this one are added there. They are also added to the sum of micro-batches.
      const Tensor sum = GraphTask::current()->sum_to_extend(0, {&grad, &indices});
      Tensor dweight = sum.defined() ? sum : empty({rows, columns}, {grad.dtype(), grad.device()});
      kernels::embedding_backward(dweight.device(), dweight.dtype(),
                                  {.count = indices.numel(),
                                   .rows = rows,
                                   .columns = columns,
                                   .grad = grad,
                                   .indices = indices,
                                   .dweight = dweight,
                                   .padding = padding,
                                   .accumulate = sum.defined()});
      if (!sum.defined()) g.set(0, std::move(dweight));
    });
  return y;
}

}  // namespace tapestry
