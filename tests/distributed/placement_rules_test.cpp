// Tests the rules of placement against arithmetic: each rank computes on its part of the operands, and what
// its rule says of the result and of the gradients must hold.
#include <string>
#include <vector>

#include "tapestry/autograd/op.h"
#include "tapestry/distributed/placement/rule.h"
#include "tests/distributed/placement_support.h"
#include "tests/support/catch.h"

using namespace placement_test;

namespace {

constexpr int kRanks = 2;

// An operand of a case: the shape of the whole tensor, and how it is placed.
struct Operand {
  Shape sizes;
  Placement placement;
  int indices = 0;  // if not 0: integers below it, which get no gradient
};
struct Case {
  std::string name;
  std::vector<Operand> operands;
  Placement result;
  std::function<Tensor(const std::vector<Tensor>&)> fn;
  DType dtype = DType::f64;  // f32 where that has a kernel of its own
};

Tensor values(const Shape& sizes, int seed) {
  const Tensor t = empty(sizes, DType::f64);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = std::sin(1.7 * static_cast<double>(i) + seed) + 1.5;  // positive: for log and sqrt
  return t;
}

// What rank `rank` has of `whole`.
Tensor part(const Tensor& whole, Placement placement, int rank) {
  switch (placement.kind()) {
    case Placement::Kind::sharded: {
      const std::int64_t size = whole.size(placement.dim()) / kRanks;
      return whole.narrow(placement.dim(), rank * size, size).clone();
    }
    case Placement::Kind::partial: {
      const Tensor first = whole * 0.3 + values(whole.sizes(), 5);
      return rank == 0 ? first : whole - first;
    }
    default:
      return whole.clone();
  }
}

double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e300;
  return a.numel() == 0 ? 0 : max(abs(a - b)).item();
}

// How far the tensors of the ranks are from `whole`, placed so.
double distance(const std::vector<Tensor>& ranks, const Tensor& whole, Placement placement) {
  if (placement.is(Placement::Kind::partial)) return distance(ranks[0] + ranks[1], whole);
  double most = 0;
  for (int r = 0; r < kRanks; ++r)
    most = std::max(most, distance(ranks[static_cast<std::size_t>(r)], part(whole, placement, r)));
  return most;
}

void check_case(const Case& c) {
  INFO(c.name);
  std::vector<Tensor> whole, leaves;
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    const Operand& o = c.operands[i];
    Tensor t = values(o.sizes, static_cast<int>(i));
    if (o.indices > 0) t = floor(t * 10).to(DType::i64).remainder(o.indices);
    else t = t.to(c.dtype).set_requires_grad(true);
    whole.push_back(t);
    if (o.indices == 0) leaves.push_back(t);
  }
  const Tensor y = c.fn(whole), dy = values(y.sizes(), 9).to(c.dtype);
  const std::vector<Tensor> expected =
      autograd::grad({y}, leaves, autograd::GradOptions{.grad_outputs = {dy}, .allow_unused = true});

  std::vector<Tensor> results;
  std::vector<std::vector<Tensor>> grads(leaves.size());
  for (int rank = 0; rank < kRanks; ++rank) {
    const Axis axis = fake_axis(rank);
    const PlacementCheck on;
    std::vector<Tensor> mine, my_leaves;
    for (std::size_t i = 0; i < c.operands.size(); ++i) {
      const Operand& o = c.operands[i];
      const Tensor t = part(whole[i].detach(), o.placement, rank);
      if (o.indices == 0) my_leaves.push_back(t.set_requires_grad(true));
      set_placement(t, axis, o.placement);
      mine.push_back(t);
    }
    const Tensor my_y = c.fn(mine);
    const auto placement = placement_of(my_y, axis);
    REQUIRE(placement.has_value());
    CHECK(placement->str() == c.result.str());
    results.push_back(my_y.detach());
    const Tensor my_dy = part(dy, placement->of_gradient(), rank);
    const std::vector<Tensor> d = autograd::grad(
        {my_y}, my_leaves, autograd::GradOptions{.grad_outputs = {my_dy}, .allow_unused = true});
    for (std::size_t i = 0; i < d.size(); ++i) grads[i].push_back(d[i]);
  }
  // Sums of ten numbers or so of size 100 at most, in another order.
  const double bound = c.dtype == DType::f64 ? 1e-11 : 1e-4;
  CHECK(distance(results, y.detach(), c.result) < bound);
  std::size_t leaf = 0;
  for (const Operand& o : c.operands) {
    if (o.indices > 0) continue;
    INFO("gradient " << leaf);
    const Tensor& whole_gradient = expected[leaf];
    const std::vector<Tensor>& of_ranks = grads[leaf++];
    CHECK(of_ranks[0].defined() == whole_gradient.defined());
    if (whole_gradient.defined())
      CHECK(distance(of_ranks, whole_gradient, o.placement.of_gradient()) < bound);
  }
}

