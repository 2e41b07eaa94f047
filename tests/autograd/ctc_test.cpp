#include "tapestry/autograd/ops/ctc.h"

#include <cmath>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

Tensor integers(const std::vector<std::int64_t>& values) {
  return tensor(values, Shape(static_cast<std::int64_t>(values.size())));
}
CtcParams params(const OpCase& c) {
  const std::string name = c.text("reduction", "mean");
  return {.blank = c.integer("blank", 0),
          .reduction = name == "none"  ? Reduction::none
                       : name == "sum" ? Reduction::sum
                                       : Reduction::mean,
          .zero_infinity = c.flag("zero_infinity", false)};
}

}  // namespace

// The log_softmax makes PyTorch's gradient the true one, so that finite differences can check it.
GOLDEN_OP("ctc_loss", "ctc", [](const OpCase& c) {
  return ctc_loss(log_softmax(c[0], -1), c[1], integers(c.integers("input_lengths")),
                  integers(c.integers("target_lengths")), params(c));
});

NOT_APPLICABLE("ctc_loss", gradgradcheck,
               "the gradient is computed by a recursion of its own, as in PyTorch");
BAD_INPUT("ctc_loss", "input length 4 of sample 1 is outside [0, 3]", [] {
  ctc_loss(zeros({3, 2, 4}), ones({2, 1}, DType::i64), integers({3, 4}), integers({1, 1}));
});
BAD_INPUT("ctc_loss", "target length 2 of sample 0 is outside [0, 1]", [] {
  ctc_loss(zeros({3, 2, 4}), ones({2, 1}, DType::i64), integers({3, 3}), integers({2, 1}));
});
BAD_INPUT("ctc_loss", "the target lengths add up to 2, but there are 3 labels", [] {
  ctc_loss(zeros({3, 2, 4}), ones({3}, DType::i64), integers({3, 3}), integers({1, 1}));
});
BAD_INPUT("ctc_loss", "target 4 at position 1 is outside [0, 4)", [] {
  ctc_loss(zeros({3, 2, 4}), integers({1, 4}), integers({3, 3}), integers({1, 1}));
});
BAD_INPUT("ctc_loss", "blank 4 is outside [0, 4)", [] {
  ctc_loss(zeros({3, 1, 4}), integers({1}), integers({3}), integers({1}), {.blank = 4});
});
BAD_INPUT("ctc_loss", "got 1 input lengths and 2 target lengths for a batch of 2", [] {
  ctc_loss(zeros({3, 2, 4}), integers({1, 1}), integers({3}), integers({1, 1}));
});
BAD_INPUT("ctc_loss", "pass (T, N, C) or (T, C)",
          [] { ctc_loss(zeros({3}), integers({1}), integers({3}), integers({1})); });
BAD_INPUT("ctc_loss", "targets is float32", [] {
  ctc_loss(zeros({3, 1, 4}), ones({1}), integers({3}), integers({1}));
});
BAD_INPUT("ctc_loss", "int64", [] {
  ctc_loss(zeros({3, 1, 4}, DType::i64), integers({1}), integers({3}), integers({1}));
});

TEST_CASE("ctc_loss is the sum over all paths") {
  // Three steps and the labels (1, 1): only the path 1, blank, 1 gives them. The labels (1): 1-- -1- --1 11-
  // -11 111.
  const Tensor p = tensor({{0.2, 0.5, 0.3}, {0.6, 0.3, 0.1}, {0.1, 0.7, 0.2}}, DType::f64).log();
  CHECK(ctc_loss(p, integers({1, 1}), scalar_tensor(std::int64_t{3}), scalar_tensor(std::int64_t{2}),
                 {.reduction = Reduction::sum})
            .item() == Approx(-std::log(0.5 * 0.6 * 0.7)));
  const double paths = 0.5 * 0.6 * 0.1 + 0.2 * 0.3 * 0.1 + 0.2 * 0.6 * 0.7 + 0.5 * 0.3 * 0.1 +
                       0.2 * 0.3 * 0.7 + 0.5 * 0.3 * 0.7;
  CHECK(ctc_loss(p, integers({1}), integers({3}), integers({1})).item() == Approx(-std::log(paths)));
}

