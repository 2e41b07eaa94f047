#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/creation.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor sdpa(const Shape& q, const Shape& k, const Shape& v, const AttentionParams& params = {}) {
  return scaled_dot_product_attention(zeros(q), zeros(k), zeros(v), params);
}
}  // namespace

GOLDEN_OP("scaled_dot_product_attention", "attention", [](const OpCase& c) {
  return scaled_dot_product_attention(
      c[0], c[1], c[2], {.mask = c[3], .causal = c.flag("causal", false), .scale = c.maybe_real("scale")});
});
BAD_INPUT("scaled_dot_product_attention", "expected (..., L, E)", [] { return sdpa({4}, {3, 4}, {3, 4}); });
BAD_INPUT("scaled_dot_product_attention", "differ in their last size", [] {
  return sdpa({2, 4}, {3, 5}, {3, 4});
});
BAD_INPUT("scaled_dot_product_attention", "have 3 and 2 rows", [] { return sdpa({2, 4}, {3, 4}, {2, 4}); });
BAD_INPUT("scaled_dot_product_attention", "both causal and a mask", [] {
  return sdpa({2, 4}, {3, 4}, {3, 4}, {.mask = zeros({2, 3}), .causal = true});
});
BAD_INPUT("scaled_dot_product_attention", "mask has dtype int64", [] {
  return sdpa({2, 4}, {3, 4}, {3, 4}, {.mask = zeros({2, 3}, kInt64)});
});
BAD_INPUT("scaled_dot_product_attention", "[2, 4]", [] {
  return sdpa({2, 4}, {3, 4}, {3, 4}, {.mask = zeros({2, 4})});
});
