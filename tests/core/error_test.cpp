#include "tapestry/core/error.h"

#include <cstdint>
#include <limits>
#include <string>

#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("concat formats pieces of every kind") {
  const Shape shape{2, 3};
  const std::string text = "text";
  CHECK(concat({"a ", text, " ", std::string_view("view"), " ", 1, " ", std::int64_t{-5}, " ", 2.5, " ",
                shape, " ", kBFloat16, " ", Device("cuda:3")}) ==
        "a text view 1 -5 2.5 [2, 3] bfloat16 cuda:3");
  CHECK(concat({}).empty());
  CHECK(concat({std::numeric_limits<std::int64_t>::min()}) == "-9223372036854775808");
  CHECK(concat({std::numeric_limits<std::uint64_t>::max()}) == "18446744073709551615");
  CHECK(concat({0.1}) == "0.1");
  CHECK(concat({1e-300}) == "1e-300");
  CHECK(concat({std::numeric_limits<double>::infinity()}) == "inf");
}

TEST_CASE("check throws the requested type, and only on failure") {
  CHECK_NOTHROW(check(true, "never"));
  CHECK_THROWS_AS(check(false, "x"), ValueError);
  CHECK_THROWS_AS(check<IndexError>(false, "x"), IndexError);
  CHECK_THROWS_WITH(check<TypeError>(false, "[op] got ", 3, " of ", kInt32, "; do this"),
                    "[op] got 3 of int32; do this");
  CHECK_THROWS_AS(fail<AutogradError>("x"), Error);
  CHECK_THROWS_AS(fail<OutOfMemoryError>("x"), std::runtime_error);
}