TEST_CASE("the gradient of ctc_loss to log-probabilities is PyTorch's") {
  // The labels (1, 1) have one path, 1 - blank - 1, so q is 1 for its classes: dx = p - q.
  const Tensor p = tensor({{0.2, 0.5, 0.3}, {0.6, 0.3, 0.1}, {0.1, 0.7, 0.2}}, DType::f64);
  const Tensor x = p.log().set_requires_grad();
  ctc_loss(x, integers({1, 1}), integers({3}), integers({2}), {.reduction = Reduction::sum}).backward();
  const Tensor q = tensor({{0.0, 1.0, 0.0}, {1.0, 0.0, 0.0}, {0.0, 1.0, 0.0}}, DType::f64);
  CHECK(allclose(x.grad(), p - q, 1e-12, 1e-12));
}

TEST_CASE("ctc_loss does not depend on the number of threads") {
  const Tensor x = log_softmax(randn({50, 16, 20}), 2).set_requires_grad(),
               targets = randint(1, 20, {16, 12});
  const Tensor steps = full({16}, 50, DType::i64), counts = full({16}, 12, DType::i64);
  const int before = get_num_threads();
  std::vector<Tensor> losses, gradients;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    x.zero_grad();
    losses.push_back(ctc_loss(x, targets, steps, counts));
    losses.back().backward();
    gradients.push_back(x.grad().clone());
  }
  set_num_threads(before);
  CHECK(equal(losses[0].detach(), losses[1].detach()));
  CHECK(equal(gradients[0], gradients[1]));
}

TEST_CASE(
    "ctc_loss: an infinite loss has PyTorch's gradient, which is NaN at the steps of that sample alone") {
  // PyTorch 2.15.0 has NaN at the same places: the second sample has `steps` steps, too few for its 2 equal
  // labels.
  const Tensor labels = tensor({{1, 2, 3}, {2, 2, 1}, {3, 0, 0}});
  for (const std::int64_t steps : {0, 1, 2})
    for (const bool zero_infinity : {false, true}) {
      CAPTURE(steps, zero_infinity);
      const Tensor x = (arange(72).to(kFloat64) * 0.7).sin().reshape({6, 3, 4}).requires_grad_();
      const Tensor loss = ctc_loss(log_softmax(x, -1), labels, integers({6, steps, 4}), integers({3, 2, 1}),
                                   {.reduction = Reduction::sum, .zero_infinity = zero_infinity});
      CHECK(std::isinf(loss.item()) == !zero_infinity);
      loss.backward();
      for (std::int64_t t = 0; t < 6; ++t)
        for (std::int64_t n = 0; n < 3; ++n) {
          const Tensor row = x.grad()[t][n];
          const bool bad = !zero_infinity && n == 1 && t < steps;
          CHECK(row.isnan().all().item<bool>() == bad);
          if (!bad) CHECK(row.isfinite().all().item<bool>());
          if (n == 1 && !bad) CHECK(row.eq(0).all().item<bool>());
        }
    }
}

TEST_CASE("ctc_loss takes targets and lengths of every integer dtype") {
  manual_seed(3);
  const Tensor x = log_softmax(randn({4, 2, 5}), 2), targets = integers({1, 2, 3}), in = integers({4, 3}),
               out = integers({2, 1});
  const Tensor loss = ctc_loss(x, targets, in, out);
  for (const DType dtype : {DType::i32, DType::u8, DType::i16, DType::i8, DType::u16})
    CHECK(equal(ctc_loss(x, targets.to(dtype), in.to(dtype), out.to(dtype)), loss));
}
