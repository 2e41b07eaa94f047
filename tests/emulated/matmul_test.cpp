// Tests that the tiled GEMM kernels match the CPU's kernel in f64 for every tile, layout and split, ragged
// sizes and extremes.
#include "tests/emulated/matmul.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

struct Sizes {
  std::int64_t m, n, k;
};

}  // namespace

TEST_CASE("f32 GEMM: large tiles give the CPU's values in every layout") {
  for (const auto& [m, n, k] : {Sizes{128, 128, 16}, Sizes{132, 8, 12}, Sizes{4, 260, 4}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<float>(p, true); });
  for (const auto& [m, n, k] : {Sizes{129, 127, 9}, Sizes{1, 130, 17}, Sizes{127, 1, 1}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<float>(p, true); });
}

TEST_CASE("f32 GEMM: small tiles give the CPU's values in every layout") {
  for (const auto& [m, n, k] : {Sizes{64, 64, 16}, Sizes{60, 68, 12}, Sizes{4, 4, 4}, Sizes{132, 8, 24}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<float>(p, false); });
  for (const auto& [m, n, k] : {Sizes{1, 1, 1}, Sizes{63, 65, 7}, Sizes{65, 63, 9}, Sizes{33, 1, 31}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<float>(p, false); });
}

TEST_CASE("bf16 GEMM: large tiles give the CPU's values in every layout") {
  for (const auto& [m, n, k] : {Sizes{128, 256, 64}, Sizes{136, 264, 40}, Sizes{8, 8, 8}, Sizes{72, 16, 168}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<BFloat16>(p, true); });
}

TEST_CASE("bf16 GEMM: small tiles give the CPU's values in every layout") {
  for (const auto& [m, n, k] : {Sizes{64, 64, 32}, Sizes{72, 56, 40}, Sizes{8, 8, 8}, Sizes{16, 72, 200}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<BFloat16>(p, false); });
  for (const auto& [m, n, k] : {Sizes{1, 1, 1}, Sizes{65, 63, 33}, Sizes{63, 65, 31}, Sizes{17, 3, 130}})
    in_each_layout({.m = m, .n = n, .k = k}, [](const Product& p) { check_strategy<BFloat16>(p, false); });
}

TEST_CASE("GEMM: misaligned operands and gaps between rows give the same values") {
  for (const std::int64_t gap : {1, 2, 4, 8})
    for (const std::size_t offset : {0, 1, 2, 4}) {
      in_each_layout({.m = 24, .n = 40, .k = 16, .gap = gap, .offset = offset, .bias = true},
                     [](const Product& p) { for_float_dtypes([&]<class T>() { check_product<T>(p); }); });
    }
}

TEST_CASE("GEMM: split-K gives the CPU's values") {
  for (const bool large : {false, true})
    for (const auto& [m, n, k] : {Sizes{16, 24, 200}, Sizes{8, 264, 96}})
      for (const std::int64_t splits : {2, 3, 100}) {
        const Product p{.m = m, .n = n, .k = k, .bias = true, .accumulate = true};
        for_float_dtypes([&]<class T>() { check_strategy<T>(p, large, splits); });
      }
  for (const bool accumulate : {false, true}) {
    const Product p{.m = 9, .n = 7, .k = 70, .gap = 3, .accumulate = accumulate, .batch = {3}};
    check_strategy<float>(p, true, 4);
    check_strategy<float>(p, false, 4);
    check_strategy<BFloat16>(p, false, 2);
  }
}

TEST_CASE("GEMM: split-K whose reduction needs several blocks, with ragged columns, gives the CPU's values") {
  // A block of the reduction handles 256 packs of four columns. The last pack of a row is ragged.
  for (const auto& [m, n] :
       {std::pair<std::int64_t, std::int64_t>{1000, 1}, {257, 3}, {90, 11}, {3, 1030}, {5, 205}})
    for (const bool gap : {false, true}) {
      const Product p{.m = m, .n = n, .k = 40, .gap = gap ? 3 : 0, .bias = true, .accumulate = gap};
      check_strategy<float>(p, false, 2);
      check_strategy<BFloat16>(p, false, 2);
    }
}

