// Sizes for which there is no memory are an error before anything is computed.
#include <cstdint>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("indices of a triangle that does not fit into memory are an error at once") {
  const std::int64_t side = std::int64_t{1} << 31;
  CHECK_THROWS_AS(tril_indices(side, side), Error);
  CHECK_THROWS_AS(triu_indices(side, side), Error);
  CHECK_THROWS_AS(tril_indices(std::int64_t{1} << 61, 1), Error);
  CHECK(triu_indices(std::int64_t{1} << 40, 3).sizes() == Shape{2, 6});  // quick, although it has many rows
}

TEST_CASE("indices of triangles of all small shapes and offsets") {
  for (std::int64_t rows = 0; rows < 5; ++rows)
    for (std::int64_t cols = 0; cols < 5; ++cols)
      for (std::int64_t offset = -7; offset <= 7; ++offset)
        for (const bool lower : {true, false}) {
          std::vector<std::int64_t> expected, columns;
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < cols; ++j)
              if (lower ? j <= i + offset : j >= i + offset) expected.push_back(i), columns.push_back(j);
          const auto count = static_cast<std::int64_t>(columns.size());
          expected.insert(expected.end(), columns.begin(), columns.end());
          CAPTURE(rows, cols, offset, lower);
          const Tensor got = lower ? tril_indices(rows, cols, offset) : triu_indices(rows, cols, offset);
          REQUIRE(got.sizes() == Shape{2, count});
          if (count > 0) CHECK(got.eq(tensor(expected, Shape{2, count})).all().item<bool>());
        }
}

TEST_CASE("reductions of more elements than memory could hold are errors that name the reduction") {
  const Tensor huge = expand(randn({1}), {std::int64_t{1} << 62});
  CHECK_THROWS_AS(huge.sum(), OutOfMemoryError);
  CHECK_THROWS_AS(huge.mean(), OutOfMemoryError);
  CHECK_THROWS_AS(huge.amax(), OutOfMemoryError);
  CHECK_THROWS_AS(huge.clone(), Error);
}
