// The rules of arithmetic, of operations along dimensions, and of views.
#include <algorithm>
#include <bit>

#include "tapestry/distributed/placement/internal/rules.h"

namespace tapestry::distributed::rules {

using Kind = Placement::Kind;
using Call = PlacementCall;

// ---- arithmetic

// A sum of operands: partial if all are. Any other operand would be added once on each rank.
Placement added(const Call& c) {
  const std::size_t sums = c.count(Kind::partial);
  if (sums == 0) return c.pointwise();
  std::size_t first = 0;
  while (!c.operand(first).is(Kind::partial)) ++first;
  if (c.inputs() == 1)
    c.fail(first, "a sum still to be made: each rank would add the number", Placement::invariant());
  for (std::size_t i = 0; i < c.inputs(); ++i) {
    if (c.operand(i).is(Kind::partial)) continue;
    if (c.operand(i).is_constant())
      c.fail(first, concat({"a sum still to be made: each rank would add operand ", i}),
             Placement::invariant());
    c.refuse_partial_beside(i);
  }
  return Placement::partial();
}

Placement divided(const Call& c) {
  if (c.inputs() > 1 && c.operand(1).is(Kind::partial)) c.refuse_partial();
  return c.linear();
}

Placement dropped(const Call& c) {
  for (std::size_t i = 0; i < c.operands().size(); ++i)
    if (c.operand(i).is(Kind::partial))
      c.fail(i, "a sum still to be made, and each rank could drop other parts of it", Placement::invariant());
  return c.pointwise();
}

// The operands are (old elements, source), and the source broadcasts to the output.
Placement copied(const Call& c) {
  const PlacedOperand& source = c.operand(1);
  if (source.is_constant()) return *c.operand(0).placement;
  if (!source.is(Kind::sharded)) return *source.placement;
  const int to = source.placement->dim() + c.output().dim() - source.tensor->dim();
  if (c.output().size(to) != source.tensor->size(source.placement->dim()))
    c.fail(1, "and would be repeated along the dimension that the ranks divide", Placement::replicated());
  return Placement::sharded(to);
}

// ---- along dimensions

// The operation mixes the elements of details().dims, and keeps the others apart.
Placement mixed(const Call& c) {
  c.refuse_divided("and the operation needs the whole dimension");
  return c.pointwise();
}
Placement linearly_mixed(const Call& c) {
  c.refuse_divided("and the operation needs the whole dimension");
  return c.linear();
}

static int after_removal(int dim, unsigned removed) {
  return dim - std::popcount(removed & ((1u << dim) - 1));
}

// Of one operand, whose dimensions details().dims are reduced. Sums over a divided dimension are partial.
static Placement reduced(const Call& c, bool is_linear, bool sums) {
  const PlacedOperand& o = c.operand(0);
  if (o.is(Kind::partial) && !is_linear) c.refuse_partial();
  if (!o.is(Kind::sharded)) return *o.placement;
  const int dim = o.placement->dim();
  if (c.details().dims >> dim & 1) {
    if (sums) return Placement::partial();
    c.refuse_divided("and the operation needs the whole dimension");
  }
  const bool keeps = c.output().dim() == o.tensor->dim();
  return keeps ? *o.placement : Placement::sharded(after_removal(dim, c.details().dims));
}
Placement sum(const Call& c) { return reduced(c, true, true); }
Placement nansum(const Call& c) { return reduced(c, false, true); }
Placement picked(const Call& c) { return reduced(c, false, false); }

[[noreturn]] void fail_for_mean(const Call& c, std::size_t operand) {
  c.fail(operand, "so the mean over its part is not a part of the whole mean",
         "use the sum, which is partial, and divide it by the number of all ranks' elements");
}
Placement mean(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (o.is(Kind::sharded) && (c.details().dims >> o.placement->dim() & 1)) fail_for_mean(c, 0);
  return reduced(c, true, false);
}

// ---- views and copies with other dimensions

Placement permuted(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (!o.is(Kind::sharded)) return *o.placement;
  if (!c.details().order) return c.opaque();
  const Dims& order = *c.details().order;
  return Placement::sharded(
      static_cast<int>(std::find(order.begin(), order.end(), o.placement->dim()) - order.begin()));
}

Placement removed(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (!o.is(Kind::sharded)) return *o.placement;
  c.refuse_divided("and the operation removes this dimension");
  return Placement::sharded(after_removal(o.placement->dim(), c.details().dims));
}

Placement inserted(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (!o.is(Kind::sharded)) return *o.placement;
  const int dim = o.placement->dim();
  return Placement::sharded(dim + (std::countr_zero(c.details().dims) <= dim));
}

// The divided dimension may be split, and merged with dimensions to its right: it stays the outermost part.
Placement reshaped(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (!o.is(Kind::sharded)) return *o.placement;
  const Shape &from = o.tensor->sizes(), &to = c.output().sizes();
  const int dim = o.placement->dim();
  const auto fail = [&] {
    c.fail(0, concat({"and shape ", to, " merges the divided dimension with one to its left"}),
           Placement::replicated());
  };
  std::int64_t left = 1;  // the number of elements to the left of `dim` that it is merged with
  if (const unsigned merged = c.details().dims; merged != autograd::CallDetails::kUnknown) {  // flatten()
    const int first = std::countr_zero(merged);
    for (int d = first; d < dim; ++d) left *= from[d];
    if (dim < first) return *o.placement;
    if (!(merged >> dim & 1)) return Placement::sharded(dim - std::popcount(merged) + 1);
    if (left != 1) fail();
    return Placement::sharded(first);
  }
  int at = 0;
  while (at < dim && at < to.size() && from[at] == to[at]) ++at;
  for (int d = at; d < dim; ++d) left *= from[d];
  std::int64_t passed = 1;
  for (; at < to.size() && passed != left; ++at) passed *= to[at];
  const bool fits = at < to.size() && passed == left && from[dim] > 0 &&
                    (to[at] % from[dim] == 0 || from[dim] % std::max<std::int64_t>(to[at], 1) == 0);
  if (!fits) fail();
  return Placement::sharded(at);
}

Placement expanded(const Call& c) {
  const PlacedOperand& o = c.operand(0);
  if (!o.is(Kind::sharded)) return *o.placement;
  const int dim = o.placement->dim(), to = dim + c.output().dim() - o.tensor->dim();
  if (c.output().size(to) != o.tensor->size(dim))
    c.fail(0, "and would be repeated along the dimension that the ranks divide", Placement::replicated());
  return Placement::sharded(to);
}

Placement joined(const Call& c) {
  if (c.count(Kind::partial) > 0 && c.inputs() > 1) return added(c);
  if (c.inputs() == 1) return linearly_mixed(c);
  return mixed(c);
}
Placement stacked(const Call& c) {
  if (c.count(Kind::partial) > 0) return added(c);
  if (c.count(Kind::sharded) == 0) return c.opaque();
  c.check_invariant();
  const auto& all = c.operands();
  const Placement first =
      *std::find_if(all.begin(), all.end(), [](const auto& o) { return o.is(Kind::sharded); })->placement;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].is_constant() && all[i].placement != first)
      c.fail(i, "and another operand is " + first.str(), first);
  return Placement::sharded(first.dim() + (std::countr_zero(c.details().dims) <= first.dim()));
}

}  // namespace tapestry::distributed::rules
