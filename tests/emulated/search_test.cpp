// Search and count kernels must give the CPU's results.
#include "tapestry/kernels/cuda/search.cuh"

#include <algorithm>
#include <vector>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

TEST_CASE("search kernels: one row for all values, a row each, and a sorter") {
  for (const std::int64_t n : {0, 1, 2, 37})
    for (const bool rows : {false, true})
      for (const bool right : {false, true})
        for (const bool sorter : {false, true}) {
          CAPTURE(n, rows, right, sorter);
          const std::int64_t count = 600, per_row = rows ? 200 : 0;
          Values sequence = numbers(3 * n, 1, 1);
          std::vector<std::int64_t> order(sequence.size());
          for (std::int64_t r = 0; r < 3; ++r) {
            const auto begin = sequence.begin() + r * n;
            std::sort(begin, begin + n);
            if (sorter) std::reverse(begin, begin + n);
            for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(r * n + i)] = n - 1 - i;
          }
          Values values = numbers(count, 2, 1);
          values[0] = kNaN, values[1] = kInfinity;
          const Block<float> sorted(sequence), x(values);
          const Block<std::int64_t> index(order), want(values.size()), got(values.size());
          const ConstArray by = sorter ? ConstArray(index.data()) : ConstArray();
          kernels::searchsorted(kCPU, DType::f32,
                                {count, per_row, n, right, sorted.data(), by, x.data(), want.data()});
          in_each_order([&] {
            gpu::launch_searchsorted<float>(
                {}, {count, per_row, n, right, sorted.data(), by, x.data(), got.data()});
            CHECK(std::equal(want.data(), want.data() + count, got.data()));
          });
        }
}

TEST_CASE("search kernels: counts of equal and of different integers") {
  for (const std::int64_t bins : {1, 7, 1000}) {
    std::vector<std::int64_t> x(900);
    Random random(3);
    for (std::int64_t& v : x) v = static_cast<std::int64_t>(random() >> 8) % bins;
    const Block<std::int64_t> in(x), want(static_cast<std::size_t>(bins)), got(want.size());
    kernels::bincount(kCPU, DType::i64, {900, bins, in.data(), want.data()});
    gpu::launch_bincount({}, {900, bins, in.data(), got.data()});
    CHECK(std::equal(want.data(), want.data() + bins, got.data()));
  }
}
