#include "tapestry/autograd/ops/loss.h"

#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/threads.h"
#include "tapestry/nn/losses.h"
#include "tests/core/child.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

Reduction reduction(const OpCase& c) {
  const std::string name = c.text("reduction", "mean");
  return name == "none" ? Reduction::none : name == "sum" ? Reduction::sum : Reduction::mean;
}
CrossEntropyParams params(const OpCase& c) {
  return {.weight = c.has("weight") ? tensor(c.reals("weight")) : Tensor(),
          .ignore_index = c.integer("ignore_index", -100),
          .reduction = reduction(c),
          .label_smoothing = c.real("label_smoothing", 0.0)};
}
Tensor classes(std::initializer_list<int> values) { return tensor(values, DType::i64); }

}  // namespace

GOLDEN_OP("cross_entropy", "loss", [](const OpCase& c) { return cross_entropy(c[0], c[1], params(c)); });
GOLDEN_OP("cross_entropy/probabilities", "loss",
          [](const OpCase& c) { return cross_entropy(c[0], c[1], params(c)); });
GOLDEN_OP("nll_loss", "loss", [](const OpCase& c) { return nll_loss(c[0], c[1], params(c)); });
namespace {
nn::functional::SmoothL1LossParams smooth_params(const OpCase& c) {
  return {.reduction = reduction(c), .beta = c.real("beta", 1)};
}
}  // namespace
GOLDEN_OP("smooth_l1_loss", "loss",
          [](const OpCase& c) { return nn::functional::smooth_l1_loss(c[0], c[1], smooth_params(c)); });
GOLDEN_OP("huber_loss", "loss", [](const OpCase& c) {
  return nn::functional::huber_loss(c[0], c[1], {.reduction = reduction(c), .delta = c.real("delta", 1)});
});
BAD_INPUT("smooth_l1_loss", "input has shape [2], target [3]",
          [] { nn::functional::smooth_l1_loss(zeros({2}), zeros({3})); });
BAD_INPUT("huber_loss", "delta must be positive",
          [] { nn::functional::huber_loss(zeros({2}), zeros({2}), {.delta = -1}); });
GOLDEN_OP("mse_loss", "loss", [](const OpCase& c) { return mse_loss(c[0], c[1], reduction(c)); });

GOLDEN_OP("binary_cross_entropy", "loss",
          [](const OpCase& c) { return binary_cross_entropy(c[0], c[1], {.reduction = Reduction::none}); });
GOLDEN_OP("binary_cross_entropy_with_logits", "loss", [](const OpCase& c) {
  return binary_cross_entropy_with_logits(c[0], c[1], {.reduction = Reduction::none});
});

BAD_INPUT("binary_cross_entropy", "input has shape [2, 3], target [3]", [] {
  binary_cross_entropy(zeros({2, 3}), zeros({3}));
});
BAD_INPUT("binary_cross_entropy", "int64", [] { binary_cross_entropy(arange(3), arange(3)); });
BAD_INPUT("binary_cross_entropy_with_logits", "input has shape [2], target [1]",
          [] { binary_cross_entropy_with_logits(zeros({2}), zeros({1})); });
BAD_INPUT("binary_cross_entropy_with_logits", "undefined",
          [] { binary_cross_entropy_with_logits(zeros({2}), Tensor()); });
