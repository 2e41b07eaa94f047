#include "tapestry/autograd/ops/rope.h"

#include <cmath>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
// The tables have the dtype of sums, whatever the input's is.
Tensor table(const Tensor& t, const Tensor& x) {
  return t.to(x.dtype() == DType::f64 ? DType::f64 : DType::f32);
}
struct Tables {
  Tensor cos, sin;
};
Tables angles(std::int64_t length, std::int64_t pairs, DType dtype) {
  const Tensor positions = arange(length, TensorOptions(DType::f64)).unsqueeze(1),
               frequencies =
                   pow(full({}, 0.1, TensorOptions(DType::f64)), arange(pairs, TensorOptions(DType::f64)));
  const Tensor angle = positions * frequencies;
  return {cos(angle).to(dtype), sin(angle).to(dtype)};
}
}  // namespace

GOLDEN_OP("rotary_embedding", "rope", [](const OpCase& c) {
  return rotary_embedding(c[0], table(c[1], c[0]), table(c[2], c[0]), c.flag("interleaved"));
});
BAD_INPUT("rotary_embedding", "expected (..., L, E)", [] {
  rotary_embedding(zeros({4}), zeros({1, 2}), zeros({1, 2}));
});
BAD_INPUT("rotary_embedding", "have different shapes", [] {
  rotary_embedding(zeros({3, 4}), zeros({3, 2}), zeros({3, 1}));
});
BAD_INPUT("rotary_embedding", "cos and sin have shape [2, 2]", [] {
  rotary_embedding(zeros({3, 4}), zeros({2, 2}), zeros({2, 2}));
});
BAD_INPUT("rotary_embedding", "expected (3, pairs), or (N, 3, pairs)", [] {
  rotary_embedding(zeros({2, 3, 4}), zeros({4, 3, 2}), zeros({4, 3, 2}));
});
BAD_INPUT("rotary_embedding", "3 pairs need 6 features", [] {
  rotary_embedding(zeros({3, 4}), zeros({3, 3}), zeros({3, 3}));
});
BAD_INPUT("rotary_embedding", "they must have float32", [] {
  rotary_embedding(zeros({3, 4}, DType::bf16), zeros({3, 2}, DType::bf16), zeros({3, 2}, DType::bf16));
});
BAD_INPUT("rotary_embedding", "get no gradient", [] {
  rotary_embedding(zeros({3, 4}), zeros({3, 2}).set_requires_grad(), zeros({3, 2}));
});
BAD_INPUT("rotary_embedding", "does not take int64", [] {
  rotary_embedding(zeros({3, 4}, kInt64), zeros({3, 2}), zeros({3, 2}));
});

TEST_CASE("rotary_embedding: products of queries and keys depend on the distance of positions alone") {
  manual_seed(1);
  const auto [cos, sin] = angles(40, 8, DType::f64);
  const Tensor q = randn({16}, DType::f64).expand({40, 16}), k = randn({16}, DType::f64).expand({40, 16});
  for (const bool interleaved : {false, true}) {
    const Tensor scores = matmul(rotary_embedding(q, cos, sin, interleaved),
                                 rotary_embedding(k, cos, sin, interleaved).transpose(0, 1));
    CHECK(allclose(scores.slice(0, 7).slice(1, 7), scores.slice(0, 0, 33).slice(1, 0, 33), 1e-12, 1e-12));
    CHECK_FALSE(allclose(scores.slice(0, 7), scores.slice(0, 0, 33), 1e-3, 1e-3));
  }
}

TEST_CASE("rotary_embedding: the layouts are one rotation of features in another order") {
  manual_seed(2);
  const auto [cos, sin] = angles(9, 6, DType::f64);
  const Tensor x = randn({2, 3, 9, 12}, DType::f64);
  const auto join = [](const Tensor& t) {  // halves to interleaved
    return t.unflatten(-1, {2, 6}).transpose(-2, -1).flatten(-2);
  };
  CHECK(equal(rotary_embedding(join(x), cos, sin, true), join(rotary_embedding(x, cos, sin))));
  CHECK_FALSE(allclose(rotary_embedding(x, cos, sin, true), rotary_embedding(x, cos, sin)));
}

TEST_CASE("rotary_embedding: split heads give a dense result, and a gradient in the projection's layout") {
  manual_seed(3);
  const auto [cos, sin] = angles(7, 4, DType::f32);
  const Tensor x = randn({2, 7, 3, 8}).set_requires_grad();
  const Tensor heads = x.transpose(1, 2);
  Tensor of_heads;
  heads.register_hook([&](const Tensor& g) { return of_heads = g; });
  const Tensor y = rotary_embedding(heads, cos, sin);
  CHECK(y.is_contiguous());
  CHECK(equal(y, rotary_embedding(heads.detach().contiguous(), cos, sin)));
  y.square().sum().backward();
  CHECK(of_heads.transpose(1, 2).is_contiguous());
  // A rotation keeps lengths, so the gradient of the sum of squares is 2 x.
  CHECK(allclose(x.grad(), 2 * x, 1e-5, 1e-5));
}

TEST_CASE("rotary_embedding: the same bits for any number of threads") {
  const int before = get_num_threads();
  manual_seed(4);
  const auto [cos, sin] = angles(70, 16, DType::f32);
  const Tensor x = randn({5, 9, 70, 33});
  for (const bool interleaved : {false, true}) {
    set_num_threads(1);
    const Tensor one = rotary_embedding(x, cos, sin, interleaved);
    set_num_threads(4);
    CHECK(equal(rotary_embedding(x, cos, sin, interleaved), one));
  }
  set_num_threads(before);
}
