// Products with packed weights, beside products with the same weights as numbers.
#include "tapestry/autograd/ops/packed_linear.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/half.h"
#include "tapestry/core/threads.h"
#include "tapestry/kernels/cpu/packed_linear_int8.h"
#include "tests/support/op_case.h"

using namespace tapestry;

namespace {

constexpr BlockType kTypes[] = {BlockType::f32,  BlockType::f16,  BlockType::bf16, BlockType::q4_0,
                                BlockType::q4_1, BlockType::q8_0, BlockType::q4_k, BlockType::q6_k,
                                BlockType::q5_0, BlockType::q5_1, BlockType::q2_k, BlockType::q3_k,
                                BlockType::q5_k};

// Blocks of random integers with scales near 1/64, as a model's weights have them.
PackedTensor random_weight(BlockType type, std::int64_t rows, std::int64_t columns, std::uint32_t seed = 1) {
  manual_seed(seed);
  if (type == BlockType::f32 || type == BlockType::f16 || type == BlockType::bf16)
    return PackedTensor::pack(randn({rows, columns}), type);
  std::mt19937 random(seed);
  const Shape sizes{rows, columns};
  const BlockLayout& layout = block_layout(type);
  const auto bytes = static_cast<std::size_t>(rows * columns / layout.elements * layout.bytes);
  auto blocks = std::make_shared<std::vector<std::uint8_t>>(bytes);
  for (std::uint8_t& b : *blocks) b = static_cast<std::uint8_t>(random());
  const auto put = [&](std::size_t at, double value) {
    const Half half(static_cast<float>(value));
    std::memcpy(blocks->data() + at, &half.bits, 2);
  };
  std::uniform_real_distribution<double> scale(0.5 / 64, 1.5 / 64);
  for (std::size_t at = 0; at < bytes; at += static_cast<std::size_t>(layout.bytes)) {
    const std::size_t d = at + (type == BlockType::q6_k   ? 208
                                : type == BlockType::q3_k ? 108
                                : type == BlockType::q2_k ? 80
                                                          : 0);
    put(d, scale(random) * (random() % 2 == 0 ? 1 : -1));
    const bool minimum = type == BlockType::q4_1 || type == BlockType::q4_k || type == BlockType::q5_1 ||
                         type == BlockType::q5_k || type == BlockType::q2_k;
    if (minimum) put(d + 2, scale(random) * 8);
  }
  const std::uint8_t* const data = blocks->data();
  return PackedTensor(type, sizes, data, bytes, std::move(blocks));
}

std::int64_t unit_of(BlockType type) { return std::max<std::int64_t>(block_layout(type).elements, 1); }

// The largest error relative to the sum of the magnitudes of the products, which bounds every rounding error.
double error_of(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias = {}) {
  const Tensor exact =
      linear(x.to(DType::f64), w.to(DType::f64), bias.defined() ? bias.to(DType::f64) : bias);
  const Tensor scale = linear(x.to(DType::f64).abs(), w.to(DType::f64).abs(),
                              bias.defined() ? bias.to(DType::f64).abs() : bias) +
                       1e-30;
  return ((y.to(DType::f64) - exact).abs() / scale).max().item<double>();
}

// x after rounding to int8 in blocks of 32.
Tensor rounded(const Tensor& x) {
  const Tensor y = x.clone();
  float* const p = y.data<float>();
  for (std::int64_t at = 0; at < x.numel(); at += 32) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(p[at + i]));
    const float d = largest / 127;
    for (int i = 0; i < 32; ++i) p[at + i] = d == 0 ? 0 : d * std::nearbyint(p[at + i] * (1 / d));
  }
  return y;
}

using kernels::cpu::Int8Kernel;
struct UseKernel {
  explicit UseKernel(Int8Kernel kernel) { kernels::cpu::set_int8_kernel(kernel); }
  ~UseKernel() { kernels::cpu::set_int8_kernel({}); }
};
std::vector<Int8Kernel> int8_kernels() {
  std::vector<Int8Kernel> all;
  for (int i = 0; i <= static_cast<int>(kernels::cpu::best_int8_kernel()); ++i)
    all.push_back(static_cast<Int8Kernel>(i));
  return all;
}

}  // namespace

