#include <limits>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("square", "composite", [](const OpCase& c) { return square(c[0]); });
GOLDEN_OP("reciprocal", "composite", [](const OpCase& c) { return reciprocal(c[0]); });
GOLDEN_OP("frac", "composite", [](const OpCase& c) { return frac(c[0]); });
GOLDEN_OP("isfinite", "composite", [](const OpCase& c) { return isfinite(c[0]); });
GOLDEN_OP("isinf", "composite", [](const OpCase& c) { return isinf(c[0]); });
GOLDEN_OP("logical_not", "composite", [](const OpCase& c) { return logical_not(c[0]); });
GOLDEN_OP("bitwise_not", "composite", [](const OpCase& c) { return bitwise_not(c[0]); });
GOLDEN_OP("square/in_place", "composite", [](const OpCase& c) { return c[0].clone().square_(); });
GOLDEN_OP("reciprocal/in_place", "composite", [](const OpCase& c) { return c[0].clone().reciprocal_(); });
GOLDEN_OP("frac/in_place", "composite", [](const OpCase& c) { return c[0].clone().frac_(); });
GOLDEN_OP("bitwise_not/in_place", "composite", [](const OpCase& c) { return c[0].clone().bitwise_not_(); });
GOLDEN_OP("nan_to_num", "composite", [](const OpCase& c) {
  return nan_to_num(c[0], c.real("nan", 0), c.maybe_real("posinf"), c.maybe_real("neginf"));
});
GOLDEN_OP("nan_to_num/in_place", "composite", [](const OpCase& c) {
  return c[0].clone().nan_to_num_(c.real("nan", 0), c.maybe_real("posinf"), c.maybe_real("neginf"));
});
GOLDEN_OP("lerp", "composite", [](const OpCase& c) { return lerp(c[0], c[1], c.real("weight")); });
GOLDEN_OP("lerp/tensor", "composite", [](const OpCase& c) { return lerp(c[0], c[1], c[2]); });
GOLDEN_OP("lerp/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().lerp_(c[1], c.real("weight")); });
GOLDEN_OP("addcmul", "composite",
          [](const OpCase& c) { return addcmul(c[0], c[1], c[2], c.scalar("value")); });
GOLDEN_OP("addcmul/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().addcmul_(c[1], c[2], c.scalar("value")); });
GOLDEN_OP("addcdiv", "composite",
          [](const OpCase& c) { return addcdiv(c[0], c[1], c[2], c.scalar("value")); });
GOLDEN_OP("addcdiv/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().addcdiv_(c[1], c[2], c.scalar("value")); });
GOLDEN_OP("masked_fill", "composite",
          [](const OpCase& c) { return masked_fill(c[0], c[1], c.scalar("value")); });
GOLDEN_OP("masked_fill/tensor", "composite", [](const OpCase& c) { return masked_fill(c[0], c[1], c[2]); });
GOLDEN_OP("masked_fill/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().masked_fill_(c[1], c.scalar("value")); });
GOLDEN_OP("logical_and", "composite", [](const OpCase& c) { return logical_and(c[0], c[1]); });
GOLDEN_OP("logical_and/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().logical_and_(c[1]); });
GOLDEN_OP("logical_or", "composite", [](const OpCase& c) { return logical_or(c[0], c[1]); });
GOLDEN_OP("logical_or/in_place", "composite", [](const OpCase& c) { return c[0].clone().logical_or_(c[1]); });
GOLDEN_OP("logical_xor", "composite", [](const OpCase& c) { return logical_xor(c[0], c[1]); });
GOLDEN_OP("logical_xor/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().logical_xor_(c[1]); });
GOLDEN_OP("bitwise_and", "composite", [](const OpCase& c) { return bitwise_and(c[0], c[1]); });
GOLDEN_OP("bitwise_and/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().bitwise_and_(c[1]); });
GOLDEN_OP("bitwise_or", "composite", [](const OpCase& c) { return bitwise_or(c[0], c[1]); });
GOLDEN_OP("bitwise_or/in_place", "composite", [](const OpCase& c) { return c[0].clone().bitwise_or_(c[1]); });
GOLDEN_OP("bitwise_xor", "composite", [](const OpCase& c) { return bitwise_xor(c[0], c[1]); });
GOLDEN_OP("bitwise_xor/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().bitwise_xor_(c[1]); });
GOLDEN_OP("bitwise_left_shift", "composite", [](const OpCase& c) { return bitwise_left_shift(c[0], c[1]); });
GOLDEN_OP("bitwise_left_shift/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().bitwise_left_shift_(c[1]); });
GOLDEN_OP("bitwise_right_shift", "composite",
          [](const OpCase& c) { return bitwise_right_shift(c[0], c[1]); });
GOLDEN_OP("bitwise_right_shift/in_place", "composite",
          [](const OpCase& c) { return c[0].clone().bitwise_right_shift_(c[1]); });
GOLDEN_OP("bitwise_and/scalar", "composite",
          [](const OpCase& c) { return bitwise_and(c[0], c.scalar("other")); });
GOLDEN_OP("bitwise_or/scalar", "composite",
          [](const OpCase& c) { return bitwise_or(c[0], c.scalar("other")); });
GOLDEN_OP("bitwise_xor/scalar", "composite",
          [](const OpCase& c) { return bitwise_xor(c[0], c.scalar("other")); });
GOLDEN_OP("bitwise_left_shift/scalar", "composite",
          [](const OpCase& c) { return bitwise_left_shift(c[0], c.scalar("other")); });
GOLDEN_OP("bitwise_right_shift/scalar", "composite",
          [](const OpCase& c) { return bitwise_right_shift(c[0], c.scalar("other")); });

BAD_INPUT("square", "undefined tensor", [] { square(Tensor()); });
BAD_INPUT("reciprocal", "undefined tensor", [] { reciprocal(Tensor()); });
BAD_INPUT("isfinite", "undefined tensor", [] { isfinite(Tensor()); });
BAD_INPUT("isinf", "undefined tensor", [] { isinf(Tensor()); });
BAD_INPUT("nan_to_num", "undefined tensor", [] { nan_to_num(Tensor()); });
BAD_INPUT("logical_not", "undefined tensor", [] { logical_not(Tensor()); });
BAD_INPUT("reciprocal", "float32 cannot be stored in place", [] { ones({2}, kInt64).reciprocal_(); });
BAD_INPUT("frac", "does not take int64", [] { frac(zeros({2}, kInt64)); });
BAD_INPUT("lerp", "does not take int64", [] { lerp(zeros({2}, kInt64), zeros({2}), 0.5); });
BAD_INPUT("lerp", "the result has shape [2, 3]", [] { zeros({3}).lerp_(zeros({2, 3}), 0.5); });
BAD_INPUT("addcmul", "value 2.5 is real",
          [] { addcmul(ones({2}, kInt64), ones({2}, kInt64), ones({2}, kInt64), 2.5); });
BAD_INPUT("addcdiv", "does not take int64", [] { addcdiv(ones({2}, kInt64), ones({2}), ones({2})); });
BAD_INPUT("masked_fill", "the mask is float32", [] { masked_fill(zeros({2}), zeros({2}), 1); });
BAD_INPUT("masked_fill", "uint8 cannot hold 300",
          [] { masked_fill(zeros({2}, kUInt8), zeros({2}, kBool), 300); });
BAD_INPUT("masked_fill", "the value has shape",
          [] { masked_fill(zeros({2}), zeros({2}, kBool), zeros({1})); });
BAD_INPUT("masked_fill", "does not broadcast", [] { zeros({3}).masked_fill_(zeros({2, 3}, kBool), 1); });
BAD_INPUT("logical_and", "do not broadcast", [] { logical_and(zeros({2}), zeros({3})); });
BAD_INPUT("logical_or", "do not broadcast", [] { logical_or(zeros({2}), zeros({3})); });
BAD_INPUT("logical_xor", "do not broadcast", [] { logical_xor(zeros({2}), zeros({3})); });
BAD_INPUT("bitwise_and", "does not take float32", [] { bitwise_and(ones({2}, kInt64), ones({2})); });
BAD_INPUT("bitwise_and", "does not take float32", [] { bitwise_and(ones({2}, kInt64), 1.5); });
BAD_INPUT("bitwise_or", "does not take float32", [] { bitwise_or(ones({2}), ones({2}, kInt64)); });
BAD_INPUT("bitwise_xor", "do not broadcast", [] { bitwise_xor(ones({2}, kBool), ones({3}, kBool)); });
BAD_INPUT("bitwise_not", "does not take float32", [] { bitwise_not(ones({2})); });
BAD_INPUT("bitwise_left_shift", "does not take bool", [] { bitwise_left_shift(ones({2}, kBool), 1); });
BAD_INPUT("bitwise_right_shift", "does not take bool", [] { bitwise_right_shift(ones({2}, kBool), 1); });

TEST_CASE("operators of masks combine bools") {
  const Tensor x = tensor({-1.0, 0.5, 2.0});
  CHECK(equal((x > 0) & (x < 1), tensor(std::vector<bool>{false, true, false})));
  CHECK(equal((x < 0) | (x > 1), tensor(std::vector<bool>{true, false, true})));
  CHECK(equal((x > 0) ^ (x > 1), tensor(std::vector<bool>{false, true, false})));
  CHECK(equal(~(x > 0), tensor(std::vector<bool>{true, false, false})));
  CHECK(equal(tensor({6, 5}) & 3, tensor({2, 1})));
  CHECK(equal(tensor({-7, 7}) % 3, tensor({2, 1})));
}

TEST_CASE("a mask changes the selected elements in place and keeps the gradients of the others") {
  const Tensor x = tensor({1.0, 2.0, 3.0}).set_requires_grad();
  const Tensor y = x * 2;
  y.masked_fill_(x > 1.5, 0);
  CHECK(equal(y.detach(), tensor({2.0, 0.0, 0.0})));
  (y * y).sum().backward();
  CHECK(equal(x.grad(), tensor({8.0, 0.0, 0.0})));
}

TEST_CASE("conversions give the dtypes of PyTorch's methods") {
  const Tensor x = tensor({1.5, -2.0});
  CHECK(x.to_double().dtype() == DType::f64);
  CHECK(x.to_double().to_float().dtype() == DType::f32);
  CHECK(x.half().dtype() == DType::f16);
  CHECK(x.bfloat16().dtype() == DType::bf16);
  CHECK(equal(x.to_long(), tensor({1, -2}, kInt64)));
  CHECK(equal(x.to_int(), tensor({1, -2}, kInt32)));
  CHECK(equal(x.abs().byte(), tensor({1, 2}, kUInt8)));
  CHECK(equal(x.to_bool(), tensor(std::vector<bool>{true, true})));
  CHECK(x.type_as(tensor({1})).dtype() == DType::i64);
}
