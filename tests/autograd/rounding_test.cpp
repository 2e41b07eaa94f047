// Tests that operations in 16-bit floats compute in f32 and round the result once. The inputs have full
// mantissas and a mean far from 0, so a partial result that is rounded to 16 bits shows. (The golden inputs
// are exact in bf16, and so are many of their sums.)
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// Numbers of `dtype` in [mean - 0.5, mean + 0.5) with all bits of their mantissas in use.
Tensor numbers(const Shape& sizes, DType dtype, unsigned salt, double mean = 1.3) {
  std::vector<double> v(static_cast<std::size_t>(sizes.numel()));
  std::uint32_t state = 77 + salt;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = mean - 0.5 + state * 0x1p-32;
  }
  return tensor(v, kFloat64).reshape(sizes).to(dtype);
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// Returns the output and the gradients of all inputs, in f64.
std::vector<Tensor> results(const Function& f, const std::vector<Tensor>& inputs, DType dtype,
                            const Tensor& dy) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.to(dtype).detach().clone().set_requires_grad());
  const Tensor y = f(leaves);
  y.backward(dy.to(dtype));
  std::vector<Tensor> out{y.detach().to(kFloat64)};
  for (const Tensor& t : leaves) out.push_back(t.grad().to(kFloat64));
  return out;
}

// Checks that f in a 16-bit dtype gives f's result in f64, rounded once. `slack` is the error of the
// arithmetic in f32, relative to the largest element. `outputs` is the number of results (the output, then
// the gradients) to check.
void check(const char* name, const Function& f, const std::vector<Shape>& shapes, double slack = 0x1p-16,
           std::size_t outputs = 99) {
  for (const DType dtype : {kBFloat16, kFloat16}) {
    std::vector<Tensor> inputs;
    for (const Shape& sizes : shapes)
      inputs.push_back(numbers(sizes, dtype, static_cast<unsigned>(inputs.size())));
    const Tensor dy = numbers(f(inputs).sizes(), dtype, 50);
    const auto got = results(f, inputs, dtype, dy), want = results(f, inputs, kFloat64, dy);
    const int bits = dtype == kBFloat16 ? 8 : 11;  // of the significand
    for (std::size_t r = 0; r < std::min(got.size(), outputs); ++r) {
      INFO(name << " in " << dtype_name(dtype) << ", result " << r);
      const Tensor g = got[r].contiguous(), w = want[r].contiguous();
      const double largest = w.abs().max().item();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < g.numel(); ++i) {
        const double exact = w.data<double>()[i];
        // Half of the distance between two adjacent numbers.
        const double half = exact == 0 ? 0 : std::ldexp(1, std::ilogb(exact) - bits);
        wrong += !(std::abs(g.data<double>()[i] - exact) <= half + slack * largest + 0x1p-25);
      }
      CHECK(wrong == 0);
    }
  }
}

Tensor indices(std::int64_t count, std::int64_t rows) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::int64_t>(i * i + i / 3) % rows;
  return tensor(v);
}

}  // namespace

TEST_CASE("sums in 16-bit floats are rounded once") {
  using V = std::vector<Tensor>;
  check("sum of all", [](const V& v) { return v[0].sum(); }, {{333}});
  check("sum of rows", [](const V& v) { return v[0].sum(1); }, {{7, 333}});
  check("sum of columns", [](const V& v) { return v[0].sum(0); }, {{333, 41}});
  check("mean of rows", [](const V& v) { return v[0].mean(1); }, {{7, 333}});
  check("mean of columns", [](const V& v) { return v[0].mean(0); }, {{333, 41}});
  check("sum of the inner dimensions", [](const V& v) { return v[0].sum({0, 2}); }, {{9, 21, 40}});
  check(
      "norm", [](const V& v) { return norm(v[0], 2.0); }, {{3000}}, 0x1p-16,
      1);  // the gradient uses the rounded output
  check(
      "logsumexp", [](const V& v) { return logsumexp(v[0], 1); }, {{5, 333}}, 0x1p-16, 1);
  check("broadcast add", [](const V& v) { return v[0] + v[1]; }, {{300, 21}, {21}});
  check("broadcast mul", [](const V& v) { return v[0] * v[1]; }, {{300, 21}, {21}});
}

