#include "tapestry/core/shape.h"

#include <cstdint>
#include <limits>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("shapes hold up to eight values") {
  const Shape s{2, 3, 4};
  CHECK(s.size() == 3);
  CHECK(s.numel() == 24);
  CHECK(s.back() == 4);
  CHECK(s.str() == "[2, 3, 4]");
  CHECK(Shape{}.str() == "[]");
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape(7) == Shape{7});
  CHECK(Shape{1, 2} != Shape{1, 2, 3});
  CHECK(Shape(std::vector<std::int64_t>{5, 6}) == Shape{5, 6});
  CHECK(Shape::filled(3, -1) == Shape{-1, -1, -1});
  CHECK((Shape{1, 2, 3, 4, 5, 6, 7, 8}).size() == kMaxDims);
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}),
                    ContainsSubstring("[Shape] 9 values") && ContainsSubstring("8"));
  CHECK_THROWS_AS(Shape::filled(9, 1), ValueError);
  CHECK_THROWS_AS(Shape::filled(-1, 1), ValueError);
}

TEST_CASE("copies are independent and keep only what is used") {
  Shape a{1, 2, 3};
  Shape b = a;
  b[1] = 9;
  CHECK(a == Shape{1, 2, 3});
  a = Shape{4};
  CHECK(a == Shape{4});
  a = b;
  CHECK(a == Shape{1, 9, 3});
}

TEST_CASE("values are inserted and erased") {
  Shape s{1, 3};
  s.insert(1, 2);
  s.insert(0, 0);
  s.push_back(4);
  CHECK(s == Shape{0, 1, 2, 3, 4});
  s.erase(0);
  s.erase(3);
  s.erase(1);
  CHECK(s == Shape{1, 3});
  CHECK_THROWS_AS(s.erase(2), IndexError);
  CHECK_THROWS_AS(s.erase(-1), IndexError);
  CHECK_THROWS_AS(s.insert(3, 0), IndexError);
  Shape full = Shape::filled(kMaxDims, 1);
  CHECK_THROWS_WITH(full.push_back(2), ContainsSubstring("at most 8 dimensions"));
  CHECK_THROWS_AS(Shape{}.erase(0), IndexError);
}

TEST_CASE("strides are row-major or channels-last") {
  CHECK(contiguous_strides({2, 3, 4}) == Shape{12, 4, 1});
  CHECK(contiguous_strides({}) == Shape{});
  CHECK(contiguous_strides({2, 0, 4}) == Shape{4, 4, 1});
  CHECK(channels_last_strides({2, 3, 4, 5}) == Shape{60, 1, 15, 3});
  CHECK(channels_last_strides({2, 0, 4, 5}) == Shape{20, 1, 5, 1});
  CHECK_THROWS_WITH(channels_last_strides({2, 3, 4}),
                    ContainsSubstring("[2, 3, 4]") && ContainsSubstring("four"));
}

TEST_CASE("broadcasting follows NumPy") {
  CHECK(broadcast_shapes("add", {2, 3}, {3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {3}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_shapes("add", {}, {2}) == Shape{2});
  CHECK(broadcast_shapes("add", {}, {}) == Shape{});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK(broadcast_shapes("add", {0, 1}, {1, 5}) == Shape{0, 5});
  CHECK_THROWS_WITH(
      broadcast_shapes("mul", {2, 3}, {4}),
      ContainsSubstring("[mul] shapes [2, 3] and [4]") && ContainsSubstring("3 against 4 in dimension -1"));
  CHECK_THROWS_WITH(broadcast_shapes("mul", {3, 4}, {5, 2, 4}),
                    ContainsSubstring("3 against 2 in dimension -2"));
  CHECK_THROWS_AS(broadcast_shapes("mul", {0}, {2}), ValueError);
}

TEST_CASE("dimensions wrap from the end") {
  CHECK(wrap_dim("sum", 0, 3) == 0);
  CHECK(wrap_dim("sum", -1, 3) == 2);
  CHECK(wrap_dim("sum", -3, 3) == 0);
  CHECK(wrap_dim("sum", 0, 0) == 0);
  CHECK(wrap_dim("sum", -1, 0) == 0);
  CHECK_THROWS_WITH(wrap_dim("sum", 3, 3),
                    ContainsSubstring("[sum] dimension 3") && ContainsSubstring("-3 to 2"));
  CHECK_THROWS_AS(wrap_dim("sum", -4, 3), IndexError);
  CHECK_THROWS_AS(wrap_dim("sum", 1, 0), IndexError);
  CHECK_THROWS_AS(wrap_dim("sum", std::numeric_limits<std::int64_t>::min(), 3), IndexError);
}

TEST_CASE("numbers of elements are checked") {
  const std::int64_t big = std::int64_t{1} << 31;
  CHECK(checked_numel("empty", {2, 3}) == 6);
  CHECK(checked_numel("empty", {}) == 1);
  CHECK(checked_numel("empty", {2, 0, 3}) == 0);
  CHECK(checked_numel("empty", {big, big}) == std::int64_t{1} << 62);
  CHECK_THROWS_WITH(checked_numel("empty", {2, -3}),
                    ContainsSubstring("[empty] size -3 of dimension 1 in [2, -3]"));
  CHECK_THROWS_WITH(checked_numel("empty", {big, big, 2}), ContainsSubstring("more elements than 64 bits"));
  CHECK_THROWS_AS(checked_numel("empty", {0, big, big, 2}), ValueError);
}