BAD_INPUT("cross_entropy", "target 3 at position 1 is outside [0, 3)", [] {
  cross_entropy(zeros({3, 3}), classes({0, 3, -1}));
});
BAD_INPUT("cross_entropy", "target -1 at position 0", [] { cross_entropy(zeros({1, 3}), classes({-1})); });
BAD_INPUT("cross_entropy", "target has shape [3], input [2, 3]; targets for it have shape [2]", [] {
  cross_entropy(zeros({2, 3}), classes({0, 1, 2}));
});
BAD_INPUT("cross_entropy", "target probabilities have shape [3, 2]", [] {
  cross_entropy(zeros({2, 3}), zeros({3, 2}));
});
BAD_INPUT("cross_entropy", "pass classes as integers (to(DType::i64)), or a probability for each class", [] {
  cross_entropy(zeros({2, 3}), zeros({2}));
});
BAD_INPUT("cross_entropy", "target is float64, the input float32; pass classes as integers", [] {
  cross_entropy(zeros({2, 3}), zeros({2, 3}, DType::f64));
});
BAD_INPUT("cross_entropy", "target is bool", [] {
  cross_entropy(zeros({2, 3}), zeros({2}, DType::boolean));
});
BAD_INPUT("cross_entropy", "no classes", [] { cross_entropy(zeros({}), classes({0})); });
BAD_INPUT("cross_entropy", "label_smoothing 1.5", [] {
  cross_entropy(zeros({1, 3}), classes({0}), {.label_smoothing = 1.5});
});
BAD_INPUT("cross_entropy", "weight has shape [2]", [] {
  cross_entropy(zeros({1, 3}), classes({0}), {.weight = ones({2})});
});
BAD_INPUT("cross_entropy", "weights of classes get no gradient", [] {
  cross_entropy(zeros({1, 3}), classes({0}), {.weight = ones({3}, TensorOptions().with_grad())});
});
BAD_INPUT("cross_entropy", "weight is int64", [] {
  cross_entropy(zeros({1, 3}), classes({0}), {.weight = ones({3}, DType::i64)});
});
BAD_INPUT("cross_entropy", "ignore_index 1 does not go with class probabilities", [] {
  cross_entropy(zeros({1, 3}), zeros({1, 3}), {.ignore_index = 1});
});
BAD_INPUT("cross_entropy", "int64", [] { cross_entropy(zeros({1, 3}, DType::i64), classes({0})); });
BAD_INPUT("cross_entropy", "target is an undefined tensor", [] { cross_entropy(zeros({1, 3}), Tensor()); });
BAD_INPUT("nll_loss", "target 7 at position 2", [] { nll_loss(zeros({3, 3}), classes({0, 1, 7})); });
BAD_INPUT("nll_loss", "label_smoothing", [] {
  nll_loss(zeros({1, 3}), classes({0}), {.label_smoothing = 0.1});
});
BAD_INPUT("nll_loss", "pass classes as integers", [] { nll_loss(zeros({1, 3}), zeros({1, 3})); });
BAD_INPUT("nll_loss", "target has shape [2]", [] { nll_loss(zeros({1, 3}), classes({0, 1})); });
BAD_INPUT("mse_loss", "input has shape [2, 3], target [3]", [] { mse_loss(zeros({2, 3}), zeros({3})); });
BAD_INPUT("mse_loss", "int64", [] { mse_loss(arange(3), arange(3)); });
BAD_INPUT("mse_loss", "undefined", [] { mse_loss(zeros({2}), Tensor()); });

TEST_CASE("a bad target is an IndexError that names the first one, whatever the threads") {
  const Tensor target = zeros({200000}, DType::i64);
  target[150000].fill_(99);
  target[70000].fill_(12);
  const int before = get_num_threads();
  set_num_threads(3);
  CHECK_THROWS_AS(cross_entropy(zeros({200000, 3}), target), IndexError);
  CHECK_THROWS_WITH(cross_entropy(zeros({200000, 3}), target),
                    ContainsSubstring("target 12 at position 70000"));
  CHECK_THROWS_WITH(nll_loss(zeros({200000, 3}), target), ContainsSubstring("target 12 at position 70000"));
  set_num_threads(before);
}

TEST_CASE("the mean of nothing is NaN and its gradient zero") {
  const Tensor x = zeros({2, 3}).set_requires_grad();
  const Tensor loss = cross_entropy(x, classes({-100, -100}));
  CHECK(std::isnan(loss.item()));
  loss.backward();
  CHECK(equal(x.grad(), zeros({2, 3})));
}

