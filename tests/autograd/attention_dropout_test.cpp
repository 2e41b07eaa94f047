// Tests dropout inside the attention kernel. Attention in f64 has no kernel and draws the same numbers for
// the same seed, so both must drop the same weights.
#include <cmath>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/generator.h"
#include "tapestry/kernels/ops/attention.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

struct Inputs {
  Tensor q, k, v, dy;
  Inputs to(DType dtype) const { return {q.to(dtype), k.to(dtype), v.to(dtype), dy.to(dtype)}; }
};
Inputs inputs_of(std::int64_t queries, std::int64_t keys) {
  manual_seed(1);
  return {randn({2, 4, queries, 8}), randn({2, 2, keys, 8}), randn({2, 2, keys, 5}) + 1,
          randn({2, 4, queries, 5})};
}

// y, the gradients of q, k and v, and the gradient of the sum of their squares with respect to q.
std::vector<Tensor> attend(const Inputs& in, const AttentionParams& params) {
  const Tensor q = in.q.clone().set_requires_grad(), k = in.k.clone().set_requires_grad(),
               v = in.v.clone().set_requires_grad();
  manual_seed(7);
  const Tensor y = scaled_dot_product_attention(q, k, v, params);
  const std::vector<Tensor> recorded =
      autograd::grad({y}, {q, k, v}, {.grad_outputs = {in.dy}, .create_graph = true});
  Tensor squares = recorded[0].pow(2).sum() + recorded[1].pow(2).sum() + recorded[2].pow(2).sum();
  const Tensor second = autograd::grad({squares}, {q})[0];
  manual_seed(7);
  const Tensor again = scaled_dot_product_attention(q, k, v, params);
  CHECK(again.equal(y));
  again.backward(in.dy);
  for (std::size_t i = 0; i < 3; ++i)  // the kernel's gradients are those that can be differentiated
    CHECK(allclose(recorded[i], (i == 0 ? q : i == 1 ? k : v).grad(), 1e-3, 1e-4));
  return {y.detach(), q.grad(), k.grad(), v.grad(), second};
}

}  // namespace

TEST_CASE("attention dropout: the kernel drops the same weights as operations do") {
  REQUIRE(kernels::attention.has(DeviceType::cpu, DType::f32));
  REQUIRE(!kernels::attention.has(DeviceType::cpu, DType::f64));
  // Few queries and many have different kernels; 130 keys need a second block, whose first weight is not the
  // first of a counter.
  for (const std::int64_t queries : {3, 101})
    for (const std::int64_t keys : {7, 130})
      for (const double p : {0.1, 0.75, 1.0})
        for (const bool causal : {false, true}) {
          CAPTURE(queries, keys, p, causal);
          const Inputs in = inputs_of(queries, keys);
          const AttentionParams params{.dropout_p = p, .is_causal = causal, .enable_gqa = true};
          const auto ours = attend(in, params), exact = attend(in.to(DType::f64), params);
          for (std::size_t i = 0; i < ours.size(); ++i)
            CHECK(allclose(ours[i].to(DType::f64), exact[i], 1e-3, 2e-4));
        }
}

TEST_CASE("attention dropout: gradients are differences of the values with the same seed") {
  const Inputs in = inputs_of(20, 30);
  const Tensor q = in.q.clone().set_requires_grad(), direction = randn(in.q.sizes());
  const auto loss = [&](const Tensor& at) {
    manual_seed(3);
    return sum(scaled_dot_product_attention(at, in.k, in.v, {.dropout_p = 0.4, .enable_gqa = true}) * in.dy);
  };
  loss(q).backward();
  const double step = 1e-2;
  const double difference =
      (loss(in.q + direction * step).item<double>() - loss(in.q - direction * step).item<double>()) /
      (2 * step);
  CHECK(sum(q.grad() * direction).item<double>() == Approx(difference).epsilon(2e-3));
}

TEST_CASE("attention dropout: the fraction of kept weights, and what they are multiplied by") {
  // All weights are 1 / 64, and the values pick the weights one by one.
  const Tensor q = zeros({1, 2, 500, 64}), v = eye(64).reshape({1, 1, 64, 64}).expand({1, 2, 64, 64});
  manual_seed(5);
  const Tensor y = scaled_dot_product_attention(q, zeros({1, 2, 64, 64}), v, {.dropout_p = 0.25}) * 64;
  const Tensor kept = y.gt(0).to(DType::f32);
  // 64000 weights, each kept with probability 3/4, have a fraction with standard deviation 0.0017.
  CHECK(kept.mean().item() == Approx(0.75).margin(0.01));
  CHECK(allclose(y, kept * (1 / 0.75), 1e-5, 1e-5));
  CHECK_FALSE(
      scaled_dot_product_attention(q, zeros({1, 2, 64, 64}), v, {.dropout_p = 0.25}).mul(64).equal(y));
  // Both heads, and both halves of the queries, have masks of their own.
  CHECK_FALSE(kept.select(1, 0).equal(kept.select(1, 1)));
  CHECK_FALSE(kept.narrow(2, 0, 250).equal(kept.narrow(2, 250, 250)));
}

TEST_CASE("attention dropout: a probability outside [0, 1] is refused") {
  const Tensor x = zeros({2, 3});
  for (const double p : {-0.1, 1.5, std::nan("")})
    CHECK_THROWS_WITH(scaled_dot_product_attention(x, x, x, {.dropout_p = p}),
                      ContainsSubstring("give a probability, from 0 to 1"));
}
