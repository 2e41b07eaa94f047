#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("embedding", "embedding",
          [](const OpCase& c) { return embedding(c[0], c[1], c.maybe_integer("padding_idx")); });

BAD_INPUT("embedding", "index 5 at position 1 is outside [0, 5)", [] {
  embedding(zeros({5, 3}), tensor({0, 5}));
});
BAD_INPUT("embedding", "index -1", [] { embedding(zeros({5, 3}), tensor({0, -1})); });
BAD_INPUT("embedding", "indices are bool", [] { embedding(zeros({5, 3}), zeros({2}, kBool)); });
BAD_INPUT("embedding", "indices are float32", [] { embedding(zeros({5, 3}), zeros({2})); });
BAD_INPUT("embedding", "2 dimensions", [] { embedding(zeros({5}), tensor({0})); });
BAD_INPUT("embedding", "does not take int64", [] { embedding(zeros({5, 3}, kInt64), tensor({0})); });
BAD_INPUT("embedding", "padding_idx 5", [] { embedding(zeros({5, 3}), tensor({0}), 5); });
BAD_INPUT("embedding", "index 0 at position 0 is outside [0, 0)", [] {
  embedding(zeros({0, 3}), tensor({0}));
});

TEST_CASE("many gradients of one row in half precision are summed in f32") {
  const Tensor weight = zeros({3, 2}, TensorOptions(kBFloat16).with_grad());
  embedding(weight, ones({1000}, kInt64)).backward(ones({1000, 2}, kBFloat16));
  CHECK(equal(weight.grad().to(kFloat32), tensor({{0.0, 0.0}, {1000.0, 1000.0}, {0.0, 0.0}})));
}

TEST_CASE("embedding rows without columns give an empty output and an empty gradient") {
  const Tensor weight = zeros({5, 0}, TensorOptions().with_grad());
  const Tensor y = embedding(weight, tensor({1, 2}));
  CHECK(y.sizes() == Shape{2, 0});
  y.backward(zeros({2, 0}));
  CHECK(weight.grad().sizes() == Shape{5, 0});
}

TEST_CASE("embedding: max_norm scales the rows that are looked up, in place") {
  const Tensor weight = tensor({{3.0, 4.0}, {0.3, 0.4}, {6.0, 8.0}}, kFloat64).set_requires_grad();
  const Tensor y = embedding(weight, tensor({0, 1, 0}), {.max_norm = 2.0});
  const Tensor want = tensor({{1.2, 1.6}, {0.3, 0.4}, {6.0, 8.0}}, kFloat64);
  CHECK(allclose(weight.detach(), want, 1e-6, 1e-6));
  CHECK(weight[0].detach().norm().item() < 2);
  CHECK(allclose(y.detach(), want.index_select(0, tensor({0, 1, 0})), 1e-6, 1e-6));
  y.sum().backward();
  CHECK(equal(weight.grad(), tensor({{2.0, 2.0}, {1.0, 1.0}, {0.0, 0.0}}, kFloat64)));
  embedding(weight, tensor({2}), {.max_norm = 7.0, .norm_type = 1});
  CHECK(allclose(weight[2].detach(), tensor({3.0, 4.0}, kFloat64), 1e-6, 1e-6));
  CHECK_THROWS_WITH(embedding(weight, tensor({0, 9}), {.max_norm = 1.0}),
                    ContainsSubstring("[embedding] index 9"));
  CHECK_THROWS_WITH(embedding(weight, tensor({0}), {.max_norm = 0.0}), ContainsSubstring("max_norm 0"));
}

TEST_CASE("embedding: scale_grad_by_freq divides by the number of lookups") {
  const Tensor weight = ones({4, 2}).set_requires_grad();
  const Tensor y = embedding(weight, tensor({{1, 1}, {3, 1}}), {.scale_grad_by_freq = true});
  y.backward(tensor({1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 2.0, 1.0}).view({2, 2, 2}));
  CHECK(allclose(weight.grad(), tensor({{0.0, 0.0}, {7.0 / 3, 2.0}, {0.0, 0.0}, {5.0, 6.0}})));
}

TEST_CASE("indices and classes may have every integer type") {
  const Tensor weight = arange(6, kFloat64).reshape({3, 2}).set_requires_grad();
  const Tensor wide = tensor({2, 0, 2});
  for (const DType dtype : {kUInt8, kInt8, kInt16, kUInt16, kInt32}) {
    INFO(dtype_name(dtype));
    const Tensor index = wide.to(dtype);
    weight.zero_grad();
    const Tensor rows = embedding(weight, index);
    CHECK(equal(rows, embedding(weight, wide)));
    rows.sum().backward();
    CHECK(equal(weight.grad(), tensor({{1.0, 1.0}, {0.0, 0.0}, {2.0, 2.0}}, kFloat64)));
    CHECK(equal(embedding(weight, index, {.max_norm = 100.0}), rows));
    CHECK(equal(embedding_bag(weight, index, {.offsets = tensor({0, 1}).to(dtype)}),
                embedding_bag(weight, wide, {.offsets = tensor({0, 1})})));
    CHECK(equal(weight.index_select(0, index), weight.index_select(0, wide)));
    if (dtype != kUInt8) CHECK(equal(weight.index({index}), weight.index({wide})));
    CHECK(equal(weight.gather(0, index.unsqueeze(1)), weight.gather(0, wide.unsqueeze(1))));
    CHECK(equal(zeros({3}).scatter_add(0, index, ones({3})), tensor({1.0, 0.0, 2.0})));
    CHECK(equal(one_hot(index), one_hot(wide)));
    const Tensor logits = arange(9, kFloat64).reshape({3, 3}).sin();
    CHECK(equal(cross_entropy(logits, index), cross_entropy(logits, wide)));
    CHECK(equal(nll_loss(logits, index), nll_loss(logits, wide)));
    CHECK_THROWS_WITH(embedding(weight, tensor({3}).to(dtype)), ContainsSubstring("index 3"));
  }
}