TEST_CASE("cross_entropy keeps the small differences of large logits") {
  // cross_entropy must store the maximum m = 1e4 and log(sum(exp(x - m))) = 0.41 as two numbers. Their sum,
  // rounded to one f32 number, would be wrong by up to 5e-4.
  const Tensor x = tensor({{10000, 9999, 9998}}, DType::f32).set_requires_grad();
  const Tensor loss = cross_entropy(x, classes({1}));
  CHECK(loss.item() == Approx(1.407605964).epsilon(1e-6));
  loss.backward();
  CHECK(x.grad()[0][0].item() == Approx(0.6652409558).epsilon(1e-6));
  CHECK(x.grad()[0][2].item() == Approx(0.0900305732).epsilon(1e-6));
}

TEST_CASE("cross_entropy is nll_loss of log_softmax, for class weights, smoothing and layouts at once") {
  const Tensor target = randint(0, 7, {5, 6, 4});
  const Tensor weight = rand({7}, DType::f64) + 0.1;
  const Tensor logits = randn({5, 6, 4, 7}, DType::f64).permute({0, 3, 1, 2});
  for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const CrossEntropyParams p{.weight = weight, .ignore_index = 3, .reduction = reduction};
    const Tensor a = logits.detach().set_requires_grad(), b = logits.detach().set_requires_grad();
    const Tensor fused = cross_entropy(a, target, p), composed = nll_loss(log_softmax(b, 1), target, p);
    CHECK(allclose(fused, composed, 1e-12, 1e-12));
    fused.sum().backward();
    composed.sum().backward();
    CHECK(allclose(a.grad(), b.grad(), 1e-12, 1e-14));
  }
}

TEST_CASE("bf16 losses are computed in f32") {
  const Tensor x = randn({64, 10}).to(DType::bf16), target = randint(0, 10, {64});
  const Tensor exact = cross_entropy(x.to(DType::f32), target);
  const Tensor loss = cross_entropy(x, target);
  CHECK(loss.dtype() == DType::bf16);
  CHECK(loss.item() == exact.to(DType::bf16).item());
  CHECK(mse_loss(x, x * 2).item() ==
        mse_loss(x.to(DType::f32), (x * 2).to(DType::f32)).to(DType::bf16).item());
}

TEST_CASE("losses do not depend on the number of threads") {
  const Tensor x = randn({30000, 10}), target = randint(0, 10, {30000}), other = randn({30000, 10});
  const int before = get_num_threads();
  std::vector<Tensor> results;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    results.push_back(stack({cross_entropy(x, target), nll_loss(x, target), mse_loss(x, other)}));
  }
  set_num_threads(before);
  CHECK(equal(results[0], results[1]));
}

TEST_CASE("child: softmax before cross_entropy", "[.]") {
  const Tensor x = randn({4, 10}).set_requires_grad(), target = randint(0, 10, {4});
  cross_entropy(x, target);
  cross_entropy(x.detach().softmax(1), target);  // no gradient is needed here, so there must be no warning
  // cross_entropy applies log_softmax again. This does not change log-probabilities, so there must be no
  // warning.
  cross_entropy(log_softmax(x, 1), target);
  cross_entropy(x.softmax(1) * 2, target);
  std::puts("so far none");
  std::fflush(stdout);
  for (int i = 0; i < 3; ++i) cross_entropy(x.softmax(1), target);
}

TEST_CASE("cross_entropy warns once about an input that comes from softmax") {
  const std::string text = run_child("child: softmax before cross_entropy").output;
  INFO(text);
  const std::size_t none = text.find("so far none"), warning = text.find("warning");
  REQUIRE(warning != std::string::npos);
  CHECK(none < warning);
  CHECK(text.find("warning", warning + 1) == std::string::npos);
  CHECK_THAT(text, ContainsSubstring("with 10 classes no row's loss can be below 1.4612"));
  // The logits select class 0 with certainty.
  const Tensor sure = (tensor({1.0}) - arange(10).to(DType::f64)).reshape({1, 10}) * 1000;
  CHECK(cross_entropy(sure.softmax(1), classes({0})).item() == Approx(1.4612).margin(5e-5));
}