TEST_CASE("packed_linear with int8 multiplies the rounded input, with each kernel") {
  for (const Int8Kernel kernel : int8_kernels()) {
    const UseKernel guard(kernel);
    for (const BlockType type : kTypes) {
      if (block_layout(type).elements == 1) continue;
      for (const std::int64_t rows : {1, 8, 16, 33})
        for (const std::int64_t m : {1, 3, 15}) {
          CAPTURE(static_cast<int>(kernel), block_layout(type).name, rows, m);
          const PackedTensor w = random_weight(type, rows, 3 * unit_of(type), 5);
          Tensor x = randn({m, w.sizes()[1]}) + 0.5;
          x.narrow(1, 32, 32).fill_(0);  // a block without a scale
          const Tensor bias = randn({rows});
          const Tensor y = packed_linear(x, w, bias, PackedActivations::int8);
          CHECK(error_of(y, rounded(x), w.unpack(), bias) < 1e-6);
        }
    }
  }
}

TEST_CASE("packed_linear with int8 takes the extreme integers of a block") {
  for (const Int8Kernel kernel : int8_kernels()) {
    const UseKernel guard(kernel);
    auto blocks = std::make_shared<std::vector<std::uint8_t>>(std::size_t{34} * 4);
    const Half one(1.0f);
    constexpr int kValues[] = {-128, 127, -127, 1};
    for (std::size_t r = 0; r < 4; ++r) {
      std::memcpy(blocks->data() + 34 * r, &one.bits, 2);
      for (std::size_t i = 0; i < 32; ++i)
        (*blocks)[34 * r + 2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(kValues[r]));
    }
    const std::uint8_t* const data = blocks->data();
    const PackedTensor w(BlockType::q8_0, {4, 32}, data, std::uint64_t{34} * 4, blocks);
    for (const double x : {127.0, -127.0}) {
      const Tensor y = packed_linear(full({1, 32}, x), w);
      for (int r = 0; r < 4; ++r) CHECK(y.data<float>()[r] == static_cast<float>(32 * x * kValues[r]));
    }
  }
}

TEST_CASE("packed_linear with int8 rounds ties, tiny blocks and what is not finite alike with each kernel") {
  // One row of the unit matrix per column of a block: the results are the rounded inputs.
  Tensor unit = zeros({32, 32});
  for (std::int64_t i = 0; i < 32; ++i) unit.data<float>()[33 * i] = 127;
  const PackedTensor w = PackedTensor::pack(unit, BlockType::q8_0);
  std::vector<Tensor> inputs;
  Tensor ties = zeros({1, 32});  // of scale 1: halves round to even
  for (std::int64_t i = 0; i < 31; ++i) ties.data<float>()[i] = static_cast<float>(i - 15) + 0.5f;
  ties.data<float>()[31] = -127;
  inputs = {ties, ties * 1e-39, ties * 1e-37, ties * 1e-30, zeros({1, 32}), randn({9, 32}) * 1e30};
  for (const std::int64_t at : {0, 7, 8, 15, 16, 31})
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      inputs.push_back(randn({2, 32}));
      inputs.back().data<float>()[at] = value;
    }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    std::optional<Tensor> expected;
    for (const Int8Kernel kernel : int8_kernels()) {
      const UseKernel guard(kernel);
      const Tensor y = packed_linear(inputs[i], w, {}, PackedActivations::int8) / 127;
      if (!expected) expected = y;
      CHECK(y.allclose(*expected, 1e-6, 0, /*equal_nan=*/true));
      if (i == 0) CHECK(y[0][15].item() == 0);
      if (i == 0) CHECK(y[0][16].item() == 2);
      if (i >= 6) CHECK((y[0].isnan().all().item() == 1 && y[1].isfinite().all().item() == 1));
    }
  }
}

TEST_CASE("packed_linear with int8 gives a row the same bits in every batch", "[isa]") {
  for (const Int8Kernel kernel : int8_kernels()) {
    const UseKernel guard(kernel);
    for (const BlockType type :
         {BlockType::q4_1, BlockType::q8_0, BlockType::q6_k, BlockType::q2_k, BlockType::q5_1}) {
      const PackedTensor w = random_weight(type, 50, 512);
      const Tensor x = randn({23, 512});
      const Tensor all = packed_linear(x, w);
      for (std::int64_t i = 0; i < 23; ++i)
        CHECK(packed_linear(x.narrow(0, i, 1), w).equal(all.narrow(0, i, 1)));
      CHECK(packed_linear(x.narrow(0, 3, 7), w).equal(all.narrow(0, 3, 7)));
    }
  }
}