TEST_CASE("GEMM: batches and broadcast operands give the CPU's values") {
  for (const bool a_shared : {false, true})
    for (const bool b_shared : {false, true})
      for (const std::int64_t n : {8, 5}) {
        const Product p{.m = 5,
                        .n = n,
                        .k = 16,
                        .accumulate = true,
                        .batch = {3, 2},
                        .a_shared = a_shared,
                        .b_shared = b_shared};
        for_float_dtypes([&]<class T>() { check_product<T>(p); });
      }
  check_product<float>({.m = 3, .n = 4, .k = 4, .batch = {1, 5, 1, 2}});
  for (const std::int64_t apart : {1, 4, 8})  // only some of the matrices are aligned
    for (int operand = 0; operand < 3; ++operand) {
      Product p{.m = 8, .n = 8, .k = 8, .bias = true, .batch = {3}};
      (operand == 0 ? p.a_apart : operand == 1 ? p.b_apart : p.c_apart) = apart;
      for_float_dtypes([&]<class T>() { check_product<T>(p); });
    }
}

TEST_CASE("GEMM: the threadblock swizzle covers every tile once") {
  const Product p{
      .m = 64 * 18 - 4, .n = 64 * 3 - 4, .k = 4, .a_along_k = false};  // more than a group of 16 tile rows
  check_strategy<float>(p, false);
}

TEST_CASE("GEMM: with k = 0 only bias and epilogue remain; empty products launch nothing") {
  for (const bool bias : {false, true})
    for (const bool accumulate : {false, true})
      for (const auto epilogue : {Epilogue::none, Epilogue::gelu}) {
        const Product p{.m = 3, .n = 8, .k = 0, .bias = bias, .accumulate = accumulate, .epilogue = epilogue};
        for_float_dtypes([&]<class T>() { check_product<T>(p); });
      }
  cuda_emulator::take_launches();
  check_product<float>({.m = 0, .n = 3, .k = 2});
  check_product<float>({.m = 3, .n = 0, .k = 2});
  check_product<BFloat16>({.m = 3, .n = 3, .k = 2, .batch = {2, 0}});
  CHECK(cuda_emulator::take_launches().empty());
}

TEST_CASE("GEMM: infinities and NaN affect only their rows and columns") {
  for (const std::int64_t k : {16, 19}) {
    const Product p{.m = 40, .n = 24, .k = k, .bias = true, .accumulate = true};
    Operands o(p);
    o.a.values[static_cast<std::size_t>(3 * k + 5)] = kInfinity;
    o.a.values[static_cast<std::size_t>(7 * k)] = kNaN;
    o.a.values[static_cast<std::size_t>(40 * k - 1)] = -kInfinity;
    o.b.values[4 * 24 + 6] = kInfinity;  // multiplied by zeros and by other numbers
    o.a.values[static_cast<std::size_t>(9 * k + 4)] = 0;
    o.c.values[11 * 24 + 11] = kNaN;
    o.bias[13] = -kInfinity;
    const auto launch = [](auto type) {
      return [=](const GemmArgs& g) { gpu::launch_gemm<decltype(type)>({}, g); };
    };
    check_product<float>(p, o, launch(float()));
    check_product<BFloat16>(p, o, launch(BFloat16()));
  }
}

