// Tests products in f16, and products with k = 0 in f64. The kernels of f16 are those of bf16, whose tests
// check sizes, splits and alignments; these check each kernel, and what differs between the types: the
// instruction, the rounding, and the range.
#include "tests/emulated/matmul.h"

#include "tapestry/kernels/cuda/matmul_empty.cuh"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

TEST_CASE("f16 GEMM: both tiles give the CPU's values in every layout, aligned and not") {
  for (unsigned layout = 0; layout < 4; ++layout) {
    Product p{.m = 72, .n = 40, .k = 104, .a_along_k = layout / 2 != 0, .b_along_k = layout % 2 != 0};
    check_strategy<Half>(p, false);
    check_strategy<Half>(p, true);
    p.m = 67, p.n = 41, p.k = 35;
    check_strategy<Half>(p, false);
    check_strategy<Half>(p, true);
  }
}

TEST_CASE("f16 GEMM: few rows, split-K and epilogues give the CPU's values") {
  for (const std::int64_t m : {1, 3}) check_product<Half>({.m = m, .n = 9, .k = 520, .b_along_k = true});
  check_strategy<Half>({.m = 9, .n = 11, .k = 200, .bias = true, .accumulate = true}, false, 3);
  check_product<Half>({.m = 9, .n = 16, .k = 24, .bias = true, .aux = true, .epilogue = Epilogue::gelu});
}

TEST_CASE("f16 GEMM: sums are in f32, and only results beyond f16's range become infinite") {
  // 200 * 200 is beyond f16's 65504 after two products; the sum returns. Small products are subnormal.
  const Product p{.m = 3, .n = 2, .k = 24};
  Operands o(p);
  o.a.for_each([](double& x) { x = 200; });
  for (std::size_t i = 0; i < o.b.values.size(); ++i) o.b.values[i] = i / 2 % 2 ? -200 : 200;
  const auto launch = [](const GemmArgs& g) { gpu::launch_gemm<Half>({}, g); };
  check_product<Half>(p, o, launch);  // all sums are 0
  o.a.for_each([](double& x) { x = 0x1p-14; });
  o.b.for_each([](double& x) { x = 0x1p-12 * 1.25; });
  check_product<Half>(p, o, launch);
  o.a.for_each([](double& x) { x = 200; });
  o.b.for_each([](double& x) { x = 100; });
  const Block<Half> a(o.a.values), b(o.b.values), c(6);
  GemmArgs g = gemm_of(p, o);
  g.a = a.data(), g.b = b.data(), g.c = c.data();
  gpu::launch_gemm<Half>({}, g);
  CHECK(static_cast<float>(c[5]) == std::numeric_limits<float>::infinity());
}

TEST_CASE("products with k = 0 in f16 and f64 leave bias and old values, and write nothing else") {
  for (const bool bias : {false, true})
    for (const bool accumulate : {false, true}) {
      const Product p{
          .m = 150, .n = 3, .k = 0, .gap = 2, .bias = bias, .accumulate = accumulate, .batch = {2}};
      check_product<Half>(p);
      check_product<double>(p, [](const GemmArgs& g) { gpu::launch_gemm_empty<double>({}, g); });
    }
  cuda_emulator::take_launches();
  check_product<double>({.m = 0, .n = 3, .k = 0},
                        [](const GemmArgs& g) { gpu::launch_gemm_empty<double>({}, g); });
  CHECK(cuda_emulator::take_launches().empty());
}
