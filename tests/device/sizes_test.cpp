// Kernels that are chosen by the size of a row, an image or a matrix, compared with the CPU: on a GPU, and on
// the PTX machine, where tests/device/machine.cmake demands that every kernel of the library runs.
#include "tests/device/compare.h"

using namespace device_tests;

namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
/// Both sides of every limit at which the kernels for rows change, in sizes that can be read in packs and
/// others.
constexpr std::int64_t kRows[] = {255,  256,  1023, 1024,  2047,  2048,  4095,
                                  4096, 8191, 8192, 16383, 16384, 16385, 16392};

}  // namespace

TEST_CASE("softmax of rows of every size") {
  if (no_gpu()) return;
  manual_seed(1);
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : kRows) {
      const std::string row = std::to_string(n);
      const Tensor x = normal({3, n}, dtype);
      compare("softmax " + row, {x}, 8, [](const auto& t) { return softmax(t[0], 1); });
      compare("log_softmax " + row, {x}, 8, [](const auto& t) { return log_softmax(t[0], 1); });
    }
}

TEST_CASE("layer norm of rows of every size") {
  if (no_gpu()) return;
  manual_seed(2);
  for (const DType dtype : kDTypes)
    for (const std::int64_t n : kRows)
      compare("layer_norm " + std::to_string(n),
              {normal({5, n}, dtype), normal({n}, dtype), normal({n}, dtype)}, 16,
              [n](const auto& t) { return layer_norm(t[0], {n}, t[1], t[2]); });
}

TEST_CASE("group norm and batch norm of large and odd images") {
  if (no_gpu()) return;
  manual_seed(3);
  for (const DType dtype : kDTypes)
    for (const std::int64_t side : {7, 64}) {
      const Tensor x = normal({2, 8, side, side}, dtype), w = normal({8}, dtype), b = normal({8}, dtype);
      compare("group_norm", {x, w, b}, 16, [](const auto& t) { return group_norm(t[0], 4, t[1], t[2]); });
      compare("group_norm without weights", {x}, 16, [](const auto& t) { return group_norm(t[0], 4); });
      compare("sums of planes", {x}, 16, [](const auto& t) { return t[0].sum({0, 2, 3}); });
      nn::BatchNorm2d here({.num_features = 8}), there({.num_features = 8});
      there.to(kGpu);
      if (dtype == DType::f32)
        for (int step = 0; step < 2; ++step) CHECK(difference(here(x), there(x.to(kGpu))) < 1e-5);
    }
}

TEST_CASE("cross entropy of few and many classes") {
  if (no_gpu()) return;
  manual_seed(4);
  for (const DType dtype : kDTypes)
    for (const std::int64_t classes : {5, 1000, 5000, 70000}) {
      CAPTURE(classes);
      const std::int64_t rows = classes > 10000 ? 2 : 4;
      const Tensor x = normal({rows, classes}, dtype), weight = rand({classes}, kCPU).to(dtype);
      const Tensor target = randint(0, classes, {rows}, kCPU),
                   probabilities = softmax(normal({rows, classes}, dtype), 1);
      const auto with = [&](const CrossEntropyParams& p) {
        return [=](const std::vector<Tensor>& t) {
          CrossEntropyParams q = p;
          if (q.weight.defined()) q.weight = q.weight.to(t[0].device());
          return cross_entropy(t[0], target.to(t[0].device()), q);
        };
      };
      compare("plain", {x}, 16, with({}));
      compare("smoothed", {x}, 16, with({.label_smoothing = 0.1}));
      compare("weighted", {x}, 16, with({.weight = weight}));
      compare("weighted, smoothed", {x}, 16, with({.weight = weight, .label_smoothing = 0.1}));
      compare("each row", {x}, 16, with({.reduction = Reduction::none}));
      if (dtype != DType::f16)
        compare("probabilities", {x, probabilities}, 16,
                [](const auto& t) { return cross_entropy(t[0], t[1]); });
      compare("nll", {x}, 16, [&](const auto& t) { return nll_loss(t[0], target.to(t[0].device())); });
    }
}

TEST_CASE("products of matrices that fill large tiles, and of vectors") {
  if (no_gpu()) return;
  manual_seed(5);
  for (const DType dtype : kDTypes)
    for (const Shape& s :
         {Shape{256, 256, 64}, Shape{128, 384, 96}, Shape{64, 64, 2048}, Shape{1, 300, 257}}) {
      const std::int64_t m = s[0], n = s[1], k = s[2];
      const Tensor a = normal({m, k}, dtype), b = normal({k, n}, dtype), bias = normal({n}, dtype);
      const Tensor at = normal({k, m}, dtype), bt = normal({n, k}, dtype);
      compare("a b", {a, b}, 16, [](const auto& t) { return matmul(t[0], t[1]); });
      compare("a' b", {at, b}, 16, [](const auto& t) { return matmul(t[0].t(), t[1]); });
      compare("a b'", {a, bt}, 16, [](const auto& t) { return matmul(t[0], t[1].t()); });
      compare("a' b'", {at, bt}, 16, [](const auto& t) { return matmul(t[0].t(), t[1].t()); });
      compare("linear", {a, bt, bias}, 16, [](const auto& t) { return linear(t[0], t[1], t[2]); });
    }
}

