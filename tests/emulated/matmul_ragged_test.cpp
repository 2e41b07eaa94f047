// Tests that products in bf16 and f16 of lines of any length and alignment match the CPU's kernel in f64. A
// and B are loaded in units of 1, 2 or 8 elements: the tests run every combination, in every layout and with
// both tiles.
#include "tests/emulated/matmul.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

gpu::GemmLayout layout_of(const Product& p) {
  const Operands o(p);
  const Block<BFloat16> a(o.a.values, p.offset), b(o.b.values, p.offset);
  GemmArgs g = gemm_of(p, o);
  g.a = a.data(), g.b = b.data();
  return gpu::gemm_layout<BFloat16>(g);
}

}  // namespace

TEST_CASE("ragged GEMM: the width of an operand's loads follows from its lines") {
  const auto widths = [](const Product& p) {
    const auto l = layout_of(p);
    return std::pair(l.a_width, l.b_width);
  };
  using Widths = std::pair<int, int>;
  CHECK(widths({.m = 8, .n = 16, .k = 24}) == Widths(8, 8));
  CHECK(widths({.m = 8, .n = 16, .k = 25}) == Widths(1, 8));
  CHECK(widths({.m = 8, .n = 18, .k = 24}) == Widths(8, 2));
  CHECK(widths({.m = 8, .n = 50257, .k = 24}) == Widths(8, 1));
  CHECK(widths({.m = 8, .n = 18, .k = 25, .b_along_k = true}) == Widths(1, 1));
  CHECK(widths({.m = 6, .n = 15, .k = 25, .a_along_k = false, .gap = 1}) == Widths(1, 1));
  CHECK(widths({.m = 6, .n = 14, .k = 25, .a_along_k = false, .gap = 2}) == Widths(2, 2));
  CHECK(widths({.m = 8, .n = 16, .k = 24, .offset = 1}) == Widths(1, 1));
  CHECK(widths({.m = 8, .n = 16, .k = 24, .offset = 4}) == Widths(2, 2));
  CHECK(widths({.m = 8, .n = 16, .k = 24, .batch = {2}, .a_apart = 2, .b_apart = 1}) == Widths(2, 1));
  CHECK(layout_of({.m = 8, .n = 16, .k = 24}).packs);
  CHECK_FALSE(layout_of({.m = 8, .n = 16, .k = 25}).packs);
}

TEST_CASE("ragged GEMM: every width of A beside every width of B gives the CPU's values in every layout") {
  // The sizes mod 8 decide the widths: 0 gives 8, 2 gives 2, odd numbers give 1. There are two blocks in each
  // direction, the second partial, and with k = 161 more tiles than stages, the first partial.
  struct Sizes {
    std::int64_t m, n, k;
  };
  constexpr std::int64_t block = 64;
  for (const auto& [m, n, k] : {Sizes{1, 8, 33}, Sizes{8, 3, 40}, Sizes{6, 7, 161}, Sizes{7, 2, 66},
                                Sizes{8, 2, 40}, Sizes{2, 8, 40}})
    in_each_layout({.m = m + block, .n = n + block, .k = k},
                   [](const Product& p) { check_strategy<BFloat16>(p, false); });
  // The tiles share the code of the loads, so fewer sizes show that the large one calls it correctly.
  for (const auto& [m, n, k] : {Sizes{7, 2, 66}, Sizes{8, 3, 135}})
    in_each_layout({.m = m + 2 * block, .n = n + 2 * block, .k = k},
                   [](const Product& p) { check_strategy<BFloat16>(p, true); });
}

TEST_CASE("ragged GEMM: blocks with one row, one column or one product are computed too") {
  for (const std::int64_t k : {1, 2, 31, 32})
    in_each_layout({.m = 1, .n = 3, .k = k, .gap = 1}, [](const Product& p) {
      check_strategy<BFloat16>(p, false);
      check_strategy<BFloat16>(p, true);
    });
}

TEST_CASE("ragged GEMM: splits, batches, bias, old values and epilogues give the CPU's values") {
  for (const bool large : {false, true})
    for (const std::int64_t gap : {1, 2}) {
      Product p{.m = 70, .n = 67, .k = 135, .gap = gap, .offset = 1, .bias = true, .accumulate = true};
      check_strategy<BFloat16>(p, large, 2);
      p.batch = {2, 2}, p.k = 40, p.b_shared = true, p.a_apart = 3;
      p.epilogue = Epilogue::gelu, p.aux = true;
      check_strategy<BFloat16>(p, large);
    }
}

TEST_CASE("ragged GEMM: infinities and NaN affect only their rows and columns") {
  for (const bool a_along_k : {false, true}) {
    const Product p{.m = 67, .n = 35, .k = 33, .a_along_k = a_along_k};
    Operands o(p);
    o.a.values[5] = kInfinity;
    o.a.values[o.a.values.size() - 1] = kNaN;
    o.b.values[o.b.values.size() - 1] = -kInfinity;
    for (const bool large : {false, true})
      check_product<BFloat16>(p, o, [=](const GemmArgs& g) {
        gpu::launch_gemm<BFloat16>({}, g, {large, 1});
      });
  }
}
