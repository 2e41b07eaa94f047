#include "tapestry/distributed/placement/rule.h"

#include <algorithm>

#include "tapestry/autograd/internal/record_observer.h"

namespace tapestry::distributed {
namespace {
using Kind = Placement::Kind;
}

std::size_t PlacementCall::count(Kind kind) const {
  return static_cast<std::size_t>(
      std::count_if(operands_.begin(), operands_.end(), [&](const PlacedOperand& o) { return o.is(kind); }));
}

// ---- errors

std::string PlacementCall::description(std::size_t i) const {
  const PlacedOperand& o = operand(i);
  return concat({"operand ", i, " of shape ", o.defined() ? o.tensor->sizes() : Shape(), " is ",
                 o.placement ? o.placement->str() : "constant", " along axis ", axis_});
}

std::string PlacementCall::conversion(std::size_t i, Placement to) const {
  const PlacedOperand& o = operand(i);
  return concat({"convert(operand ", i, ", ", axis_, ", ", o.placement ? o.placement->str() : "constant",
                 ", ", to.str(), ")"});
}

void PlacementCall::fail(std::size_t i, const std::string& why, const std::string& remedy) const {
  throw PlacementError(concat({"[", op_, "] ", description(i), why.empty() ? "" : ", ", why, "; ", remedy}));
}
void PlacementCall::fail(std::size_t i, const std::string& why, Placement to) const {
  fail(i, why, "use " + conversion(i, to));
}

// ---- checks

void PlacementCall::refuse_partial() const {
  for (std::size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].is(Kind::partial))
      fail(i, "a sum still to be made, and the operation is not linear", Placement::invariant());
}

void PlacementCall::check_invariant() const {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].is(Kind::invariant)) continue;
    for (std::size_t other = 0; other < operands_.size(); ++other)
      if (!operands_[other].is_constant() && !operands_[other].is(Kind::invariant))
        fail(i,
             concat({"and operand ", other, " is ", operands_[other].placement->str(),
                     ": each rank would compute a part of its gradient, and nobody the sum"}),
             Placement::replicated());
  }
}

void PlacementCall::refuse_divided(const char* why) const {
  for (std::size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].is(Kind::sharded) && (details_.dims >> operands_[i].placement->dim() & 1))
      fail(i, why, Placement::replicated());
}

// ---- rules

namespace {
// What equal and varying operands give: the strongest of their placements.
Placement joined(const PlacementCall& call) {
  if (call.count(Kind::varying) > 0) return Placement::varying();
  return call.count(Kind::replicated) > 0 ? Placement::replicated() : Placement::invariant();
}
}  // namespace

Placement PlacementCall::opaque() const {
  refuse_partial();
  for (std::size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].is(Kind::sharded))
      fail(i, "and the operation needs the whole tensor", Placement::replicated());
  check_invariant();
  return joined(*this);
}

Placement PlacementCall::pointwise(const Shape& sizes) const {
  refuse_partial();
  check_invariant();
  if (count(Kind::sharded) == 0) return joined(*this);
  const auto in_output = [&](const PlacedOperand& o, int dim) {
    return dim + sizes.size() - o.tensor->dim();
  };
  std::size_t first = 0;
  while (!operands_[first].is(Kind::sharded)) ++first;
  const int dim = in_output(operands_[first], operands_[first].placement->dim());
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const PlacedOperand& o = operands_[i];
    if (!o.defined() || o.is_constant() || o.is(Kind::varying)) continue;
    const int own = dim - (sizes.size() - o.tensor->dim());  // `dim`, counted in the operand
    if (!o.is(Kind::sharded)) {
      if (own >= 0 && sizes[dim] != 1 && o.tensor->size(own) != 1)
        fail(i, concat({"and operand ", first, " is divided along its dimension ", own}),
             Placement::sharded(own));
      continue;
    }
    const int at = o.placement->dim();
    if (at != own)
      fail(i,
           concat({"and operand ", first, " is ", operands_[first].placement->str(),
                   ", which is another dimension of the output"}),
           own >= 0 ? Placement::sharded(own) : Placement::replicated());
    if (o.tensor->size(at) != sizes[dim])
      fail(i, "and would be repeated along the dimension that the ranks divide", Placement::replicated());
  }
  return count(Kind::varying) > 0 ? Placement::varying() : Placement::sharded(dim);
}

Placement PlacementCall::linear() const {
  const std::size_t sums = count(Kind::partial);
  if (sums == 0) return pointwise();
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const PlacedOperand& o = operands_[i];
    if (o.is_constant() || (o.is(Kind::partial) && sums == 1 && details_.linear)) continue;
    if (o.is(Kind::replicated) && details_.linear && sums == 1) continue;
    refuse_partial_beside(i);
  }
  return Placement::partial();
}

void PlacementCall::refuse_partial_beside(std::size_t other) const {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].is(Kind::partial)) continue;
    const PlacedOperand& o = operands_[other];
    if (i == other || !o.placement) refuse_partial();
    fail(i, concat({"a sum still to be made, and operand ", other, " is ", o.placement->str()}),
         Placement::invariant());
  }
}

}  // namespace tapestry::distributed
