// CPU kernels of f16 and bf16: results by table, in vectors of 512 bits, and without copies in f32 are those
// of f32 arithmetic that is rounded once.
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The elements as f32, in which each f16 and bf16 number is exact.
std::vector<float> values(const Tensor& t) { return t.detach().to(kFloat32).contiguous().to_vector<float>(); }

std::int64_t differences(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = values(a), y = values(b);
  REQUIRE(x.size() == y.size());
  std::int64_t n = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    n += !((x[i] != x[i] && y[i] != y[i]) || std::bit_cast<int>(x[i]) == std::bit_cast<int>(y[i]));
  return n;
}

/// All 65536 numbers of a 16-bit dtype.
Tensor all_numbers(DType dtype) {
  std::vector<float> x(65536);
  for (std::uint32_t i = 0; i < 65536; ++i)
    x[i] = dtype == DType::bf16 ? static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(i)))
                                : static_cast<float>(Half::from_bits(static_cast<std::uint16_t>(i)));
  return tensor(x).to(dtype);
}
/// The same elements with gaps, for which kernels use no tables.
Tensor with_gaps(const Tensor& t) { return stack({t, t}, 1).select(1, 0); }

using Outputs = std::vector<Tensor>;
/// f(inputs...) and the gradients of the inputs.
Outputs with_gradients(const std::function<Tensor(const Outputs&)>& f, const Outputs& inputs,
                       double slope = 1) {
  Outputs leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad());
  const Tensor y = f(leaves);
  manual_seed(5);
  const Tensor dy = (randn(y.sizes()) * slope).to(y.dtype());
  Outputs out = autograd::grad({y}, leaves, Outputs{dy}, false);
  out.insert(out.begin(), y.detach());
  return out;
}

Tensor low(const Shape& shape, DType dtype, double mean = 0) { return (randn(shape) + mean).to(dtype); }

}  // namespace

TEST_CASE("a function's table has the results of its formula for all 16-bit numbers") {
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> functions[] = {
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu_tanh", [](const Tensor& x) { return gelu(x, true); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"tanh", [](const Tensor& x) { return tanh(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }},
      {"log", [](const Tensor& x) { return log(x); }},
      {"erf", [](const Tensor& x) { return erf(x); }},
  };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = all_numbers(dtype), apart = with_gaps(x);
    for (const auto& [name, f] : functions) {
      CAPTURE(name, dtype_name(dtype));
      const Tensor expected = f(apart);
      for (int i = 0; i < 5; ++i) CHECK(differences(f(x), expected) == 0);  // from the fifth call on by table
      CHECK(differences(f(x.slice(0, 1, 65536 - 7)), expected.slice(0, 1, 65536 - 7)) == 0);
    }
    for (const auto& [name, f] : {functions[0], functions[1], functions[2]}) {
      CAPTURE(name, dtype_name(dtype));
      for (const float slope : {1.0f, -0.3f, 1e30f, 0.0f, kInf, kNaN}) {
        const auto gradient = [&f = f](const Tensor& at, const Tensor& dy) {
          const Tensor leaf = at.detach().set_requires_grad();
          return autograd::grad({f(leaf)}, {leaf}, Outputs{dy}, false)[0];
        };
        const Tensor dy = full({65536}, slope).to(dtype);
        const Tensor expected = gradient(apart, with_gaps(dy));
        for (int i = 0; i < (slope == 1 ? 5 : 1); ++i) CHECK(differences(gradient(x, dy), expected) == 0);
      }
    }
  }
}

