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

TEST_CASE("attention: causal_offset hides the keys that a mask hides") {
  manual_seed(2);
  struct Case {
    std::int64_t queries, keys, offset;
  };
  // Few queries and many have different kernels, whose blocks are 96 queries by 128 keys.
  for (const Case c : {Case{1, 5, 4}, Case{3, 140, 137}, Case{5, 7, 2}, Case{100, 300, 200},
                       Case{200, 330, 130}, Case{7, 9, 0}, Case{4, 6, 20}, Case{97, 260, 128}}) {
    CAPTURE(c.queries, c.keys, c.offset);
    const Tensor mask = arange(c.keys, TensorOptions(DType::i64)) <=
                        (arange(c.queries, TensorOptions(DType::i64)) + c.offset).unsqueeze(1);
    const Tensor g = randn({2, 4, c.queries, 5});
    const Tensor q0 = randn({2, 4, c.queries, 6}), k0 = randn({2, 2, c.keys, 6}),
                 v0 = randn({2, 2, c.keys, 5});
    const auto run = [&](const AttentionParams& params, DType dtype) {
      std::vector<Tensor> in;
      for (const Tensor* t : {&q0, &k0, &v0}) in.push_back(t->to(dtype).clone().set_requires_grad());
      const Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], params);
      y.backward(g.to(dtype));
      return std::vector<Tensor>{y.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
    };
    for (const DType dtype : {DType::f32, DType::f64}) {  // by a kernel, and by operations
      const auto ours = run({.is_causal = true, .causal_offset = c.offset, .enable_gqa = true}, dtype);
      const auto masked = run({.attn_mask = mask, .enable_gqa = true}, dtype);
      for (std::size_t i = 0; i < 4; ++i) CHECK(allclose(ours[i], masked[i], 1e-4, 1e-5));
    }
  }
}
BAD_INPUT("scaled_dot_product_attention", "causal_offset is -1; it must not be negative", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(x, x, x, {.is_causal = true, .causal_offset = -1});
});
BAD_INPUT("scaled_dot_product_attention", "causal_offset is 1, but is_causal is not set", [] {
  const Tensor x = zeros({2, 3});
  return scaled_dot_product_attention(x, x, x, {.causal_offset = 1});
});
