#include "tapestry/autograd/ops/attention.h"

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

GOLDEN_OP("scaled_dot_product_attention", "attention", [](const OpCase& c) {
  return scaled_dot_product_attention(c[0], c[1], c[2],
                                      {.attn_mask = c[3],
                                       .is_causal = c.flag("causal", false),
                                       .scale = c.maybe_real("scale"),
                                       .enable_gqa = c.flag("gqa", false)});
});
BAD_INPUT("scaled_dot_product_attention", "q has 3 heads, k has 2 and v 2", [] {
  return scaled_dot_product_attention(zeros({3, 2, 4}), zeros({2, 5, 4}), zeros({2, 5, 4}),
                                      {.enable_gqa = true});
});
BAD_INPUT("scaled_dot_product_attention", "with enable_gqa, expected (..., heads, L, E)", [] {
  return scaled_dot_product_attention(zeros({2, 4}), zeros({5, 4}), zeros({5, 4}), {.enable_gqa = true});
});
BAD_INPUT("scaled_dot_product_attention", "q [2, 3] and k [4, 5] differ in their last size", [] {
  return scaled_dot_product_attention(zeros({2, 3}), zeros({4, 5}), zeros({4, 5}));
});
BAD_INPUT("scaled_dot_product_attention", "k [4, 3] and v [5, 3] have 4 and 5 rows", [] {
  return scaled_dot_product_attention(zeros({2, 3}), zeros({4, 3}), zeros({5, 3}));
});
BAD_INPUT("scaled_dot_product_attention", "expected (..., L, E)", [] {
  return scaled_dot_product_attention(zeros({3}), zeros({4, 3}), zeros({4, 3}));
});
BAD_INPUT("scaled_dot_product_attention", "both causal and a mask", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(x, x, x,
                                      {.attn_mask = ones({2, 2}, DType::boolean), .is_causal = true});
});
BAD_INPUT("scaled_dot_product_attention", "mask has dtype int64", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(x, x, x, {.attn_mask = ones({2, 2}, DType::i64)});
});
BAD_INPUT("scaled_dot_product_attention", "mask [3, 2] does not broadcast to the scores' shape [1, 2]", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(zeros({1, 3}), x, x, {.attn_mask = zeros({3, 2})});
});
BAD_INPUT("scaled_dot_product_attention",
          "[scaled_dot_product_attention] shapes [2, 4] and [2, 2] do not broadcast", [] {
            const Tensor x = zeros({2, 3});
            return scaled_dot_product_attention(x, x, x, {.attn_mask = zeros({2, 4})});
          });
BAD_INPUT("scaled_dot_product_attention", "v has dtype float64", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(x, x, x.to(DType::f64));
});

TEST_CASE("attention: a query that sees nothing gives zeros, and no gradient") {
  const Tensor q = randn({2, 3}).set_requires_grad(), k = randn({4, 3}).set_requires_grad(),
               v = randn({4, 5}).set_requires_grad();
  const Tensor mask = tensor({1, 0, 1, 1, 0, 0, 0, 0}).reshape({2, 4}).to(DType::boolean);
  const Tensor y = scaled_dot_product_attention(q, k, v, {.attn_mask = mask});
  CHECK(allclose(y.detach()[1], zeros({5})));
  y.sum().backward();
  CHECK(allclose(q.grad()[1], zeros({3})));
  CHECK(isnan(k.grad()).to(DType::f32).sum().item() == 0);
  CHECK(allclose(v.grad()[1], zeros({5})));  // no query sees value 1, so its gradient must be 0
}

TEST_CASE("attention: dropout acts on the weights, and keeps their mean") {
  manual_seed(3);
  const Tensor q = zeros({64, 8}), k = zeros({512, 8}), v = ones({512, 2});
  const Tensor y = scaled_dot_product_attention(q, k, v, {.dropout_p = 0.5});
  CHECK_FALSE(allclose(y, ones({64, 2})));
  // Each output is the average of 512 weights that are 0 or 2, so its standard deviation is 1 / sqrt(512).
  // The mean of 128 such outputs has a standard deviation of 1 / 256.
  CHECK(y.mean().item() == Approx(1).margin(6.0 / 256));
}
