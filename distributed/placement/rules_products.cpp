// The rules of products: matmul, linear layers and convolutions.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "tapestry/distributed/placement/internal/rules.h"

namespace tapestry::distributed::rules {

using Kind = Placement::Kind;
using Call = PlacementCall;

namespace {
// What each dimension of an operand of a product is.
enum class Part : std::uint8_t { batch, rows, columns, contracted };
struct Role {
  Part part;
  int in_output;  // -1 if contracted
};
}  // namespace

// The placement of a product of operands a and b.
template <class RoleA, class RoleB>
static Placement product(const Call& c, std::size_t a, std::size_t b, const RoleA& role_a,
                         const RoleB& role_b) {
  const PlacedOperand &x = c.operand(a), &y = c.operand(b);
  const auto together = [&](Kind kind) { return x.is(kind) + y.is(kind); };
  if (together(Kind::partial) > 0) {
    const std::size_t other = x.is(Kind::partial) ? b : a;
    const PlacedOperand& o = c.operand(other);
    if (together(Kind::partial) == 1 && (o.is_constant() || o.is(Kind::replicated)))
      return Placement::partial();
    if (!o.is_constant() && !o.is(Kind::partial)) c.refuse_partial_beside(other);
    c.refuse_partial();
  }
  for (const auto& [mine, other] : {std::pair(a, b), std::pair(b, a)})
    if (c.operand(mine).is(Kind::invariant) && !c.operand(other).is_constant() &&
        !c.operand(other).is(Kind::invariant))
      c.check_invariant();
  if (together(Kind::varying) > 0) return Placement::varying();
  if (together(Kind::sharded) == 0)
    return together(Kind::replicated) > 0 ? Placement::replicated() : Placement::invariant();

  const auto placed = [&](const PlacedOperand& o, const auto& role) {
    return o.is(Kind::sharded) ? std::optional<Role>(role(o.placement->dim())) : std::nullopt;
  };
  const std::optional<Role> of_x = placed(x, role_a), of_y = placed(y, role_b);
  const auto contracts = [](const std::optional<Role>& r) { return r && r->part == Part::contracted; };
  if (contracts(of_x) && contracts(of_y)) return Placement::partial();
  for (const auto& [mine, other, role] : {std::tuple(a, b, &of_x), std::tuple(b, a, &of_y)})
    if (contracts(*role))
      c.fail(mine,
             concat({"and the product sums over this dimension, which operand ", other,
                     " does not divide in the same way"}),
             Placement::replicated());
  if (of_x && of_y && of_x->in_output != of_y->in_output)
    c.fail(
        b,
        concat({"and operand ", a, " is ", x.placement->str(), ", which is another dimension of the output"}),
        Placement::replicated());
  // An operand that is whole along a batch dimension which the other divides must be repeated along it.
  for (const auto& [mine, other, role] : {std::tuple(a, b, &of_x), std::tuple(b, a, &of_y)}) {
    const PlacedOperand& whole = c.operand(other);
    if (!*role || (*role)->part != Part::batch || whole.is(Kind::sharded) || whole.is_constant()) continue;
    const int own = (*role)->in_output - (c.output().dim() - whole.tensor->dim());
    if (own >= 0 && whole.tensor->size(own) != 1 && c.output().size((*role)->in_output) != 1)
      c.fail(other, concat({"and operand ", mine, " is ", c.operand(mine).placement->str()}),
             Placement::sharded(own));
  }
  return Placement::sharded((of_x ? of_x : of_y)->in_output);
}

Placement matmul(const Call& c) {
  const Tensor &a = *c.operand(0).tensor, &b = *c.operand(1).tensor;
  const int out = c.output().dim(), vectors = (a.dim() == 1) + (b.dim() == 1);
  const int batches = out - (2 - vectors);
  const auto role_a = [&](int d) -> Role {
    if (d == a.dim() - 1) return {Part::contracted, -1};
    if (d == a.dim() - 2) return {Part::rows, batches};
    return {Part::batch, batches - (a.dim() - 2) + d};
  };
  const auto role_b = [&](int d) -> Role {
    if (d == std::max(b.dim() - 2, 0)) return {Part::contracted, -1};
    if (d == b.dim() - 1) return {Part::columns, out - 1};
    return {Part::batch, batches - (b.dim() - 2) + d};
  };
  return product(c, 0, 1, role_a, role_b);
}

// x (..., in) times weight (out, in), operands `at` and `at` + 1, plus the bias, operand `at` + 2.
static Placement linear_layer(const Call& c, std::size_t at, int features) {
  const auto role_x = [&](int d) -> Role {
    return d == features ? Role{Part::contracted, -1} : Role{Part::rows, d};
  };
  const auto role_w = [&](int d) -> Role {
    return d == 0 ? Role{Part::columns, features} : Role{Part::contracted, -1};
  };
  const Placement y = product(c, at, at + 1, role_x, role_w);
  if (c.inputs() <= at + 2 || !c.operand(at + 2).defined()) return y;
  const PlacedOperand& bias = c.operand(at + 2);
  const auto wrong = [&](const char* why, const std::string& what) { c.fail(at + 2, why, what); };
  if (y.is(Kind::partial) && !bias.is(Kind::partial))
    wrong("and the product is partial along it: each rank would add the bias",
          "add it after convert(product, partial, invariant)");
  if (bias.is_constant() || bias.placement == y) return y;
  if (bias.is(Kind::partial)) c.refuse_partial();
  if (bias.is(Kind::invariant))
    c.fail(at + 2, "and the product is " + y.str() + ": nobody would sum the bias' gradient",
           Placement::replicated());
  if (y.is(Kind::invariant))
    wrong("and the product is invariant: each rank would compute a part of a whole gradient",
          "convert x and the weight from invariant to replicated");
  if (y.is(Kind::sharded) && y.dim() == features) {
    if (!bias.is(Kind::sharded))
      c.fail(at + 2, "and the product is divided along the features", Placement::sharded(0));
    return y;
  }
  if (bias.is(Kind::sharded)) c.fail(at + 2, "and the product has all features", Placement::replicated());
  return bias.is(Kind::varying) ? Placement::varying() : y;
}
Placement fully_connected(const Call& c) { return linear_layer(c, 0, c.operand(0).tensor->dim() - 1); }
Placement activated(const Call& c) {
  const Placement y = fully_connected(c);
  if (y.is(Kind::partial))
    c.fail(0, "so the product is a sum still to be made, and the activation is not linear",
           "use linear(), convert(product, partial, invariant), and then the activation");
  return y;
}
// The operands are (x, weight1, bias1, weight2, bias2), of two linear layers.
Placement feed_forward(const Call& c) {
  const Placement hidden = activated(c);
  const int features = c.operand(0).tensor->dim() - 1;
  std::vector<PlacedOperand> second{{c.operand(0).tensor, hidden}, c.operand(3), c.operand(4)};
  const Call next(c.op(), c.axis(), std::move(second), 3, c.outputs(), c.details());
  return linear_layer(next, 0, features);
}

// x (N, C, ...), weight (K, C / groups, ...), bias (K).
Placement convolved(const Call& c) {
  const Tensor &x = *c.operand(0).tensor, &w = *c.operand(1).tensor;
  const bool grouped = w.size(1) != x.size(1);
  const auto role_x = [&](int d) -> Role {
    if (d == 0) return {Part::rows, 0};
    if (d == 1) return grouped ? Role{Part::columns, 1} : Role{Part::contracted, -1};
    c.fail(0, "and windows reach into other ranks' parts", Placement::replicated());
  };
  const auto role_w = [&](int d) -> Role {
    if (d == 0) return {Part::columns, 1};
    if (d == 1 && !grouped) return {Part::contracted, -1};
    c.fail(1, "and each rank needs the whole window", Placement::replicated());
  };
  const Placement y = product(c, 0, 1, role_x, role_w);
  if (!c.operand(2).defined() || c.operand(2).placement == y) return y;
  if (y.is(Kind::partial))
    c.fail(2, "and the convolution is partial along it: each rank would add the bias",
           "add it after convert(result, partial, invariant)");
  if (c.operand(2).is_constant()) return y;
  c.check_invariant();
  const bool by_channel = y.is(Kind::sharded) && y.dim() == 1;
  if (by_channel != c.operand(2).is(Kind::sharded))
    c.fail(2, "and the convolution is " + y.str(),
           by_channel ? Placement::sharded(0) : Placement::replicated());
  return y;
}

Placement convolved_relu(const Call& c) {
  const Placement y = convolved(c);
  if (y.is(Kind::partial)) c.fail(0, "so the convolution is a sum still to be made", "use conv2d()");
  return y;
}

// Ranks that divide the groups have the rows of theirs.
Placement grouped(const Call& c) {
  const auto& w = c.operand(1).placement;
  const bool by_groups = w && *w == Placement::sharded(0) && c.operand(1).tensor->dim() == 3;
  return by_groups && c.operand(0).is(Kind::varying) ? Placement::varying() : c.opaque();
}

}  // namespace tapestry::distributed::rules
