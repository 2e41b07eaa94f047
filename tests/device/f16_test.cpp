// Tests a model in f16 on a device: every operation that it needs has a kernel, forward and backward, and
// loss and gradients are those of the CPU in f64.
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

/// The parameters of a small classifier of tokens: embedding, norms, and products with odd sizes.
std::vector<Tensor> parameters() {
  manual_seed(3);
  return {randn({11, 24}),                                                 // embedding
          randn({37, 24}) * 0.2,                                           // products
          randn({37}),           randn({13, 37}) * 0.2, rand({24}) + 0.5,  // layer norm
          rand({37}) + 0.5,                                                // batch norm
          rand({37}) - 0.5};
}

Tensor loss_of(const std::vector<Tensor>& p, const Tensor& tokens, const Tensor& target) {
  Tensor x = embedding(p[0], tokens);
  x = layer_norm(x, {24}, p[4]);
  x = linear(x, p[1], p[2]);
  const Tensor rows = x.reshape({-1, 37});
  Tensor y = batch_norm(rows, {}, {}, p[5], p[6], true);
  y = gelu(y) + rows * 0.5 - rows / 4;
  y = y.mean(1, true) + y;
  y = where(y > 0, y, y * 0.1);
  return cross_entropy(linear(y, p[3]), target.reshape({-1}));
}

/// The loss and the gradients, in f64 on the CPU.
std::vector<Tensor> results(Device device, DType dtype) {
  std::vector<Tensor> leaves;
  for (const Tensor& p : parameters())
    leaves.push_back(p.to(DType::f16).to(dtype).to(device).set_requires_grad());
  const Tensor tokens = tensor({1, 5, 0, 10, 7, 7, 3, 2, 9, 4}).to(DType::i64).reshape({2, 5});
  const Tensor target = tensor({0, 12, 5, 3, 3, 1, 8, 8, 2, 11}).to(DType::i64).reshape({2, 5});
  const Tensor loss = loss_of(leaves, tokens.to(device), target.to(device));
  loss.backward();
  std::vector<Tensor> all{loss.detach().to("cpu").to(DType::f64)};
  for (const Tensor& leaf : leaves) all.push_back(leaf.grad().to("cpu").to(DType::f64));
  return all;
}

}  // namespace

TEST_CASE("a model in f16 on a device has the loss and the gradients of the CPU in f64") {
  if (no_gpu()) return;
  const auto want = results("cpu", DType::f64), got = results("cuda:0", DType::f16);
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    const double scale = abs(want[i]).max().item<double>();
    CHECK(abs(got[i] - want[i]).max().item<double>() <= 2e-2 * scale + 2e-4);
  }
}

TEST_CASE("products without terms in f16 and f64 on a device are zeros, or the bias") {
  if (no_gpu()) return;
  for (const DType dtype : {DType::f16, DType::f64}) {
    CAPTURE(dtype_name(dtype));
    const Tensor a = zeros({3, 0}, {dtype, "cuda:0"}), b = zeros({0, 5}, {dtype, "cuda:0"});
    CHECK(equal(matmul(a, b).to("cpu"), zeros({3, 5}, dtype)));
    const Tensor bias = arange(5).to(dtype);
    CHECK(equal(linear(a, zeros({5, 0}, {dtype, "cuda:0"}), bias.to("cuda:0")).to("cpu"),
                bias.expand({3, 5}).contiguous()));
    const Tensor batch = zeros({2, 3, 0}, {dtype, "cuda:0"});
    CHECK(equal(matmul(batch, b).to("cpu"), zeros({2, 3, 5}, dtype)));
  }
}