using Tensors = std::vector<Tensor>;
const Placement I = kInvariant, R = kReplicated, P = kPartial;
Placement S(int dim) { return divided(dim); }

std::vector<Case> cases() {
  const CrossEntropyParams sums{.reduction = Reduction::sum}, rows{.reduction = Reduction::none};
  return {
      // Arithmetic.
      {"add", {{{4, 6}, S(1)}, {{4, 6}, S(1)}}, S(1), [](const Tensors& t) { return t[0] + t[1]; }},
      {"add broadcasts", {{{6}, S(0)}, {{4, 6}, S(1)}}, S(1), [](const Tensors& t) { return t[0] + t[1]; }},
      {"add repeats", {{{1, 3}, R}, {{4, 3}, S(0)}}, S(0), [](const Tensors& t) { return t[0] + t[1]; }},
      {"sub partial", {{{4, 3}, P}, {{3}, P}}, P, [](const Tensors& t) { return t[0] - t[1]; }},
      {"mul", {{{4, 3}, P}, {{3}, R}}, P, [](const Tensors& t) { return t[0] * t[1]; }},
      {"mul invariant", {{{4, 3}, I}, {{3}, I}}, I, [](const Tensors& t) { return t[0] * t[1]; }},
      {"mul number", {{{4}, P}}, P, [](const Tensors& t) { return -t[0] * 3.0 / 7.0; }},
      {"div", {{{4, 3}, P}, {{4, 1}, R}}, P, [](const Tensors& t) { return t[0] / t[1]; }},
      {"gelu", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return gelu(t[0]); }},
      {"functions", {{{4}, R}, {{4}, R}}, R, [](const Tensors& t) { return pow(exp(t[0]), t[1]); }},
      {"swiglu", {{{2, 4}, S(1)}, {{2, 4}, S(1)}}, S(1), [](const Tensors& t) { return swiglu(t[0], t[1]); }},
      {"where",
       {{{4}, P}, {{4}, P}},
       P,
       [](const Tensors& t) { return where(arange(4).remainder(2) == 0, t[0], t[1]); }},
      {"in place",
       {{{4, 2}, S(0)}, {{4, 2}, S(0)}},
       S(0),
       [](const Tensors& t) { return t[0].clone().mul_(t[1]).add_(t[1]); }},
      {"copy_",
       {{{4, 2}, S(0)}, {{4, 1}, S(0)}},
       S(0),
       [](const Tensors& t) { return t[0].clone().copy_(t[1]); }},
      {"lerp", {{{4}, S(0)}, {{4}, S(0)}}, S(0), [](const Tensors& t) { return lerp(t[0], t[1], 0.3); }},
      // Along dimensions.
      {"sum over parts", {{{4, 6}, S(1)}}, P, [](const Tensors& t) { return t[0].sum(1); }},
      {"sum of parts", {{{4, 6}, S(1)}}, S(0), [](const Tensors& t) { return t[0].sum(0); }},
      {"sum keeps", {{{4, 6}, S(1)}}, S(1), [](const Tensors& t) { return t[0].sum(0, true); }},
      {"sum of all", {{{4, 6}, S(0)}}, P, [](const Tensors& t) { return t[0].sum(); }},
      {"mean", {{{4, 6, 2}, S(2)}}, S(1), [](const Tensors& t) { return t[0].mean(1); }},
      {"mean partial", {{{4, 6}, P}}, P, [](const Tensors& t) { return t[0].mean(1); }},
      {"var", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return var(t[0], 1); }},
      {"amax", {{{4, 6}, S(1)}}, S(0), [](const Tensors& t) { return amax(t[0], 0); }},
      {"norm", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return norm(t[0], 2, 1); }},
      {"softmax", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return softmax(t[0], 1); }},
      {"logsumexp", {{{4, 6}, I}}, I, [](const Tensors& t) { return logsumexp(t[0], 1); }},
      {"cumsum", {{{4, 6}, P}}, P, [](const Tensors& t) { return cumsum(t[0], 1); }},
      {"sort", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return sort(t[0], 1).first; }},
      {"narrow", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return t[0].narrow(1, 2, 3); }},
      {"flip", {{{4, 6}, P}}, P, [](const Tensors& t) { return flip(t[0], 1); }},
      {"cat",
       {{{4, 6}, S(0)}, {{4, 2}, S(0)}},
       S(0),
       [](const Tensors& t) {
         return cat({t[0], t[1]}, 1);
       }},
      {"stack",
       {{{4, 6}, S(0)}, {{4, 6}, S(0)}},
       S(1),
       [](const Tensors& t) {
         return stack({t[0], t[1]}, 0);
       }},
      {"split", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return split(t[0], 2, 1)[1]; }},
      {"unbind", {{{4, 6}, S(0)}}, S(0), [](const Tensors& t) { return unbind(t[0], 1)[1]; }},
      {"gather",
       {{{4, 6}, S(0)}, {{4, 2}, S(0), 6}},
       S(0),
       [](const Tensors& t) { return gather(t[0], 1, t[1]); }},
      {"index_select",
       {{{5, 3}, R}, {{4}, S(0), 5}},
       S(0),
       [](const Tensors& t) { return index_select(t[0], 0, t[1]); }},
      // Views.
      {"transpose", {{{4, 6, 2}, S(0)}}, S(2), [](const Tensors& t) { return t[0].transpose(0, 2); }},
      {"permute",
       {{{4, 6, 2}, S(0)}},
       S(1),
       [](const Tensors& t) {
         return t[0].permute({2, 0, 1});
       }},
      {"select", {{{4, 6, 2}, S(2)}}, S(1), [](const Tensors& t) { return t[0].select(1, 3); }},
      {"unsqueeze", {{{4, 6}, S(1)}}, S(2), [](const Tensors& t) { return t[0].unsqueeze(1); }},
      {"squeeze", {{{1, 4, 1, 6}, S(3)}}, S(2), [](const Tensors& t) { return t[0].squeeze(0); }},
      {"split heads",
       {{{2, 3, 4}, S(2)}},
       S(2),
       [](const Tensors& t) {
         return t[0].unflatten(2, {-1, 2});
       }},
      {"one head a rank",
       {{{1, 3, 4}, S(2)}},
       S(2),
       [](const Tensors& t) {
         return t[0].unflatten(2, {-1, 2});
       }},
      {"merge heads", {{{2, 3, 4, 2}, S(2)}}, S(2), [](const Tensors& t) { return t[0].flatten(2); }},
      {"merge one head", {{{1, 1, 2, 2}, S(2)}}, S(2), [](const Tensors& t) { return t[0].flatten(2); }},
      {"merge rows",
       {{{4, 3, 2}, S(0)}},
       S(0),
       [](const Tensors& t) {
         return t[0].reshape({-1, 2});
       }},
      {"merge before", {{{2, 3, 4}, S(2)}}, S(1), [](const Tensors& t) { return t[0].flatten(0, 1); }},
      {"one batch", {{{1, 2, 3}, S(1)}}, S(0), [](const Tensors& t) { return t[0].flatten(0, 1); }},
      {"reshape copies",
       {{{4, 3, 2}, S(0)}},
       S(1),
       [](const Tensors& t) {
         return t[0].transpose(0, 1).reshape({3, -1});
       }},
      {"expand",
       {{{4, 1}, S(0)}},
       S(1),
       [](const Tensors& t) {
         return t[0].expand({3, -1, 2});
       }},
      // Products.
      {"matmul contracts",
       {{{3, 4}, S(1)}, {{4, 5}, S(0)}},
       P,
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul rows",
       {{{2, 4, 3}, S(1)}, {{3, 5}, R}},
       S(1),
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul columns",
       {{{2, 4, 3}, R}, {{3, 4}, S(1)}},
       S(2),
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul batches",
       {{{2, 4, 3}, S(0)}, {{2, 3, 5}, S(0)}},
       S(0),
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul batch of one",
       {{{3, 2, 4, 3}, S(1)}, {{1, 3, 5}, R}},
       S(1),
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul partial", {{{3, 4}, P}, {{4, 5}, R}}, P, [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"matmul vectors",
       {{{4}, S(0)}, {{4, 5}, S(0)}},
       P,
       [](const Tensors& t) { return matmul(t[0], t[1]); }},
      {"mv", {{{4, 3}, S(0)}, {{3}, R}}, S(0), [](const Tensors& t) { return mv(t[0], t[1]); }},
      {"column linear",
       {{{2, 3, 4}, R}, {{6, 4}, S(0)}, {{6}, S(0)}},
       S(2),
       [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"row linear",
       {{{2, 3, 4}, S(2)}, {{6, 4}, S(1)}},
       P,
       [](const Tensors& t) { return linear(t[0], t[1]); }},
      {"linear of rows",
       {{{2, 4, 3}, S(1)}, {{5, 3}, R}, {{5}, R}},
       S(1),
       [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"linear of all",
       {{{2, 3}, I}, {{5, 3}, I}, {{5}, I}},
       I,
       [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"linear_gelu",
       {{{3, 4}, R}, {{6, 4}, S(0)}, {{6}, S(0)}},
       S(1),
       [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); }},
      {"feed_forward",
       {{{3, 4}, R}, {{6, 4}, S(0)}, {{6}, S(0)}, {{5, 6}, S(1)}},
       P,
       [](const Tensors& t) { return feed_forward(t[0], t[1], t[2], t[3], Tensor(), Activation::relu); }},
      {"conv2d samples",
       {{{2, 3, 4, 4}, S(0)}, {{2, 3, 3, 3}, R}, {{2}, R}},
       S(0),
       [](const Tensors& t) { return conv2d(t[0], t[1], t[2]); }},
      {"conv2d outputs",
       {{{1, 3, 4, 4}, R}, {{4, 3, 3, 3}, S(0)}, {{4}, S(0)}},
       S(1),
       [](const Tensors& t) { return conv2d(t[0], t[1], t[2]); }},
      {"conv2d inputs",
       {{{1, 4, 4, 4}, S(1)}, {{3, 4, 3, 3}, S(1)}},
       P,
       [](const Tensors& t) { return conv2d(t[0], t[1], Tensor()); }},
      // Layers.
      {"embedding",
       {{{5, 4}, S(1)}, {{2, 3}, R, 5}},
       S(2),
       [](const Tensors& t) { return embedding(t[0], t[1]); }},
      {"embedding of parts",
       {{{5, 3}, R}, {{2, 4}, S(1), 5}},
       S(1),
       [](const Tensors& t) { return embedding(t[0], t[1]); }},
      {"layer_norm",
       {{{2, 4, 3}, S(1)}, {{3}, R}, {{3}, R}},
       S(1),
       [](const Tensors& t) { return layer_norm(t[0], 3, t[1], t[2]); }},
      {"rms_norm",
       {{{2, 4, 3}, S(1)}, {{3}, R}},
       S(1),
       [](const Tensors& t) { return rms_norm(t[0], 3, t[1]); }},
      {"group_norm",
       {{{2, 4, 3}, S(0)}, {{4}, R}, {{4}, R}},
       S(0),
       [](const Tensors& t) { return group_norm(t[0], 2, t[1], t[2]); }},
      {"rotary_embedding",
       {{{2, 4, 3, 4}, S(1)}},
       S(1),
       [](const Tensors& t) {
         const Tensor angles = values({3, 2}, 3);
         return rotary_embedding(t[0], cos(angles), sin(angles), true);
       }},
      {"attention by heads",
       {{{1, 4, 3, 2}, S(1)}, {{1, 2, 3, 2}, S(1)}, {{1, 2, 3, 2}, S(1)}},
       S(1),
       [](const Tensors& t) {
         return scaled_dot_product_attention(t[0], t[1], t[2], {.is_causal = true, .enable_gqa = true});
       },
       DType::f32},
      {"attention by queries",
       {{{1, 2, 4, 2}, S(2)}, {{1, 2, 4, 2}, R}, {{1, 2, 4, 2}, R}},
       S(2),
       [](const Tensors& t) { return scaled_dot_product_attention(t[0], t[1], t[2]); },
       DType::f32},
      {"attention by operations",
       {{{1, 2, 4, 2}, S(2)}, {{1, 2, 4, 2}, R}, {{1, 2, 4, 2}, R}},
       S(2),
       [](const Tensors& t) { return scaled_dot_product_attention(t[0], t[1], t[2]); }},
      {"attention with one key head",
       {{{1, 4, 3, 2}, S(1)}, {{1, 1, 3, 2}, R}, {{1, 1, 3, 2}, R}},
       S(1),
       [](const Tensors& t) { return scaled_dot_product_attention(t[0], t[1], t[2], {.enable_gqa = true}); },
       DType::f32},
      // Losses.
      {"mse_loss",
       {{{4, 3}, S(0)}, {{4, 3}, S(0)}},
       P,
       [](const Tensors& t) { return mse_loss(t[0], t[1], Reduction::sum); }},
      {"mse_loss of elements",
       {{{4, 3}, S(1)}, {{4, 3}, S(1)}},
       S(1),
       [](const Tensors& t) { return mse_loss(t[0], t[1], Reduction::none); }},
      {"mse_loss of all",
       {{{4, 3}, I}, {{4, 3}, I}},
       I,
       [](const Tensors& t) { return mse_loss(t[0], t[1]); }},
      {"cross_entropy",
       {{{4, 3}, S(0)}, {{4}, S(0), 3}},
       P,
       [sums](const Tensors& t) { return cross_entropy(t[0], t[1], sums); }},
      {"cross_entropy of rows",
       {{{2, 3, 4}, S(2)}, {{2, 4}, S(1), 3}},
       S(1),
       [rows](const Tensors& t) { return cross_entropy(t[0], t[1], rows); }},
      {"linear_cross_entropy",
       {{{4, 3}, S(0)}, {{5, 3}, R}, {{4}, S(0), 5}},
       P,
       [](const Tensors& t) {
         return linear_cross_entropy(t[0], t[1], t[2], {.reduction = Reduction::sum});
       }},
  };
}

}  // namespace

TEST_CASE("what a rule says of results and gradients is what the ranks compute") {
  for (const Case& c : cases()) check_case(c);
}

TEST_CASE("each operation has a rule, or needs none") {
  std::string missing, superfluous;
  int rules = 0;
  for (const autograd::Op* op = autograd::Op::first(); op; op = op->next()) {
    const bool has = impl::built_in_rule(op->name) != nullptr;
    rules += has;
    // An operation without a gradient is not recorded: its result is a constant.
    if (op->differentiable && !has && !impl::is_composed(op->name)) missing += std::string(" ") + op->name;
    if (has && impl::is_composed(op->name)) superfluous += std::string(" ") + op->name;
  }
  CHECK(missing == "");
  CHECK(superfluous == "");
  CHECK(rules > 150);
}
