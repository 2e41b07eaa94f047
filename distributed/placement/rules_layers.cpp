// The rules of look-ups, norms, attention and losses.
#include <algorithm>
#include <bit>

#include "tapestry/distributed/placement/internal/rules.h"

namespace tapestry::distributed::rules {

using Kind = Placement::Kind;
using Call = PlacementCall;

// ---- look-ups

// index_select: the operands are (x, indices).
Placement selected(const Call& c) {
  const PlacedOperand &x = c.operand(0), &index = c.operand(1);
  if (index.is_constant()) return linearly_mixed(c);
  c.check_invariant();
  c.refuse_partial();
  if (x.is(Kind::sharded)) c.fail(0, "and the indices differ from rank to rank", Placement::replicated());
  if (x.is(Kind::varying) || index.is(Kind::varying)) return Placement::varying();
  return Placement::sharded(std::countr_zero(c.details().dims));
}

// The operands are (weight, indices), and the output has the indices' shape and the weight's columns.
Placement looked_up(const Call& c) {
  const PlacedOperand &weight = c.operand(0), &index = c.operand(1);
  const int columns = c.output().dim() - 1;
  if (weight.is(Kind::partial)) {
    if (!index.is_constant()) c.refuse_partial();
    return Placement::partial();
  }
  c.check_invariant();
  if (weight.is(Kind::sharded) && weight.placement->dim() == 0) return Placement::varying();  // then masked
  if (weight.is(Kind::sharded)) {
    if (index.is(Kind::sharded)) c.fail(1, "and the weight is divided too", Placement::replicated());
    return index.is(Kind::varying) ? Placement::varying() : Placement::sharded(columns);
  }
  if (weight.is(Kind::varying) || index.is(Kind::varying)) return Placement::varying();
  return index.is(Kind::sharded) ? *index.placement : *weight.placement;
}

// ---- layers

// The first operand is (N, ...), and samples do not depend on each other. Others have no samples.
Placement by_sample(const Call& c) {
  const PlacedOperand& x = c.operand(0);
  if (!x.is(Kind::sharded) || x.placement->dim() != 0) return c.opaque();
  c.check_invariant();
  for (std::size_t i = 1; i < c.operands().size(); ++i) {
    if (c.operand(i).is(Kind::partial)) c.refuse_partial();
    if (c.operand(i).is(Kind::sharded))
      c.fail(i, "and operand 0 is divided by samples", Placement::replicated());
    if (c.operand(i).is(Kind::varying)) return Placement::varying();
  }
  return *x.placement;
}

// The statistics of a channel are those of all samples, and operands after x have one element a channel.
Placement batch_norm(const Call& c) {
  const PlacedOperand& x = c.operand(0);
  if (!x.is(Kind::sharded)) return c.opaque();
  if (x.placement->dim() != 1)
    c.fail(0, "so a channel's statistics would be those of a part", "use SyncBatchNorm");
  for (std::size_t i = 1; i < c.inputs(); ++i)
    if (!c.operand(i).is_constant() && !c.operand(i).is(Kind::sharded))
      c.fail(i, "and the channels are divided", Placement::sharded(0));
  return *x.placement;
}

// Queries, keys, values (..., heads, length, features), and a mask.
Placement attended(const Call& c) {
  c.refuse_partial();
  c.check_invariant();
  if (c.count(Kind::sharded) == 0 || c.count(Kind::varying) > 0) {
    if (c.count(Kind::varying) > 0) return Placement::varying();
    return c.opaque();
  }
  const auto from_end = [&](std::size_t i) {
    return c.operand(i).placement->dim() - c.operand(i).tensor->dim();
  };
  const bool queries = c.operand(0).is(Kind::sharded);
  for (std::size_t i = 0; i < 3; ++i) {
    if (!c.operand(i).is(Kind::sharded)) continue;
    if (from_end(i) == -1) c.fail(i, "and scores need all features", Placement::replicated());
    if (from_end(i) == -2 && i > 0)
      c.fail(i, "and each query needs all keys and values", Placement::replicated());
  }
  if (queries && from_end(0) == -2) {
    for (std::size_t i = 1; i < 3; ++i)
      if (c.operand(i).is(Kind::sharded))
        c.fail(i, "and the queries are divided by position", Placement::replicated());
    return *c.operand(0).placement;
  }
  const std::size_t model = queries ? 0 : c.operand(1).is(Kind::sharded) ? 1 : 2;
  for (std::size_t i = 0; i < 3; ++i) {
    const PlacedOperand& o = c.operand(i);
    if (o.is_constant()) continue;
    const int own = o.tensor->dim() + from_end(model);
    if (o.is(Kind::sharded) ? o.placement->dim() != own : i == 0 || own < 0 || o.tensor->size(own) != 1)
      c.fail(i, concat({"and operand ", model, " is ", c.operand(model).placement->str()}),
             Placement::sharded(std::max(own, 0)));
  }
  return Placement::sharded(c.operand(0).tensor->dim() + from_end(model));
}

// The last dimension is rotated; tables of angles are constants.
Placement rotated(const Call& c) {
  const PlacedOperand& x = c.operand(0);
  if (x.is(Kind::sharded) && x.placement->dim() == x.tensor->dim() - 1)
    c.fail(0, "and the rotation mixes all features", Placement::replicated());
  for (std::size_t i = 1; i < c.operands().size(); ++i)
    if (c.operand(i).is(Kind::varying) && !x.is(Kind::partial)) return Placement::varying();
  if (x.is_constant()) return Placement::varying();
  return *x.placement;
}

// ---- losses

// What a loss gives whose rows are placed as `rows`; operand 0 has the rows.
static Placement reduced_loss(const Call& c, Placement rows, bool reduces) {
  if (!rows.is(Kind::sharded) || !reduces) return rows;
  if (c.details().mean) fail_for_mean(c, 0);
  return Placement::partial();
}

Placement elementwise_loss(const Call& c) {
  const Shape& sizes = c.operand(0).tensor->sizes();
  return reduced_loss(c, c.pointwise(sizes), c.output().dim() != sizes.size());
}

// Logits (C), (N, C) or (N, C, ...), and targets.
Placement class_loss(const Call& c) {
  c.refuse_partial();
  c.check_invariant();
  const PlacedOperand &logits = c.operand(0), &target = c.operand(1);
  if (c.count(Kind::varying) > 0) return Placement::varying();
  if (!logits.is(Kind::sharded)) {
    if (target.is(Kind::sharded) && !logits.is_constant())
      c.fail(0, "and the targets are divided", Placement::sharded(0));
    return c.opaque();
  }
  const int dim = logits.placement->dim(), classes = logits.tensor->dim() == 1 ? 0 : 1;
  if (dim == classes)
    c.fail(0, "and the classes are divided, so no rank knows the sum over all of them",
           Placement::replicated());
  const int row = dim > classes ? dim - 1 : dim;
  return reduced_loss(c, Placement::sharded(row),
                      c.output().dim() != logits.tensor->dim() - 1 || c.details().mean);
}

// x (..., in), weight (classes, in), bias, targets.
Placement linear_class_loss(const Call& c) {
  c.refuse_partial();
  c.check_invariant();
  if (c.count(Kind::varying) > 0) return Placement::varying();
  for (std::size_t i = 1; i < c.inputs(); ++i)
    if (c.operand(i).is(Kind::sharded))
      c.fail(i, "and the classes or features are divided, so no rank knows the sum over all of them",
             Placement::replicated());
  const PlacedOperand& x = c.operand(0);
  if (!x.is(Kind::sharded)) return c.opaque();
  if (x.placement->dim() == x.tensor->dim() - 1)
    c.fail(0, "and the product sums over this dimension", Placement::replicated());
  return reduced_loss(c, *x.placement, true);
}

}  // namespace tapestry::distributed::rules
