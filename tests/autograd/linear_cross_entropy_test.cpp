#include "tapestry/autograd/ops/linear_cross_entropy.h"

#include <cmath>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

LinearCrossEntropyParams params(const OpCase& c) {
  return {.ignore_index = c.integer("ignore_index", -100),
          .reduction = c.text("reduction", "mean") == "sum" ? Reduction::sum : Reduction::mean,
          .label_smoothing = c.real("label_smoothing", 0.0),
          .chunk_rows = c.integer("chunk", 0)};
}
Tensor classes(std::initializer_list<int> values) { return tensor(values, DType::i64); }

}  // namespace

GOLDEN_OP("linear_cross_entropy", "linear_cross_entropy",
          [](const OpCase& c) { return linear_cross_entropy(c[0], c[1], c[2], params(c)); });
GOLDEN_OP("linear_cross_entropy/bias", "linear_cross_entropy", [](const OpCase& c) {
  LinearCrossEntropyParams p = params(c);
  p.bias = c[3];
  return linear_cross_entropy(c[0], c[1], c[2], p);
});

BAD_INPUT("linear_cross_entropy", "target 5 at position 1 is outside [0, 5)", [] {
  return linear_cross_entropy(zeros({3, 2}), zeros({5, 2}), classes({0, 5, -1}), {.chunk_rows = 1});
});
BAD_INPUT("linear_cross_entropy", "input has shape [3, 2], weight [5, 4]", [] {
  return linear_cross_entropy(zeros({3, 2}), zeros({5, 4}), classes({0, 1, 2}));
});
BAD_INPUT("linear_cross_entropy", "target has shape [2], input [3, 2]; targets for it have shape [3]", [] {
  return linear_cross_entropy(zeros({3, 2}), zeros({5, 2}), classes({0, 1}));
});
BAD_INPUT("linear_cross_entropy", "bias has shape [4], expected [5]", [] {
  return linear_cross_entropy(zeros({3, 2}), zeros({5, 2}), classes({0, 1, 2}), {.bias = zeros({4})});
});
BAD_INPUT("linear_cross_entropy", "weight has dtype float64", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}, DType::f64), classes({0}));
});
BAD_INPUT("linear_cross_entropy", "target is float32", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}), zeros({1}));
});
BAD_INPUT("linear_cross_entropy", "the reduction is none", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}), classes({0}), {.reduction = Reduction::none});
});
BAD_INPUT("linear_cross_entropy", "label_smoothing 2", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}), classes({0}), {.label_smoothing = 2});
});
BAD_INPUT("linear_cross_entropy", "chunk_rows -1", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}), classes({0}), {.chunk_rows = -1});
});
BAD_INPUT("linear_cross_entropy", "int64", [] {
  return linear_cross_entropy(zeros({1, 2}, DType::i64), zeros({5, 2}, DType::i64), classes({0}));
});
BAD_INPUT("linear_cross_entropy", "undefined", [] {
  return linear_cross_entropy(zeros({1, 2}), zeros({5, 2}), Tensor());
});

TEST_CASE("linear_cross_entropy never holds all logits") {
  const std::int64_t rows = 600, words = 20000;
  const Tensor x = randn({rows, 8}).set_requires_grad(), weight = randn({words, 8}).set_requires_grad();
  const Tensor target = randint(0, words, {rows});
  reset_peak_memory(kCPU);
  const auto before = memory_stats(kCPU).allocated;
  linear_cross_entropy(x, weight, target, {.chunk_rows = 20}).backward();
  const auto peak = memory_stats(kCPU).peak_allocated - before;
  // The logits of a chunk and their gradient, and the gradient of the weight twice.
  CHECK(peak < 2 * 20 * words * 4 + 2 * words * 8 * 4 + (1 << 20));
  CHECK(peak < rows * words * 4 / 4);
}

TEST_CASE("linear_cross_entropy sums the gradients of 16-bit weights in f32") {
  manual_seed(4);
  const Tensor x = randn({512, 4}).to(DType::bf16), weight = randn({3, 4}).to(DType::bf16);
  const Tensor target = randint(0, 3, {512});
  const auto gradient = [&](DType dtype, std::int64_t chunk) {
    const Tensor w = weight.to(dtype).set_requires_grad();
    linear_cross_entropy(x.to(dtype), w, target, {.reduction = Reduction::sum, .chunk_rows = chunk})
        .backward();
    return w.grad().to(DType::f64);
  };
  const Tensor exact = gradient(DType::f64, 0);
  // Each term of at most |x| has the rounding of a logit's gradient to bf16. The roundings are independent:
  // their sum grows as the square root of the number of terms. Sums in bf16 would lose small terms.
  const double bound = std::sqrt(512.0) * 4 * 0x1p-9 + exact.abs().max().item<double>() * 0x1p-8;
  CHECK((gradient(DType::bf16, 1) - exact).abs().max().item<double>() < bound);
}

TEST_CASE("linear_cross_entropy needs no gradients of frozen operands") {
  const Tensor x = randn({6, 4}).set_requires_grad(), weight = randn({5, 4}), target = randint(0, 5, {6});
  linear_cross_entropy(x, weight, target).backward();
  const Tensor y = x.detach().set_requires_grad();
  cross_entropy(linear(y, weight), target).backward();
  CHECK(allclose(x.grad(), y.grad(), 1e-5, 1e-6));
  CHECK_FALSE(linear_cross_entropy(x.detach(), weight, target).requires_grad());
  // The incoming gradient is a factor.
  const Tensor z = x.detach().set_requires_grad();
  (linear_cross_entropy(z, weight, target) * 3).backward();
  CHECK(allclose(z.grad(), y.grad() * 3, 1e-5, 1e-6));
}
