// Functions of nn::functional that are composed of operations, and their layers.
#include <cmath>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;
namespace F = tapestry::nn::functional;

TEST_CASE("bilinear has PyTorch's values and gradients") {
  const Tensor a = (arange(12, kFloat64).reshape({2, 2, 3}) - 5) / 4;
  const Tensor b = (arange(8, kFloat64).reshape({2, 2, 2}) - 3) / 2;
  const Tensor w = (arange(24, kFloat64).reshape({4, 3, 2}) - 11) / 8, bias = arange(4, kFloat64);
  const Tensor expected =
      tensor({-8.375, -1.75, 4.875, 11.5, -0.484375, 0.796875, 2.078125, 3.359375, -2.15625, 0.53125, 3.21875,
              5.90625, -13.390625, -2.546875, 8.296875, 19.140625},
             kFloat64);
  CHECK(allclose(F::bilinear(a, b, w, bias), expected.reshape({2, 2, 4})));
  CHECK(allclose(F::bilinear(a[0][0], b[0][0], w, bias), expected.slice(0, 0, 4)));
  CHECK(allclose(F::bilinear(a.transpose(0, 1), b.transpose(0, 1), w),
                 (expected.reshape({2, 2, 4}) - bias).transpose(0, 1)));
  CHECK(F::bilinear(zeros({0, 3}), zeros({0, 2}), zeros({4, 3, 2})).sizes() == Shape{0, 4});
  std::vector<Tensor> inputs;
  for (const Tensor& t : {a, b, w, bias}) inputs.push_back(t.clone().requires_grad_());
  CHECK(autograd::gradcheck(
      [](const std::vector<Tensor>& in) { return F::bilinear(in[0], in[1], in[2], in[3]); }, inputs));

  const nn::Bilinear layer({.in1_features = 3, .in2_features = 2, .out_features = 400});
  const Tensor x = ones({5, 3}), y = ones({5, 2});
  CHECK(equal(layer(x, y), F::bilinear(x, y, layer.weight, layer.bias)));
  CHECK((layer.weight.max)().item() <= 1 / std::sqrt(3.0));
  CHECK((layer.weight.max)().item() > 0.57);
  CHECK((layer.bias.min)().item() < -0.5);
  CHECK(layer.str() == "Bilinear(in1_features=3, in2_features=2, out_features=400, bias=true)");
  const nn::Bilinear plain({3, 2, 4, false});
  CHECK(plain.parameters().size() == 1);
  CHECK(plain(x, y).sizes() == Shape{5, 4});
}

TEST_CASE("bilinear refuses shapes that do not fit") {
  const Tensor w = zeros({4, 3, 2});
  CHECK_THROWS_WITH(F::bilinear(zeros({5, 3}), zeros({5, 3}), w), ContainsSubstring("got [5, 3] and [5, 3]"));
  CHECK_THROWS_WITH(F::bilinear(zeros({5, 3}), zeros({4, 2}), w), ContainsSubstring("must be equal"));
  CHECK_THROWS_WITH(F::bilinear(zeros({5, 3}), zeros({2}), w), ContainsSubstring("must be equal"));
  CHECK_THROWS_WITH(F::bilinear(zeros({}), zeros({}), w), ContainsSubstring("must be equal"));
  CHECK_THROWS_WITH(F::bilinear(zeros({5, 3}), zeros({5, 2}), zeros({3, 2})),
                    ContainsSubstring("(out, in1, in2)"));
  CHECK_THROWS_WITH(F::bilinear(zeros({5, 3}), zeros({5, 2}), w, zeros({3})),
                    ContainsSubstring("bias of shape [4]"));
  CHECK_THROWS_WITH(nn::Bilinear({.in1_features = 3}), ContainsSubstring("3, 0 and 0"));
  nn::Bilinear layer({3, 2, 4});
  CHECK_THROWS_WITH(layer(zeros({5, 3}), zeros({5, 3})), ContainsSubstring("(in Bilinear("));
}

TEST_CASE("gumbel_softmax draws the categories of the softmax") {
  manual_seed(3);
  const Tensor logits = tensor({0.0, 1.0, -1.0, 2.0}).expand({20000, 4});
  const Tensor soft = F::gumbel_softmax(logits, 0.5);
  CHECK(allclose(soft.sum(1), ones({20000})));
  // The largest element is a sample of softmax(logits) (Gumbel-max). Five standard deviations are 0.018.
  const Tensor drawn = one_hot(soft.argmax(1), 4).to(kFloat32).mean(0), p = softmax(logits[0], 0);
  CHECK((drawn - p).abs().amax().item() < 0.018);
  CHECK(soft.amax(1).mean().item() < 0.95);  // soft, unlike the next
  const Tensor hard = F::gumbel_softmax(logits, 0.5, true);
  CHECK(equal(hard.detach().amax(1).round(), ones({20000})));
  CHECK(allclose(hard.abs().sum(1), ones({20000})));
  CHECK((hard.mean(0) - p).abs().amax().item() < 0.018);
}

TEST_CASE("gumbel_softmax has the same gradient, soft and hard, along any dimension") {
  const Tensor x = tensor({{0.0, 1.0}, {2.0, -1.0}, {0.5, 0.5}}).requires_grad_(),
               w = arange(6, kFloat32).reshape({3, 2});
  std::vector<Tensor> gradients;
  for (const bool hard : {false, true}) {
    manual_seed(5);
    const Tensor y = F::gumbel_softmax(x, 2, hard, 0);
    CHECK(allclose(y.sum(0), ones({2})));
    (y * w).sum().backward();
    gradients.push_back(x.grad());
    x.zero_grad();
  }
  CHECK(gradients[0].abs().sum().item() > 0.01);
  CHECK(equal(gradients[0], gradients[1]));
  CHECK(F::gumbel_softmax(zeros({2, 3}, kBFloat16)).dtype() == kBFloat16);
  CHECK_THROWS_WITH(F::gumbel_softmax(x, 0), ContainsSubstring("tau is 0"));
  CHECK_THROWS_AS(F::gumbel_softmax(arange(3)), TypeError);
  CHECK_THROWS_AS(F::gumbel_softmax(x, 1, false, 2), IndexError);
}

TEST_CASE("local_response_norm counts missing channels as 0, and refuses what has no channels") {
  const Tensor x = tensor({1.0, 2.0, 3.0}).view({1, 3, 1});
  // Windows of two channels: the one before, and the channel itself.
  CHECK(allclose(F::local_response_norm(x, 2, 2.0, 1.0, 1.0),
                 tensor({1.0 / 2, 2.0 / 6, 3.0 / 14}).view({1, 3, 1})));
  // A huge window needs no memory for the channels that do not exist.
  CHECK(allclose(F::local_response_norm(x, std::int64_t{1} << 60, 1e18, 1.0, 0.0),
                 x / (14.0 * 1e18 / static_cast<double>(std::int64_t{1} << 60))));
  CHECK(F::local_response_norm(zeros({0, 3, 2}), 2).sizes() == Shape{0, 3, 2});
  CHECK_THROWS_WITH(F::local_response_norm(zeros({2, 3}), 2),
                    ContainsSubstring("with at least 3 dimensions"));
  CHECK_THROWS_WITH(F::local_response_norm(x, 0), ContainsSubstring("size is 0"));
  CHECK_THROWS_AS(F::local_response_norm(Tensor(), 2), Error);
}
