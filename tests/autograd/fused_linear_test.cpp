// Tests of the linear layers whose products apply an activation.
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

Activation activation_of(const std::string& name) {
  return name == "relu" ? Activation::relu : name == "gelu" ? Activation::gelu : Activation::gelu_tanh;
}
Tensor apply(Activation f, const Tensor& x) {
  return f == Activation::relu ? relu(x) : gelu(x, f == Activation::gelu_tanh);
}
constexpr Activation kAll[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh};

/// The gradients of f's inputs for the sum of its result times `weight`, and the result.
template <class F>
std::vector<Tensor> with_gradients(std::vector<Tensor> in, const Tensor& weight, const F& f) {
  for (Tensor& t : in) t = t.detach().set_requires_grad();
  const Tensor y = f(in);
  (y * weight).sum().backward();
  std::vector<Tensor> out{y.detach()};
  for (const Tensor& t : in) out.push_back(t.grad());
  return out;
}

}  // namespace

GOLDEN_OP("linear_relu", "fused", [](const OpCase& c) { return linear_relu(c[0], c[1], c[2]); });
GOLDEN_OP("linear_gelu", "fused", [](const OpCase& c) {
  return linear_gelu(c[0], c[1], c[2], c.text("approximate", "none") == "tanh");
});
GOLDEN_OP("feed_forward", "fused", [](const OpCase& c) {
  return feed_forward(c[0], c[1], c[2], c[3], c[4], activation_of(c.text("activation", "relu")));
});
BAD_INPUT("linear_relu", "input of shape [2, 3] does not fit weight [5, 4]: expected (..., 4)", [] {
  return linear_relu(zeros({2, 3}), zeros({5, 4}));
});
BAD_INPUT("linear_relu", "bias has shape [4], expected [5]", [] {
  return linear_relu(zeros({2, 4}), zeros({5, 4}), zeros({4}));
});
BAD_INPUT("linear_gelu", "weight has dtype float64", [] {
  return linear_gelu(zeros({2, 4}), zeros({5, 4}, DType::f64));
});
BAD_INPUT("feed_forward", "weight1 has shape [4]", [] {
  return feed_forward(zeros({2, 4}), zeros({4}), {}, zeros({5, 4}));
});
BAD_INPUT("feed_forward", "weight2 must be (out_features, 5)", [] {
  return feed_forward(zeros({2, 4}), zeros({5, 4}), {}, zeros({4, 3}));
});
BAD_INPUT("feed_forward", "bias2 has shape [4], expected [3]", [] {
  return feed_forward(zeros({2, 4}), zeros({5, 4}), {}, zeros({3, 5}), zeros({4}));
});
BAD_INPUT("feed_forward", "bias2 has dtype float64", [] {
  return feed_forward(zeros({2, 4}), zeros({5, 4}), {}, zeros({3, 5}), zeros({3}, DType::f64));
});

TEST_CASE("linear_relu, linear_gelu: in f32, the bits of the composition, several blocks and one row") {
  manual_seed(5);
  for (const std::int64_t rows : {1, 3, 70})
    for (const Activation f : kAll) {
      CAPTURE(rows, static_cast<int>(f));
      const Tensor weight = randn({rows, 37});
      const std::vector<Tensor> in{randn({rows, 65}), randn({37, 65}), randn({37})};
      const auto fused = with_gradients(in, weight, [&](const std::vector<Tensor>& t) {
        return f == Activation::relu ? linear_relu(t[0], t[1], t[2])
                                     : linear_gelu(t[0], t[1], t[2], f == Activation::gelu_tanh);
      });
      const auto composed = with_gradients(
          in, weight, [&](const std::vector<Tensor>& t) { return apply(f, linear(t[0], t[1], t[2])); });
      for (std::size_t i = 0; i < fused.size(); ++i) CHECK(equal(fused[i], composed[i]));
    }
}

TEST_CASE("feed_forward: in f32, the bits of the composition; in bf16, its digits") {
  manual_seed(6);
  for (const Activation f : kAll)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(static_cast<int>(f), dtype_name(dtype));
      const Tensor weight = randn({2, 19, 11}).to(dtype);
      const std::vector<Tensor> in{randn({2, 19, 13}).to(dtype), (randn({40, 13}) * 0.3).to(dtype),
                                   randn({40}).to(dtype), (randn({11, 40}) * 0.2).to(dtype),
                                   randn({11}).to(dtype)};
      const auto fused = with_gradients(in, weight, [&](const std::vector<Tensor>& t) {
        return feed_forward(t[0], t[1], t[2], t[3], t[4], f);
      });
      const auto composed = with_gradients(in, weight, [&](const std::vector<Tensor>& t) {
        return linear(apply(f, linear(t[0], t[1], t[2])), t[3], t[4]);
      });
      for (std::size_t i = 0; i < fused.size(); ++i) {
        CAPTURE(i);
        if (dtype == DType::f32) CHECK(equal(fused[i], composed[i]));
        else CHECK(allclose(fused[i].to(DType::f32), composed[i].to(DType::f32), 0.04, 0.06));
      }
    }
}

TEST_CASE("feed_forward: frozen operands get no gradient, and the others get theirs") {
  manual_seed(7);
  const Tensor weight = randn({3, 5}, DType::f64);
  const Tensor values[] = {randn({3, 4}, DType::f64), randn({6, 4}, DType::f64), randn({6}, DType::f64),
                           randn({5, 6}, DType::f64), randn({5}, DType::f64)};
  for (const Activation f : kAll)
    for (int trained = 1; trained < 32; ++trained) {
      CAPTURE(static_cast<int>(f), trained);
      std::vector<Tensor> a, b;
      for (int i = 0; i < 5; ++i)
        for (auto* list : {&a, &b}) list->push_back(values[i].detach().set_requires_grad(trained >> i & 1));
      (feed_forward(a[0], a[1], a[2], a[3], a[4], f) * weight).sum().backward();
      (linear(apply(f, linear(b[0], b[1], b[2])), b[3], b[4]) * weight).sum().backward();
      for (std::size_t i = 0; i < 5; ++i) {
        REQUIRE(a[i].grad().defined() == b[i].grad().defined());
        if (a[i].grad().defined()) CHECK(allclose(a[i].grad(), b[i].grad(), 1e-13, 1e-13));
      }
    }
}
