#include "tapestry/autograd/ops/embedding_bag.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/embedding.h"
#include "tapestry/kernels/ops/embedding_bag.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kEmbeddingBag{"embedding_bag", Grad::twice, kFloats};

// What backward needs of a call.
struct Bag {
  EmbeddingBagMode mode;
  std::int64_t rows, columns, padding;
  Shape index_sizes;
};

// The gradient of the rows that the indices select, before the factors: (count, columns).
Tensor row_gradients(const Bag& bag, const Tensor& dy, const Tensor& bag_of, const Tensor& sizes) {
  if (bag.mode != EmbeddingBagMode::mean) return index_select(dy, 0, bag_of);
  return index_select(dy / sizes.clamp(1).to(dy.dtype()).unsqueeze(1), 0, bag_of);
}

Tensor weight_gradient(const Bag& bag, const Tensor& rows, const Tensor& indices, bool recorded) {
  if (recorded) {
    const Tensor none = zeros({}, {rows.dtype(), rows.device()});
    return index_add(none.expand({bag.rows, bag.columns}), 0, indices,
                     where((indices == bag.padding).unsqueeze(1), none, rows));
  }
  const Tensor grad = raw_contiguous(rows);
  const Tensor dweight = empty({bag.rows, bag.columns}, {grad.dtype(), grad.device()});
  kernels::embedding_backward(grad.device(), grad.dtype(),
                              {.count = indices.numel(),
                               .rows = bag.rows,
                               .columns = bag.columns,
                               .grad = grad,
                               .indices = indices,
                               .dweight = dweight,
                               .padding = bag.padding});
  return dweight;
}

