// MultiheadAttention for queries all of whose keys are masked: with and without weights it computes the same.
#include <limits>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/nn/layers/attention.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("a query that sees no key gets weights of 0, and no gradient is NaN, with and without weights") {
  manual_seed(3);
  nn::MultiheadAttention attention({.embed_dim = 8, .num_heads = 2, .batch_first = true});
  const Tensor x = randn({2, 3, 8});
  const Tensor padding =
      tensor({0, 0, 0, 1, 1, 1}).reshape({2, 3}).to(DType::boolean);  // all keys of sample 1
  const Tensor row =
      tensor({1, 1, 1, 0, 0, 1, 0, 1, 0}).reshape({3, 3}).to(DType::boolean);  // all keys of query 0
  const Tensor by_infinity = where(row, Scalar(-std::numeric_limits<double>::infinity()), zeros({3, 3}));
  struct Case {
    const char* name;
    Tensor key_padding_mask, attn_mask;
  };
  for (const Case& c : {Case{"padding", padding, {}}, Case{"attn_mask", {}, row},
                        Case{"additive", {}, by_infinity}, Case{"both", padding, row}}) {
    CAPTURE(c.name);
    Tensor outputs[2], gradients[2];
    for (const bool need : {false, true}) {
      attention.zero_grad();
      const auto [y, weights] = attention.forward(
          x, x, x, {.key_padding_mask = c.key_padding_mask, .need_weights = need, .attn_mask = c.attn_mask});
      (y * y).sum().backward();
      if (need) {
        CHECK(isfinite(weights).all().item<bool>());
        if (c.key_padding_mask.defined()) CHECK(weights.select(0, 1).abs().sum().item() == 0);
        if (c.attn_mask.defined()) CHECK(weights.select(1, 0).abs().sum().item() == 0);
      }
      outputs[need] = y.detach(), gradients[need] = attention.in_proj_weight.grad().clone();
      CHECK(isfinite(gradients[need]).all().item<bool>());
    }
    CHECK(allclose(outputs[0], outputs[1], 1e-5, 1e-6));
    CHECK(allclose(gradients[0], gradients[1], 1e-4, 1e-5));
  }
}
