// Tests of the cross-entropy whose gradient is written over the logits, and of the convolution with a relu.
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

CrossEntropyParams params(const OpCase& c) {
  const std::string name = c.text("reduction", "mean");
  return {.reduction = name == "none"  ? Reduction::none
                       : name == "sum" ? Reduction::sum
                                       : Reduction::mean,
          .label_smoothing = c.real("label_smoothing", 0.0)};
}

}  // namespace

GOLDEN_OP("cross_entropy_", "fused",
          [](const OpCase& c) { return cross_entropy_((c[0] * 1).contiguous(), c[1], params(c)); });
NOT_APPLICABLE("cross_entropy_", gradgradcheck, "its gradient overwrites the logits");
BAD_INPUT("cross_entropy_", "are not contiguous", [] {
  return cross_entropy_(transpose(zeros({3, 2}), 0, 1), zeros({2}, kInt64));
});
BAD_INPUT("cross_entropy_", "the logits are a leaf of shape [2, 3]", [] {
  return cross_entropy_(zeros({2, 3}).set_requires_grad(), zeros({2}, kInt64));
});
BAD_INPUT("cross_entropy_", "a view of a leaf", [] {
  const Tensor leaf = zeros({6}).set_requires_grad();
  return cross_entropy_(leaf.view({3, 2}).view({2, 3}), zeros({2}, kInt64));
});
BAD_INPUT("cross_entropy_", "target has shape [3], input [2, 3]", [] {
  return cross_entropy_(zeros({2, 3}), zeros({3}, kInt64));
});
BAD_INPUT("cross_entropy_", "target 3", [] {
  return cross_entropy_(zeros({2, 3}), tensor({0, 3}, DType::i64));
});

TEST_CASE("cross_entropy_: the bits of cross_entropy, in the memory of the logits, also through a view") {
  manual_seed(9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = randn({2, 9, 13}).to(dtype), weight = randn({50, 13}).to(dtype),
                 target = randint(0, 50, {18}, kInt64);
    Tensor grads[2], losses[2];
    for (const bool in_place : {false, true}) {
      const Tensor w = weight.detach().set_requires_grad(), logits = linear(x, w),
                   rows = logits.view({18, 50});
      const Tensor loss = in_place ? cross_entropy_(rows, target) : cross_entropy(rows, target);
      const Tensor before = logits.detach().clone();
      CHECK(equal(logits.detach(), before));
      logits.retain_grad();
      (loss * 3).backward();
      CHECK(equal(logits.detach(), before) == !in_place);
      if (in_place) CHECK(equal(logits.grad(), logits.detach()));
      if (in_place) CHECK(logits.grad().raw_data() == logits.raw_data());
      grads[in_place ? 1 : 0] = w.grad();
      losses[in_place ? 1 : 0] = loss.detach();
    }
    CHECK(equal(losses[0], losses[1]));
    CHECK(equal(grads[0], grads[1]));
  }
}

TEST_CASE(
    "cross_entropy_: without a graph nothing is written; with one, what needs the logits later throws") {
  const Tensor w = randn({4, 4}).set_requires_grad(), target = zeros({4}, kInt64);
  {
    const Tensor logits = linear(randn({4, 4}), w).detach(), before = logits.clone();
    cross_entropy_(logits, target);
    CHECK(equal(logits, before));
  }
  SECTION("a second backward") {
    const Tensor loss = cross_entropy_(linear(randn({4, 4}), w), target);
    loss.backward({}, /*retain_graph=*/true);
    CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("in place"));
  }
  SECTION("an operation that saved the logits") {
    const Tensor logits = linear(randn({4, 4}), w), other = (logits * logits).sum();
    cross_entropy_(logits, target).backward({}, /*retain_graph=*/true);
    CHECK_THROWS_WITH(other.backward(), ContainsSubstring("in place"));
  }
}

GOLDEN_OP("conv2d_relu", "fused", [](const OpCase& c) {
  const Conv2dParams params{
      .stride = c.pair("stride", 1),
      .padding = c.flag("same", false) ? ConvPadding<2>("same") : ConvPadding<2>(c.integer("padding", 0)),
      .groups = c.integer("groups", 1)};
  return conv2d_relu(c[0], c[1], c[2], params);
});
BAD_INPUT("conv2d_relu", "input has shape [3]", [] { return conv2d_relu(zeros({3}), zeros({1, 1, 2, 2})); });
BAD_INPUT("conv2d_relu", "bias has shape [2], expected [1]", [] {
  return conv2d_relu(zeros({1, 1, 3, 3}), zeros({1, 1, 2, 2}), zeros({2}));
});

TEST_CASE("conv2d_relu: the values and gradients of the composition, in both layouts") {
  manual_seed(10);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor values[] = {contiguous(randn({2, 8, 9, 7}), format), randn({16, 8, 3, 3}) * 0.1,
                             randn({16})};
    const Tensor weight = randn({2, 16, 9, 7});
    std::vector<Tensor> results[2];
    for (const bool fused : {true, false}) {
      std::vector<Tensor> in;
      for (const Tensor& t : values) in.push_back(t.detach().set_requires_grad());
      const Tensor y = fused ? conv2d_relu(in[0], in[1], in[2], {.padding = 1})
                             : relu(conv2d(in[0], in[1], in[2], {.padding = 1}));
      (y * weight).sum().backward();
      results[fused ? 0 : 1] = {y.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
    }
    for (std::size_t i = 0; i < 4; ++i) CHECK(allclose(results[0][i], results[1][i], 1e-5, 1e-5));
  }
}