OP_TEST("packed_linear", golden, "the result is that of linear() with the unpacked weight") {
  for (const BlockType type : kTypes)
    for (const std::int64_t rows : {1, 16, 37})
      for (const std::int64_t m : {1, 4, 5, 13}) {
        const std::int64_t columns =
            type == BlockType::f32 || type == BlockType::bf16 ? 29 : 3 * unit_of(type);
        CAPTURE(block_layout(type).name, rows, m);
        const PackedTensor w = random_weight(type, rows, columns);
        const Tensor x = randn({m, columns}) + 0.5, bias = randn({rows});
        CHECK(error_of(packed_linear(x, w, {}, PackedActivations::f32), x, w.unpack()) < 1e-6);
        const Tensor y = packed_linear(x, w, bias, PackedActivations::f32);
        CHECK(error_of(y, x, w.unpack(), bias) < 1e-6);
        CHECK(y.sizes() == Shape({m, rows}));
      }
}

OP_TEST("packed_linear", gradcheck, "the gradients are those of linear() with the unpacked weight") {
  for (const BlockType type : kTypes)
    for (const std::int64_t rows : {5, 131}) {
      CAPTURE(block_layout(type).name, rows);
      const std::int64_t columns = type == BlockType::bf16 ? 45 : 3 * unit_of(type);
      const PackedTensor w = random_weight(type, rows, columns);
      const Tensor x = randn({2, 7, columns}).set_requires_grad(), bias = randn({rows}).set_requires_grad();
      const Tensor g = randn({2, 7, rows});
      (packed_linear(x, w, bias) * g).sum().backward();
      const Tensor x2 = x.detach().to(DType::f64).set_requires_grad(),
                   bias2 = bias.detach().to(DType::f64).set_requires_grad();
      (linear(x2, w.unpack().to(DType::f64), bias2) * g.to(DType::f64)).sum().backward();
      const double size = x2.grad().abs().max().item<double>();
      CHECK((x.grad().to(DType::f64) - x2.grad()).abs().max().item<double>() < 1e-5 * size);
      CHECK(allclose(bias.grad().to(DType::f64), bias2.grad(), 1e-5, 1e-5));
    }
}

OP_TEST("packed_linear", gradgradcheck, "the gradient of the gradient is that of linear()") {
  const PackedTensor w = random_weight(BlockType::q4_1, 5, 64);
  const Tensor start = randn({3, 64});
  const auto second = [&](const std::function<Tensor(const Tensor&)>& f) {
    const Tensor x = start.clone().set_requires_grad();
    const Tensor y = f(x);
    const Tensor dx = autograd::grad({(y * y * y).sum()}, {x}, {.create_graph = true})[0];
    return autograd::grad({(dx * dx).sum()}, {x})[0];
  };
  const Tensor ours = second([&](const Tensor& x) { return packed_linear(x, w); });
  const Tensor dense = second([&](const Tensor& x) { return linear(x, w.unpack()); });
  CHECK((ours - dense).abs().max().item<double>() < 1e-4 * dense.abs().max().item<double>());
}

OP_TEST("packed_linear", strided, "the input may have any layout") {
  const PackedTensor w = random_weight(BlockType::q8_0, 6, 32);
  const Tensor x = randn({32, 5, 2});
  const Tensor view = x.permute({2, 1, 0}), dense = view.contiguous();
  CHECK(packed_linear(view, w).equal(packed_linear(dense, w)));
  CHECK(packed_linear(view, w, {}, PackedActivations::f32)
            .equal(packed_linear(dense, w, {}, PackedActivations::f32)));
  const Tensor leaf = x.set_requires_grad();
  const Tensor g = randn({6, 5, 2});
  packed_linear(leaf.permute({2, 1, 0}), w).backward(g.permute({2, 1, 0}));
  CHECK(allclose(leaf.grad(), matmul(g.permute({2, 1, 0}), w.unpack()).permute({2, 1, 0}), 1e-4, 1e-5));
}