TEST_CASE("attention over long sequences, with heads of 64 and 128") {
  if (no_gpu()) return;
  manual_seed(6);
  for (const DType dtype : kDTypes)
    for (const std::int64_t head : {64, 128})
      for (const bool causal : {false, true}) {
        const Tensor q = normal({1, 2, 70, head}, dtype), k = normal({1, 2, 150, head}, dtype),
                     v = normal({1, 2, 150, head}, dtype);
        compare(
            "attention",
            {q, causal ? normal({1, 2, 70, head}, dtype) : k, causal ? normal({1, 2, 70, head}, dtype) : v},
            32, [causal](const auto& t) {
              return scaled_dot_product_attention(t[0], t[1], t[2], {.is_causal = causal});
            });
        const NoGradGuard no_grad;  // one query over many keys is divided among blocks
        const auto one = [&](const Device& d) {
          return scaled_dot_product_attention(q.narrow(2, 0, 1).contiguous().to(d), k.to(d), v.to(d));
        };
        CHECK(difference(one(kCPU), one(kGpu)) <= 32 * unit(dtype));
      }
}

TEST_CASE("convolutions and pools of larger images") {
  if (no_gpu()) return;
  manual_seed(7);
  for (const DType dtype : kDTypes)
    for (const std::int64_t channels : {3, 64}) {
      const Tensor x = normal({2, channels, 18, 18}, dtype), w = normal({72, channels, 3, 3}, dtype),
                   b = normal({72}, dtype), depth = normal({channels, 1, 3, 3}, dtype);
      compare("conv2d", {x, w, b}, 32,
              [](const auto& t) { return conv2d(t[0], t[1], t[2], {.padding = 1}); });
      compare("strided", {x, w, b}, 32,
              [](const auto& t) { return conv2d(t[0], t[1], t[2], {.stride = 2}); });
      compare("conv2d_relu", {x, w, b}, 32,
              [](const auto& t) { return conv2d_relu(t[0], t[1], t[2], {.padding = 1}); });
      compare("depthwise", {x, depth}, 32, [channels](const auto& t) {
        return conv2d(t[0], t[1], {}, {.padding = 1, .groups = channels});
      });
      if (dtype == DType::f16) continue;
      compare("max_pool2d", {x}, 2, [](const auto& t) { return max_pool2d(t[0], {.kernel_size = 2}); });
      compare("max_pool2d, overlapping", {x}, 8,
              [](const auto& t) { return max_pool2d(t[0], {.kernel_size = 3, .stride = 1, .padding = 1}); });
      compare("avg_pool2d", {x}, 8, [](const auto& t) { return avg_pool2d(t[0], {.kernel_size = 2}); });
    }
}

TEST_CASE("long sums, sorts and copies") {
  if (no_gpu()) return;
  manual_seed(8);
  for (const DType dtype : kDTypes) {
    const Tensor x = normal({3, 70001}, dtype), wide = normal({300, 513}, dtype);
    compare("sum", {x}, 64, [](const auto& t) { return t[0].sum(); });
    compare("sum of rows", {x}, 64, [](const auto& t) { return t[0].sum(1); });
    compare("mean of columns", {wide}, 64, [](const auto& t) { return t[0].mean(0); });
    if (dtype == DType::f16) continue;
    compare("norm", {x}, 64, [](const auto& t) { return t[0].norm(); });
    compare("prod", {x.narrow(1, 0, 9)}, 64, [](const auto& t) { return t[0].prod(1); });
    const NoGradGuard no_grad;
    compare("max", {x}, 0, [](const auto& t) { return t[0].amax({1}); });
    compare("argmax", {x}, 0, [](const auto& t) { return t[0].argmax(1).to(DType::f32); });
    compare("transposed", {wide}, 0, [](const auto& t) { return t[0].t().contiguous(); });
    compare("sort", {x.narrow(1, 0, 9000)}, 0, [](const auto& t) { return t[0].sort(1).first; });
    compare("top 5", {x}, 0, [](const auto& t) { return topk(t[0], 5).first; });
  }
}

TEST_CASE("random numbers of a GPU are the CPU's") {
  if (no_gpu()) return;
  for (const DType dtype : kDTypes) {
    const auto drawn = [&](const Device& d) {
      manual_seed(9);
      const TensorOptions o{dtype, d};
      return std::vector<Tensor>{rand({1001}, o), randn({1001}, o),
                                 dtype == DType::f16 ? zeros({1}) : randint(-3, 9, {1001}, o)};
    };
    const auto here = drawn(kCPU), there = drawn(kGpu);
    CHECK(difference(here[0], there[0]) == 0);
    CHECK(difference(here[1], there[1]) <= 4 * unit(dtype));
    CHECK(difference(here[2], there[2]) == 0);
  }
  const auto integers = [](const Device& d) {
    manual_seed(10);
    return randint(0, 1000, {257}, d);
  };
  CHECK(equal(integers(kCPU), integers(kGpu).cpu()));
  CHECK(equal(randperm(300, kGpu).sort(0).first.cpu(), arange(0, 300)));
}

// More rows than multiprocessors, which are streamed, and weight gradients in tiles of 128 x 128. It takes
// too long for CI.
TEST_CASE("softmax of many long rows, and the weight gradient of a large image", "[.large]") {
  if (no_gpu()) return;
  manual_seed(21);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t n : {16392, 16385}) {
      const Tensor x = normal({132, n}, dtype);
      compare("softmax", {x}, 8, [](const auto& t) { return softmax(t[0], 1); });
      compare("log_softmax", {x}, 8, [](const auto& t) { return log_softmax(t[0], 1); });
    }
  for (const bool last : {true, false})
    for (const std::int64_t channels : {128, 126}) {
      const Tensor x = normal({1, channels, 44, 44}, DType::f32),
                   w = normal({128, channels, 3, 3}, DType::f32);
      compare("conv2d", {last ? x.contiguous(MemoryFormat::channels_last) : x, w}, 256,
              [](const auto& t) { return conv2d(t[0], t[1], {}, {.padding = 1}); });
    }
}
