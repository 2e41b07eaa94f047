// unique() without the inverse sorts integers without their positions. The values must be the same.
#include <limits>

#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tapestry/kernels/ops/sort.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("unique of integers has the same values and counts with and without the inverse") {
  manual_seed(5);
  const int before = get_num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const std::int64_t n :
         {1, 2, 511, 512, 1023, 1024, 5000, 70001})  // radix sort begins at 512 or 1024
      for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean}) {
        CAPTURE(threads, n, dtype);
        const bool small = dtype == DType::u8 || dtype == DType::boolean;
        Tensor x = randint(small ? 0 : -90000, small ? 256 : 90000, {n}).to(dtype);
        const auto at = [&](std::int64_t i) { return x.narrow(0, i % n, 1); };
        if (dtype == DType::i64)
          at(3).fill_(std::numeric_limits<std::int64_t>::min()),
              at(n / 2).fill_(std::numeric_limits<std::int64_t>::max());
        if (dtype == DType::i32)
          at(3).fill_(std::numeric_limits<std::int32_t>::min()),
              at(n / 2).fill_(std::numeric_limits<std::int32_t>::max());
        const Unique whole = unique(x, {.return_inverse = true, .return_counts = true});
        const Unique alone = unique(x, {.return_counts = true});
        CHECK(equal(alone.values, whole.values));
        CHECK(equal(alone.counts, whole.counts));
      }
  }
  set_num_threads(before);
}

TEST_CASE(
    "the sort kernel of integers without indices gives the sorted values in both orders, and the first k") {
  manual_seed(6);
  const Tensor x = randint(-50, 50, {3, 2000});
  for (const bool descending : {false, true})
    for (const std::int64_t k : {2000, 7}) {
      CAPTURE(descending, k);
      const Tensor want = sort(x, 1, descending).first.narrow(1, 0, k).contiguous();
      const Tensor got = zeros({3, k}, DType::i64);
      kernels::sort(
          kCPU, DType::i64,
          {.rows = 3, .n = 2000, .k = k, .descending = descending, .x = x, .values = got, .indices = {}});
      CHECK(equal(got, want));
    }
}