OP_TEST("packed_linear", empty, "no rows, no weights and no columns") {
  CHECK(packed_linear(zeros({0, 32}), random_weight(BlockType::q8_0, 6, 32)).sizes() == Shape({0, 6}));
  CHECK(packed_linear(zeros({3, 32}), random_weight(BlockType::q4_0, 0, 32)).sizes() == Shape({3, 0}));
  const PackedTensor none = random_weight(BlockType::q4_0, 4, 0);
  CHECK(packed_linear(zeros({3, 0}), none, ones({4})).equal(ones({3, 4})));
  const Tensor x = zeros({3, 32}).set_requires_grad();
  packed_linear(x, random_weight(BlockType::q4_0, 0, 32)).sum().backward();
  CHECK(x.grad().equal(zeros({3, 32})));
}

OP_TEST("packed_linear", extreme, "NaN and infinities reach the rows that have them, and no others") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const BlockType type : {BlockType::f16, BlockType::q4_0, BlockType::q4_1, BlockType::q8_0})
    for (const PackedActivations how : {PackedActivations::f32, PackedActivations::automatic})
      for (const double bad : {inf, -inf, std::nan("")})
        for (const std::int64_t at : {0, 31, 32, 63}) {
          CAPTURE(block_layout(type).name, bad, at);
          const PackedTensor w = random_weight(type, 3, 64);
          const Tensor x = randn({6, 64});
          const Tensor clean = packed_linear(x, w, {}, how);
          x[2].narrow(0, at, 1).fill_(bad);
          const Tensor y = packed_linear(x, w, {}, how);
          CHECK_FALSE(isfinite(y[2]).any().item<bool>());
          CHECK(y.narrow(0, 3, 3).equal(clean.narrow(0, 3, 3)));
          CHECK(y.narrow(0, 0, 2).equal(clean.narrow(0, 0, 2)));
        }
}

OP_TEST("packed_linear", dtypes, "f32 alone is accepted") {
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16, DType::i64})
    tapestry::test::report(tapestry::test::check_throws("packed_linear", [&] {
      return packed_linear(zeros({1, 32}, dtype), random_weight(BlockType::q8_0, 2, 32));
    }));
}

BAD_INPUT("packed_linear", "expected (..., 32)", [] {
  return packed_linear(zeros({2, 31}), random_weight(BlockType::q8_0, 4, 32));
});
BAD_INPUT("packed_linear", "bias has shape [3], expected [4]", [] {
  return packed_linear(zeros({2, 32}), random_weight(BlockType::q8_0, 4, 32), zeros({3}));
});
BAD_INPUT("packed_linear", "the weight is undefined", [] {
  return packed_linear(zeros({2, 32}), PackedTensor());
});
BAD_INPUT("packed_linear", "the weight has shape [2, 2, 32]", [] {
  return packed_linear(zeros({2, 32}), PackedTensor::pack(zeros({2, 2, 32}), BlockType::q8_0));
});
BAD_INPUT("packed_linear", "has no gradient", [] {
  return packed_linear(zeros({2, 32}).set_requires_grad(), random_weight(BlockType::q8_0, 4, 32), {},
                       PackedActivations::int8);
});

