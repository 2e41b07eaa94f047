// The kernels of docs/tutorials/from-naive-to-fast.md compute what the operations compute on the CPU in f64.
#include "tapestry/tools/bench/gpu/tutorial.h"
#include "tests/device/compare.h"

using namespace device_tests;

namespace {

using Sizes = std::vector<std::int64_t>;

/// Runs the tutorial's kernel on the GPU; y has the sizes of `wanted`. x, weight and bias are on the CPU.
void check_tutorial(const std::string& name, const Sizes& sizes, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, const Tensor& wanted, double units) {
  CAPTURE(name, sizes);
  const auto there = [](const Tensor& t) { return t.defined() ? t.contiguous().to(kGpu) : Tensor(); };
  const Tensor y = full(wanted.sizes(), NAN, {x.dtype(), kGpu});
  bench::launch_tutorial_kernel(name, sizes, there(x), there(weight), there(bias), y);
  CHECK(difference(wanted, y) <= units * unit(x.dtype()));
}
Tensor wide(const Tensor& t) { return t.to(DType::f64); }

}  // namespace

TEST_CASE("each version of the tutorial's softmax is a softmax") {
  if (no_gpu()) return;
  manual_seed(41);
  const Tensor extreme = tensor({{-HUGE_VAL, 0.0, 88.0, 89.0}, {1e30, -1e30, -HUGE_VAL, 1.0}}).to(DType::f32);
  for (const char* const name :
       {"softmax_thread_per_row", "softmax_block_per_row", "softmax_online", "softmax_in_registers"})
    for (const Tensor& x : {randn({3, 4}, kCPU), randn({1, 1000}, kCPU) * 4, randn({2, 516}, kCPU),
                            randn({130, 4}, kCPU), extreme})
      check_tutorial(name, {x.size(0), x.size(1)}, x, {}, {}, softmax(wide(x), 1), 64);
}

TEST_CASE("each version of the tutorial's linear layer is relu(x w^T + bias)") {
  if (no_gpu()) return;
  manual_seed(42);
  const auto check_linear = [](const char* name, DType dtype, const Sizes& s) {
    const Tensor x = normal({s[0], s[2]}, dtype), w = normal({s[1], s[2]}, dtype), b = normal({s[1]}, dtype);
    check_tutorial(name, s, x, w, b, relu(linear(wide(x), wide(w), wide(b))), 16);
  };
  for (const char* const name : {"linear_thread_per_output", "linear_shared_tiles", "linear_register_tiles"})
    for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{33, 65, 40}, Sizes{70, 130, 17}})
      check_linear(name, DType::f32, s);
  for (const Sizes& s : {Sizes{1, 1, 8}, Sizes{70, 65, 72}, Sizes{64, 64, 96}})
    check_linear("linear_tensor_cores", DType::bf16, s);
}

TEST_CASE("each version of the tutorial's convolution is a convolution") {
  if (no_gpu()) return;
  manual_seed(43);
  struct Shapes {
    std::int64_t n, c, h, w, k, window, padding;
    std::vector<const char*> versions;
  };
  const std::vector<const char*> general = {"conv_thread_per_output", "conv_implicit_gemm"},
                                 hoisted = {"conv_hoisted"};
  for (const Shapes& s : {Shapes{1, 3, 3, 4, 2, 3, 0, general},
                          {2, 3, 5, 7, 130, 3, 1, general},
                          {1, 5, 4, 4, 3, 1, 0, general},
                          {2, 16, 6, 7, 130, 3, 1, hoisted},
                          {1, 32, 9, 8, 4, 1, 0, hoisted},
                          {1, 16, 5, 5, 5, 5, 2, hoisted}}) {
    const Tensor x = normal({s.n, s.c, s.h, s.w}, DType::f32),
                 w = normal({s.k, s.c, s.window, s.window}, DType::f32);
    const auto last = [](const Tensor& t) {
      return t.permute({0, 2, 3, 1}).contiguous();
    };  // the tutorial's layout
    for (const char* const name : s.versions)
      check_tutorial(name, {s.n, s.c, s.h, s.w, s.k, s.window, 1, s.padding}, last(x), last(w), {},
                     last(conv2d(wide(x), wide(w), {}, {.padding = s.padding})), 16);
  }
}