TEST_CASE("16-bit kernels give the same bits with and without AVX-512", "[isa]") {
  manual_seed(1);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Tensor rows = low({5, 137}, dtype, 3), images = low({2, 19, 9, 7}, dtype);
    const Tensor weight = low({137}, dtype, 1), bias = low({137}, dtype);
    const Tensor q = low({2, 3, 50, 20}, dtype), k = low({2, 3, 50, 20}, dtype),
                 v = low({2, 3, 50, 20}, dtype);
    const auto channels_last = images.contiguous(MemoryFormat::channels_last);
    const std::tuple<const char*, std::function<Tensor(const Outputs&)>, Outputs> cases[] = {
        {"softmax", [](const Outputs& x) { return softmax(x[0], 1); }, {rows}},
        {"softmax of columns", [](const Outputs& x) { return softmax(x[0], 0); }, {rows}},
        {"log_softmax", [](const Outputs& x) { return log_softmax(x[0], 1); }, {rows}},
        {"layer_norm",
         [](const Outputs& x) { return layer_norm(x[0], {137}, x[1], x[2]); },
         {rows, weight, bias}},
        {"layer_norm without weight", [](const Outputs& x) { return layer_norm(x[0], {137}); }, {rows}},
        {"rms_norm", [](const Outputs& x) { return rms_norm(x[0], {137}, x[1]); }, {rows, weight}},
        {"sum", [](const Outputs& x) { return sum(x[0]); }, {rows}},
        {"mean of columns", [](const Outputs& x) { return mean(x[0], 0); }, {rows}},
        {"max_pool2d", [](const Outputs& x) { return max_pool2d(x[0], {.kernel_size = 2}); }, {images}},
        {"max_pool2d channels-last",
         [](const Outputs& x) { return max_pool2d(x[0], {.kernel_size = 3, .stride = 2}); },
         {channels_last}},
        {"attention",
         [](const Outputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.is_causal = true}); },
         {q, k, v}},
    };
    for (const auto& [name, f, inputs] : cases) {
      CAPTURE(name, dtype_name(dtype));
      Outputs narrow, wide;
      {
        const WideLoops use(false);
        narrow = with_gradients(f, inputs);
      }
      wide = with_gradients(f, inputs);
      for (std::size_t i = 0; i < wide.size(); ++i) {
        CAPTURE(i);
        CHECK(differences(narrow[i], wide[i]) == 0);
      }
    }
  }
}

TEST_CASE("max pooling of 16-bit images is that of the same f32 images", "[isa]") {
  manual_seed(2);
  struct Window {
    std::int64_t h, w, kernel, stride, padding;
  };
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Window s : {Window{8, 8, 2, 2, 0},
                           {9, 35, 2, 2, 0},
                           {9, 37, 3, 2, 1},
                           {1, 1, 1, 2, 0},
                           {3, 2, 1, 2, 0},
                           {1, 34, 1, 2, 0},
                           {1, 33, 1, 2, 0},
                           {7, 40, 3, 3, 1},
                           {6, 19, 2, 1, 0}})
      for (const bool last : {false, true}) {
        CAPTURE(dtype_name(dtype), s.h, s.w, s.kernel, s.stride, s.padding, last);
        Tensor x = low({2, 17, s.h, s.w}, dtype);
        float special[] = {kNaN, -kInf, kInf, -0.0f, 1e-40f};
        for (std::size_t i = 0; i < 5; ++i)
          x.view({-1})
              .slice(0, static_cast<std::int64_t>(i) * 11 % x.numel())
              .slice(0, 0, 1)
              .fill_(special[i]);
        if (last) x = x.contiguous(MemoryFormat::channels_last);
        const auto pool = [&](const Outputs& in) {
          return max_pool2d(in[0], {.kernel_size = s.kernel, .stride = s.stride, .padding = s.padding});
        };
        const Outputs y = with_gradients(pool, {x});
        // Gradients that are exact in f16, whose sums are rounded once.
        const Tensor wide = x.to(kFloat32).set_requires_grad();
        const Tensor expected = pool({wide});
        manual_seed(5);
        const Tensor dy = randn(expected.sizes()).to(dtype).to(kFloat32);
        const Tensor dx = autograd::grad({expected}, {wide}, Outputs{dy}, false)[0];
        CHECK(differences(y[0], expected.detach()) == 0);
        CHECK(allclose(y[1].to(kFloat32), dx.to(dtype).to(kFloat32), 0, 0));
      }
}

TEST_CASE("causal attention that skips unseen keys is attention with a mask", "[isa]") {
  manual_seed(3);
  for (const auto& [queries, keys] : {std::pair{1, 1},
                                      {5, 5},
                                      {23, 23},
                                      {25, 25},
                                      {47, 47},
                                      {49, 49},
                                      {130, 130},
                                      {200, 200},
                                      {30, 161},
                                      {161, 30}}) {
    CAPTURE(queries, keys);
    const Tensor q = randn({1, 2, queries, 9}), k = randn({1, 2, keys, 9}), v = randn({1, 2, keys, 5});
    const Tensor mask = tril(ones({queries, keys})) > 0;
    const Outputs causal = with_gradients(
        [](const Outputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.is_causal = true}); },
        {q, k, v});
    const Outputs masked = with_gradients(
        [&](const Outputs& x) { return scaled_dot_product_attention(x[0], x[1], x[2], {.attn_mask = mask}); },
        {q, k, v});
    for (std::size_t i = 0; i < causal.size(); ++i) CHECK(allclose(causal[i], masked[i], 1e-5, 2e-6));
  }
}