OP_TEST("packed_embedding", golden, "the rows are those of embedding() with the unpacked weight") {
  for (const BlockType type : kTypes) {
    const PackedTensor w = random_weight(type, 7, 2 * unit_of(type));
    const Tensor at = tensor({6, 0, 3, 3, 1, 2}, DType::i32).reshape({2, 3});
    CHECK(packed_embedding(w, at).equal(embedding(w.unpack(), at)));
  }
}
OP_TEST("packed_embedding", strided, "indices may have any layout") {
  const PackedTensor w = random_weight(BlockType::q4_1, 7, 64);
  const Tensor at = tensor({6, 0, 3, 3, 1, 2}, DType::i64).reshape({2, 3}).t();
  CHECK(packed_embedding(w, at).equal(packed_embedding(w, at.contiguous())));
}
OP_TEST("packed_embedding", empty, "no indices give no rows") {
  CHECK(packed_embedding(random_weight(BlockType::q4_1, 7, 64), zeros({0, 2}, DType::i64)).sizes() ==
        Shape({0, 2, 64}));
}
OP_TEST("packed_embedding", extreme, "NaN and infinities are copied") {
  const PackedTensor w =
      PackedTensor::pack(tensor({1.0, INFINITY, NAN, -INFINITY}).reshape({2, 2}), BlockType::f32);
  const Tensor y = packed_embedding(w, tensor({1, 0}, DType::i64));
  CHECK(isnan(y).flatten().to_vector<double>() == std::vector<double>{1, 0, 0, 0});
  CHECK(y.data<float>()[1] == -INFINITY);
  CHECK(y.data<float>()[3] == INFINITY);
}
OP_TEST("packed_embedding", dtypes, "every integer dtype is accepted, and no other") {
  const PackedTensor w = random_weight(BlockType::q8_0, 3, 32);
  for (const DType dtype : {DType::u8, DType::i32, DType::i64})
    CHECK(packed_embedding(w, ones({2}, dtype)).equal(packed_embedding(w, ones({2}, DType::i64))));
  tapestry::test::report(
      tapestry::test::check_throws("packed_embedding", [&] { return packed_embedding(w, ones({2})); }));
}
BAD_INPUT("packed_embedding", "index 7 at position 1 is outside [0, 7)", [] {
  return packed_embedding(random_weight(BlockType::q4_1, 7, 64), tensor({6, 7}, DType::i64));
});
BAD_INPUT("packed_embedding", "index -1 at position 0",
          [] { return packed_embedding(random_weight(BlockType::q4_1, 7, 64), tensor({-1}, DType::i64)); });

TEST_CASE("packed_linear never unpacks a whole weight") {
  const PackedTensor w = random_weight(BlockType::q8_0, 2048, 1024);
  const Tensor x = randn({16, 1024}).set_requires_grad();
  reset_peak_memory(kCPU);
  const auto before = memory_stats(kCPU).allocated;
  packed_linear(x, w).sum().backward();
  const auto peak = memory_stats(kCPU).peak_allocated - before;
  CHECK(peak < 2048 * 1024 * 4 / 4);
}

TEST_CASE("packed_linear does not depend on the number of threads") {
  for (const PackedActivations how : {PackedActivations::f32, PackedActivations::automatic}) {
    const PackedTensor w = random_weight(BlockType::q4_1, 531, 512);
    const Tensor x = randn({21, 512}), g = randn({21, 531});
    const auto run = [&](int threads) {
      const ThreadShare share(threads);
      const Tensor y = packed_linear(x, w, {}, how);
      const Tensor leaf = x.clone().set_requires_grad();
      packed_linear(leaf, w).backward(g);
      return std::pair(y, leaf.grad());
    };
    const auto one = run(1), two = run(2), three = run(3);
    CHECK((one.first.equal(two.first) && one.first.equal(three.first)));
    CHECK((one.second.equal(two.second) && one.second.equal(three.second)));
  }
}

TEST_CASE("linear_cross_entropy with a packed weight is that of the unpacked one") {
  const PackedTensor w = random_weight(BlockType::q8_0, 50, 64);
  const Tensor start = randn({2, 11, 64}), target = randint(0, 50, {2, 11});
  target[1].narrow(0, 3, 2).fill_(-100);
  for (const std::int64_t chunk : {0, 3}) {
    const auto run = [&](bool packed) {
      const Tensor x = start.clone().set_requires_grad(), bias = ones({50}).set_requires_grad();
      const LinearCrossEntropyParams params{.bias = bias, .label_smoothing = 0.1, .chunk_rows = chunk};
      const Tensor loss = packed ? linear_cross_entropy(x, w, target, params)
                                 : linear_cross_entropy(x, w.unpack(), target, params);
      (loss * 2).backward();
      return std::vector<Tensor>{loss.detach(), x.grad(), bias.grad()};
    };
    const auto ours = run(true), dense = run(false);
    for (std::size_t i = 0; i < 3; ++i) CHECK(allclose(ours[i], dense[i], 1e-4, 1e-6));
  }
  CHECK_THROWS_AS(linear_cross_entropy(zeros({1, 64}, DType::f64), w, zeros({1}, DType::i64)), TypeError);
  CHECK_THROWS_AS(linear_cross_entropy(zeros({1, 32}), w, zeros({1}, DType::i64)), ValueError);
  CHECK_THROWS_AS(linear_cross_entropy(zeros({1, 64}), PackedTensor(), zeros({1}, DType::i64)), ValueError);
}