void check_call(const Tensor& weight, const Tensor& indices, const EmbeddingBagParams& p) {
  const Op& op = kEmbeddingBag;
  tapestry::detail::check_defined(op.name, weight, "weight");
  check_operands(op, weight, indices);
  op.check_dtype(weight.dtype());
  check<TypeError>(is_index(indices.dtype()), "[embedding_bag] indices are ", indices.dtype(),
                   "; convert them to an integer dtype");
  check(weight.dim() == 2, "[embedding_bag] expected a weight of 2 dimensions (rows, columns), got ",
        weight.sizes());
  check(indices.dim() == 1 || indices.dim() == 2, "[embedding_bag] indices have shape ", indices.sizes(),
        ", expected (B, L), or (n) with offsets");
  check(p.offsets.defined() == (indices.dim() == 1), "[embedding_bag] indices of shape ", indices.sizes(),
        p.offsets.defined() ? " with offsets; leave the offsets out, since each row is a bag"
                            : " without offsets; give `offsets`, which say where each bag begins");
  if (p.offsets.defined()) {
    check_operands(op, weight, p.offsets);
    check<TypeError>(is_index(p.offsets.dtype()), "[embedding_bag] offsets are ", p.offsets.dtype(),
                     "; convert them to an integer dtype");
    check(p.offsets.dim() == 1, "[embedding_bag] offsets have shape ", p.offsets.sizes(), ", expected (B)");
  }
  check(!p.include_last_offset || (p.offsets.defined() && p.offsets.numel() >= 1),
        "[embedding_bag] include_last_offset without offsets; give `offsets` with at least one element");
  if (p.per_sample_weights.defined()) {
    check(p.mode == EmbeddingBagMode::sum,
          "[embedding_bag] per_sample_weights with a mode other than sum; use EmbeddingBagMode::sum");
    check_matches(op.name, weight, p.per_sample_weights, "per_sample_weights");
    check(p.per_sample_weights.sizes() == indices.sizes(), "[embedding_bag] per_sample_weights have shape ",
          p.per_sample_weights.sizes(), " and the indices ", indices.sizes(), "; both must be equal");
  }
  const std::int64_t rows = weight.sizes()[0];
  if (p.padding_idx)
    check<IndexError>(*p.padding_idx >= -rows && *p.padding_idx < rows, "[embedding_bag] padding_idx ",
                      *p.padding_idx, " is outside a weight of ", rows, " rows; give one from ", -rows,
                      " to ", rows - 1);
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const EmbeddingBagParams& p) {
  check_call(weight, indices, p);
  const auto integers = [](const Tensor& t) { return raw_contiguous(converted(t.detach(), DType::i64)); };
  const Tensor flat = integers(indices).view({indices.numel()});
  const Tensor offsets = p.offsets.defined() ? integers(p.offsets) : Tensor();
  const Tensor scales = contiguous_or_undefined(p.per_sample_weights);
  Bag bag{.mode = p.mode,
          .rows = weight.sizes()[0],
          .columns = weight.sizes()[1],
          .padding = -1,
          .index_sizes = indices.sizes()};
  if (p.padding_idx) bag.padding = *p.padding_idx < 0 ? *p.padding_idx + bag.rows : *p.padding_idx;
  const std::int64_t bags =
      offsets.defined() ? offsets.numel() - (p.include_last_offset ? 1 : 0) : indices.sizes()[0];
  check(bags > 0 || flat.numel() == 0, "[embedding_bag] ", flat.numel(),
        " indices without a bag; give offsets, the first of which is 0");

  const bool recorded = recording(weight, p.per_sample_weights), is_max = p.mode == EmbeddingBagMode::max;
  const Device device = weight.device();
  const Tensor y = empty({bags, bag.columns}, {weight.dtype(), device});
  Tensor bag_of, sizes, chosen;
  if (recorded) {
    // An invalid offset leaves elements unwritten, before the error is thrown.
    if (!is_max) bag_of = zeros({flat.numel()}, {DType::i64, device});
    sizes = empty({bags}, {DType::i64, device});
    if (is_max) chosen = empty({bags, bag.columns}, {DType::i64, device});
  }
  BadIndex bad_offset(device), bad(device);  // of two errors, that of the offsets is thrown
  kernels::embedding_bag(device, y.dtype(),
                         {.mode = static_cast<kernels::BagMode>(p.mode),
                          .count = flat.numel(),
                          .rows = bag.rows,
                          .columns = bag.columns,
                          .bags = bags,
                          .per_bag = offsets.defined() ? 0 : indices.sizes()[1],
                          .row_stride = weight.strides()[0],
                          .column_stride = weight.strides()[1],
                          .padding = bag.padding,
                          .has_end = p.include_last_offset,
                          .weight = weight,
                          .indices = flat,
                          .offsets = offsets,
                          .scales = scales,
                          .out = y,
                          .bag_of = bag_of,
                          .sizes = sizes,
                          .chosen = chosen,
                          .first_bad = bad.cell(),
                          .first_bad_offset = bad_offset.cell()});
  bad_offset.check_with([n = flat.numel()](std::int64_t position) {
    fail("[embedding_bag] the offset at position ", position,
         " is out of order; offsets begin with 0, do not "
         "decrease, and are at most the number of indices, ",
         n, ", which is the last one with include_last_offset");
  });
  bad.check(kEmbeddingBag.name, "index", flat, bag.rows);
  if (!recorded) return y;
  if (is_max) {
    record(kEmbeddingBag, y, {&weight}, [bag, chosen = save(chosen), sizes = save(sizes)](Backward& b) {
      const Tensor dy = b.grad();
      const Tensor none = zeros({}, {dy.dtype(), dy.device()});
      const Tensor terms = where(b.saved(sizes).unsqueeze(1) > 0, dy, none);
      b.set(0, scatter_add(zeros({bag.rows, bag.columns}, {dy.dtype(), dy.device()}), 0, b.saved(chosen),
                           terms));
    });
    return y;
  }
  record(kEmbeddingBag, y, {&weight, &p.per_sample_weights},
         [bag, flat = save(flat), bag_of = save(bag_of), sizes = save(sizes),
          scales = scales.defined() ? save_if(weight, p.per_sample_weights) : SavedTensor(),
          weight = save_if(p.per_sample_weights, weight), scaled = scales.defined()](Backward& b) {
           const Tensor rows = row_gradients(bag, b.grad(), b.saved(bag_of), b.saved(sizes));
           const Tensor at = b.saved(flat);
           if (b.needs(0))
             b.set(0, weight_gradient(bag, scaled ? rows * b.saved(scales).reshape({-1, 1}) : rows, at,
                                      b.create_graph()));
           if (b.needs(1)) {
             const DType sums = accumulation_dtype(rows.dtype());
             Tensor d = (rows.to(sums) * index_select(b.saved(weight), 0, at).to(sums)).sum(1);
             if (bag.padding >= 0) d = where(at == bag.padding, zeros({}, {sums, d.device()}), d);
             b.set(1, d.to(rows.dtype()).view(bag.index_sizes));
           }
         });
  return y;
}

}  // namespace tapestry