TEST_CASE("GEMM: shape, layout and alignment choose tile, split and kernel") {
  const auto strategy = []<class T>(Sizes s, std::int64_t batch = 1) {
    GemmArgs g;
    g.m = s.m, g.n = s.n, g.k = s.k;
    g.a_strides = {s.k, 1}, g.b_strides = {s.n, 1}, g.c_row = s.n;
    g.batch_ndim = 1;
    g.batch_sizes[0] = batch;
    return gpu::gemm_strategy<T>(g);
  };
  const auto f32 = [&](Sizes s, std::int64_t batch = 1) { return strategy.operator()<float>(s, batch); };
  const auto bf16 = [&](Sizes s, std::int64_t batch = 1) { return strategy.operator()<BFloat16>(s, batch); };
  for (const std::int64_t n : {2048, 4096, 8192}) {
    CHECK(f32({n, n, n}).large);
    CHECK(f32({n, n, n}).splits == 1);
    CHECK(bf16({n, n, n}).large);
    CHECK(bf16({n, n, n}).splits == 1);
  }
  CHECK_FALSE(f32({128, 10, 784}).large);
  CHECK_FALSE(f32({16, 16, 16}).large);
  CHECK(f32({16, 16, 16}).splits == 1);
  CHECK(f32({256, 784, 60000}).splits > 4);  // like a weight gradient
  CHECK(bf16({768, 768, 65536}).splits > 2);
  CHECK_FALSE(f32({64, 64, 64}, 768).large);  // like attention
  CHECK(f32({64, 64, 64}, 768).splits == 1);
  CHECK(bf16({4096, 4095, 4096}).large);
  CHECK_FALSE(bf16({65, 65, 65}).large);

  const auto launches = []<class T>(const Product& p) {
    cuda_emulator::take_launches();
    const Operands o(p);
    const Block<T> a(o.a.values, p.offset), b(o.b.values), c(o.c.values);
    GemmArgs g = gemm_of(p, o);
    g.a = a.data(), g.b = b.data(), g.c = c.data();
    gpu::launch_gemm<T>({}, g);
    return cuda_emulator::take_launches();
  };
  const auto one = [&]<class T>(const Product& p) {
    const auto all = launches.operator()<T>(p);
    REQUIRE(all.size() == 1);
    return all[0].kernel;
  };
  CHECK_THAT(one.operator()<float>({.m = 4, .n = 4, .k = 4}), ContainsSubstring("SmallTileF32ELi4ELb1ELb0E"));
  CHECK_THAT(one.operator()<float>({.m = 4, .n = 4, .k = 5}), ContainsSubstring("SmallTileF32ELi1ELb1ELb0E"));
  CHECK_THAT(one.operator()<float>({.m = 4, .n = 4, .k = 4, .offset = 1}), ContainsSubstring("ELi1E"));
  CHECK_THAT(one.operator()<float>({.m = 4, .n = 4, .k = 4, .a_along_k = false, .b_along_k = true}),
             ContainsSubstring("ELi4ELb0ELb1E"));
  CHECK_THAT(one.operator()<BFloat16>({.m = 8, .n = 8, .k = 8}),
             ContainsSubstring("SmallTileBf16E") && ContainsSubstring("ELb1ELb0E"));
  CHECK_THAT(one.operator()<BFloat16>({.m = 8, .n = 8, .k = 12}), ContainsSubstring("RaggedSmallTile"));
  const auto split = launches.operator()<float>({.m = 8, .n = 8, .k = 1024});
  REQUIRE(split.size() == 1);
  CHECK(split[0].grid.x == 8);
}

TEST_CASE("GEMM: more matrices than a grid allows are refused instead of wrapping modulo 2^32") {
  for (const std::int64_t batch : {std::int64_t{1} << 31, (std::int64_t{1} << 32) + 1}) {
    GemmArgs g{.m = 1, .n = 1, .k = 1, .c_row = 1};
    g.a_strides = g.b_strides = {1, 1};
    g.batch_ndim = 1, g.batch_sizes[0] = batch;
    g.a_batch[0] = g.b_batch[0] = g.c_batch[0] = 1;
    CHECK_THROWS_WITH(gpu::launch_gemm<float>({}, g), ContainsSubstring("multiply fewer at once"));
    CHECK_THROWS_WITH(gpu::launch_gemm<BFloat16>({}, g), ContainsSubstring("multiply fewer at once"));
  }
}

TEST_CASE("GEMM: sums of the rows of A, in every layout, tile and number of splits") {
  const auto check = []<class T>(Product p) {
    p.row_sums = true;
    in_each_layout(p, [](const Product& q) {
      for (const bool large : {false, true}) check_strategy<T>(q, large);
      check_strategy<T>(q, false, 3);
    });
  };
  for_float_dtypes([&]<class T>() {
    check.template operator()<T>({.m = 70, .n = 72, .k = 40});
    check.template operator()<T>({.m = 9, .n = 3, .k = 131, .gap = 1, .offset = 1, .accumulate = true});
    check_product<T>({.m = 3, .n = 4, .k = 0, .a_along_k = false, .row_sums = true});
    // A product of few rows that are contiguous along k would take the gemv kernel.
    check_product<T>({.m = 1, .n = 8, .k = 64, .b_along_k = true, .row_sums = true});
  });
}

TEST_CASE("GEMM: split products can follow one another, in any order of their blocks") {
  const Product p{.m = 70, .n = 70, .k = 96, .a_along_k = false, .row_sums = true};
  const Operands o(p);
  check_product<float>(p, o, [](const GemmArgs& g) {
    for (const std::int64_t splits : {2, 12, 3}) gpu::launch_gemm<float>({}, g, {false, splits});
  });
}