TEST_CASE("norms of bf16 rows have f32 sums over columns and over rows", "[isa]") {
  manual_seed(4);
  // The mean is far from 0, and there are more rows than one chunk of the weight's gradient has.
  const Tensor x = low({70, 300}, DType::bf16, 20), weight = low({300}, DType::bf16, 1),
               bias = low({300}, DType::bf16);
  const auto norm = [](const Outputs& in) { return layer_norm(in[0], {300}, in[1], in[2]); };
  const Outputs y = with_gradients(norm, {x, weight, bias});
  const Tensor dx = x.to(kFloat64), dw = weight.to(kFloat64), db = bias.to(kFloat64);
  Outputs leaves{dx.set_requires_grad(), dw.set_requires_grad(), db.set_requires_grad()};
  const Tensor exact = norm(leaves);
  manual_seed(5);
  const Tensor dy = randn(exact.sizes()).to(DType::bf16).to(kFloat64);
  Outputs expected = autograd::grad({exact}, leaves, Outputs{dy}, false);
  expected.insert(expected.begin(), exact.detach());
  for (std::size_t i = 0; i < y.size(); ++i) {
    CAPTURE(i);
    // Half a unit of bf16, and of f32 sums whose terms are at most 4 and 70 in number or have a mean of 20.
    CHECK(allclose(y[i].to(kFloat64), expected[i], 0x1p-8, 1e-4));
  }
}

TEST_CASE("sums of bf16 rows of any length take each element once, and keep NaN and infinities", "[isa]") {
  // Whole numbers up to 31 and their sums below 2^24 are exact. Lengths around the vectors and the blocks.
  for (const std::int64_t n : {1, 63, 64, 65, 127, 128, 2047, 2048, 2049, 2111, 5000}) {
    CAPTURE(n);
    const Tensor whole = remainder(arange(3 * (n + 1), DType::f32) * 7, 32.0).reshape({3, n + 1});
    const Tensor x = whole.to(DType::bf16).narrow(1, 1, n);  // rows that are not aligned
    const Tensor exact = sum(whole.narrow(1, 1, n).to(kFloat64), 1);
    CHECK(equal(sum(x, 1), exact.to(DType::bf16)));  // rounded once
    CHECK(equal(sum(x), exact.sum().to(DType::bf16)));
    for (const double special : {double(NAN), double(INFINITY), -double(INFINITY)}) {
      const Tensor one = x.clone();
      one.select(1, n / 2).fill_(special);
      const double got = sum(one, 1).select(0, 2).item();
      CHECK((std::isnan(special) ? std::isnan(got) : got == special));
    }
  }
}

TEST_CASE("gradients of softmax and log_softmax of bf16 rows are within their rounding", "[isa]") {
  manual_seed(6);
  for (const std::int64_t n : {1, 17, 300}) {
    const Tensor x = low({4, n}, DType::bf16, 1);
    for (const bool log : {false, true}) {
      CAPTURE(n, log);
      const auto f = [log](const Outputs& in) { return log ? log_softmax(in[0], 1) : softmax(in[0], 1); };
      const Outputs got = with_gradients(f, {x});
      const Tensor wide = x.to(kFloat64).set_requires_grad(), y = f({wide});
      manual_seed(5);
      const Tensor dy = randn(y.sizes()).to(DType::bf16).to(kFloat64);
      const Tensor exact = autograd::grad({y}, {wide}, Outputs{dy}, false)[0];
      // The saved result is rounded by 2^-9 of its size, of log_softmax at most about 9, which changes
      // the probability by that much; the sum over |dy| adds up; the gradient is rounded once more.
      const Tensor probability = softmax(x.to(kFloat64), 1), size = dy.abs().sum(1, true);
      const Tensor relative = log ? y.detach().abs() * 0x1p-8 + 0x1p-20 : full_like(probability, 0x1p-8);
      const Tensor bound = probability * relative * size * 2 + exact.abs() * 0x1p-8 +
                           (log ? 0.0 : 1.0) * probability * (probability * dy.abs()).sum(1, true) * 0x1p-7 +
                           1e-6;
      CHECK(all((got[1].to(kFloat64) - exact).abs() <= bound).item() != 0);
    }
  }
}