TEST_CASE("products and convolutions in 16-bit floats are rounded once") {
  using V = std::vector<Tensor>;
  check("matmul", [](const V& v) { return matmul(v[0], v[1]); }, {{37, 300}, {300, 29}});
  check("linear", [](const V& v) { return linear(v[0], v[1], v[2]); }, {{333, 40}, {21, 40}, {21}});
  check("linear of one row", [](const V& v) { return linear(v[0], v[1], v[2]); },
        {{1, 300}, {21, 300}, {21}});
  const Conv2dParams padded{.stride = 1, .padding = 1};
  check("conv2d", [=](const V& v) { return conv2d(v[0], v[1], v[2], padded); },
        {{3, 6, 13, 11}, {5, 6, 3, 3}, {5}});
  check("depthwise conv2d", [](const V& v) { return conv2d(v[0], v[1], v[2], {.padding = 1, .groups = 6}); },
        {{3, 6, 13, 11}, {6, 1, 3, 3}, {6}});
  check("conv2d of one channel", [=](const V& v) { return conv2d(v[0], v[1], v[2], padded); },
        {{5, 1, 13, 11}, {5, 1, 3, 3}, {5}});
  check("conv_transpose2d",
        [](const V& v) { return conv_transpose2d(v[0], v[1], v[2], {.stride = 2, .padding = 1}); },
        {{3, 6, 7, 6}, {6, 5, 4, 4}, {5}});
  check("conv3d", [](const V& v) { return conv3d(v[0], v[1], v[2], {.padding = 1}); },
        {{2, 3, 5, 6, 5}, {4, 3, 3, 3, 3}, {4}});
  check("conv_transpose3d", [](const V& v) { return conv_transpose3d(v[0], v[1], v[2]); },
        {{2, 3, 4, 5, 4}, {3, 4, 3, 3, 3}, {4}});
}

TEST_CASE("normalisations, softmax and losses in 16-bit floats are rounded once") {
  using V = std::vector<Tensor>;
  // A normalised value is a difference of nearly equal numbers. Its error in f32 is a multiple of eps times
  // the mean divided by the standard deviation, which is 1.3 / 0.29.
  check(
      "layer_norm", [](const V& v) { return layer_norm(v[0], {77}, v[1], v[2]); }, {{130, 77}, {77}, {77}},
      0x1p-14);
  for (const bool images : {false, true}) {
    const Shape sizes = images ? Shape{9, 13, 7, 5} : Shape{301, 13};
    check(
        "batch_norm", [](const V& v) { return batch_norm(v[0], {}, {}, v[1], v[2], true); },
        {sizes, {13}, {13}}, 0x1p-14);
  }
  check(
      "softmax", [](const V& v) { return softmax(v[0], 1); }, {{7, 333}}, 0x1p-16,
      1);  // the gradient uses the rounded output
  check(
      "log_softmax", [](const V& v) { return log_softmax(v[0], 1); }, {{7, 333}}, 0x1p-16, 1);
  const Tensor targets = indices(301, 33);
  check("cross_entropy", [=](const V& v) { return cross_entropy(v[0], targets); }, {{301, 33}});
  check("mse_loss", [](const V& v) { return mse_loss(v[0], v[1]); }, {{3000}, {3000}});
}

TEST_CASE("gradients that are added at one index in 16-bit floats are rounded once") {
  using V = std::vector<Tensor>;
  const Tensor at = indices(400, 7);
  check("embedding", [=](const V& v) { return embedding(v[0], at); }, {{7, 21}});
  check("index_select of rows", [=](const V& v) { return index_select(v[0], 0, at); }, {{7, 21}});
  check("index_select of columns", [=](const V& v) { return index_select(v[0], 1, at); }, {{21, 7}});
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    check("avg_pool2d",
          [=](const V& v) { return avg_pool2d(v[0].contiguous(format), {.kernel_size = 5, .stride = 1}); },
          {{2, 5, 12, 11}});
    check("max_pool2d",
          [=](const V& v) { return max_pool2d(v[0].contiguous(format), {.kernel_size = 5, .stride = 1}); },
          {{2, 5, 12, 11}});
    check("adaptive_avg_pool2d",
          [=](const V& v) {
            return adaptive_avg_pool2d(v[0].contiguous(format), {5, 4});
          },
          {{2, 5, 12, 11}});
  }
}
