// The kernels that sample categories must give the CPU's bits.
#include "tapestry/kernels/cuda/multinomial.cuh"

#include <algorithm>
#include <vector>

#include "tapestry/kernels/ops/scan.h"
#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

TEST_CASE("multinomial kernels: integer weights, draws and scores") {
  constexpr std::int64_t rows = 3, n = 700, k = 300;
  Values weights = magnitudes(numbers(rows * n, 1, 1));
  weights[5] = 1e-30;
  std::vector<float> most(rows);
  for (std::size_t row = 0; row < rows; ++row)
    most[row] =
        static_cast<float>(*std::max_element(weights.begin() + static_cast<std::ptrdiff_t>(row * n),
                                             weights.begin() + static_cast<std::ptrdiff_t>((row + 1) * n)));
  const Block<float> p(weights), largest(most);
  const Block<std::int64_t> want(rows * n), got(rows * n), sums(rows * n), drawn(rows * k),
      want_drawn(rows * k);
  const PhiloxRange range{99, 7};
  const auto equal_blocks = [](const Block<std::int64_t>& a, const Block<std::int64_t>& b) {
    return std::equal(a.data(), a.data() + a.size(), b.data());
  };
  in_each_order([&] {
    kernels::multinomial_weights(kCPU, DType::f32, {rows, n, p.data(), largest.data(), want.data()});
    gpu::launch_multinomial_weights({}, {rows, n, p.data(), largest.data(), got.data()});
    CHECK(equal_blocks(got, want));
    CHECK(want[5] == 1);

    kernels::cumsum(kCPU, DType::i64, {rows, n, false, want.data(), sums.data()});
    kernels::multinomial_draw(kCPU, DType::i64, {rows, n, k, range, sums.data(), want_drawn.data()});
    gpu::launch_multinomial_draw({}, {rows, n, k, range, sums.data(), drawn.data()});
    CHECK(equal_blocks(drawn, want_drawn));

    kernels::multinomial_scores(kCPU, DType::f32, {rows * n, range, p.data(), want.data()});
    gpu::launch_multinomial_scores({}, {rows * n, range, p.data(), got.data()});
    CHECK(equal_blocks(got, want));
  });
}

TEST_CASE("draw_category: categories of weight 0 are never drawn, also at the ends of their neighbours") {
  const std::int64_t cumulative[] = {0, 3, 3, 5};  // the weights are 0, 3, 0 and 2
  const std::uint64_t fifth = ~std::uint64_t{0} / 5;
  CHECK(draw_category(cumulative, 4, 0) == 1);
  CHECK(draw_category(cumulative, 4, 3 * fifth) == 1);
  CHECK(draw_category(cumulative, 4, 3 * fifth + 1) == 3);  // gives exactly 3 of 5
  CHECK(draw_category(cumulative, 4, ~std::uint64_t{0}) == 3);
}
