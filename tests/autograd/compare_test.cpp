#include <limits>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("eq", "compare", [](const OpCase& c) { return c[0] == c[1]; });
GOLDEN_OP("ne", "compare", [](const OpCase& c) { return c[0] != c[1]; });
GOLDEN_OP("lt", "compare", [](const OpCase& c) { return c[0] < c[1]; });
GOLDEN_OP("le", "compare", [](const OpCase& c) { return c[0] <= c[1]; });
GOLDEN_OP("gt", "compare", [](const OpCase& c) { return c[0] > c[1]; });
GOLDEN_OP("ge", "compare", [](const OpCase& c) { return c[0] >= c[1]; });
GOLDEN_OP("eq/scalar", "compare", [](const OpCase& c) { return c[0] == c.scalar("other"); });
GOLDEN_OP("ne/scalar", "compare", [](const OpCase& c) { return c[0] != c.scalar("other"); });
GOLDEN_OP("lt/scalar", "compare", [](const OpCase& c) { return c[0] < c.scalar("other"); });
GOLDEN_OP("le/scalar", "compare", [](const OpCase& c) { return c[0] <= c.scalar("other"); });
GOLDEN_OP("gt/scalar", "compare", [](const OpCase& c) { return c[0] > c.scalar("other"); });
GOLDEN_OP("ge/scalar", "compare", [](const OpCase& c) { return c[0] >= c.scalar("other"); });
GOLDEN_OP("isnan", "compare", [](const OpCase& c) { return isnan(c[0]); });
GOLDEN_OP("where", "compare", [](const OpCase& c) { return where(c[0], c[1], c[2]); });
GOLDEN_OP("where/number", "compare", [](const OpCase& c) { return c[1].where(c[0], c.scalar("other")); });
GOLDEN_OP("where/number_first", "compare",
          [](const OpCase& c) { return where(c[0], c.scalar("other"), c[1]); });
GOLDEN_OP("where/numbers", "compare",
          [](const OpCase& c) { return where(c[0], c.scalar("a"), c.scalar("b")); });
GOLDEN_OP("allclose", "compare", [](const OpCase& c) {
  return allclose(c[0], c[1], c.real("rtol", 1e-5), c.real("atol", 1e-8), c.flag("equal_nan", false));
});
GOLDEN_OP("equal", "compare", [](const OpCase& c) { return equal(c[0], c[1]); });

BAD_INPUT("eq", "do not broadcast", [] { (void)(zeros({2}) == zeros({3})); });
BAD_INPUT("ne", "do not broadcast", [] { (void)(zeros({2}) != zeros({3})); });
BAD_INPUT("lt", "do not broadcast", [] { (void)(zeros({2}) < zeros({3})); });
BAD_INPUT("le", "do not broadcast", [] { (void)(zeros({2}) <= zeros({3})); });
BAD_INPUT("gt", "do not broadcast", [] { (void)(zeros({2}) > zeros({3})); });
BAD_INPUT("ge", "undefined tensor", [] { (void)(Tensor() >= zeros({3})); });
BAD_INPUT("isnan", "undefined tensor", [] { isnan(Tensor()); });
BAD_INPUT("where", "the condition is float32", [] { where(zeros({2}), zeros({2}), zeros({2})); });
BAD_INPUT("where", "do not broadcast", [] { where(zeros({2}, kBool), zeros({3}), zeros({3})); });
BAD_INPUT("allclose", "must not be negative", [] { allclose(zeros({2}), zeros({2}), -1); });
BAD_INPUT("isclose", "must not be negative", [] { zeros({2}).isclose(zeros({2}), -1); });
GOLDEN_OP("isclose", "compare", [](const OpCase& c) {
  return c[0].isclose(c[1], c.real("rtol", 1e-5), c.real("atol", 1e-8), c.flag("equal_nan", false));
});
BAD_INPUT("allclose", "do not broadcast", [] { allclose(zeros({2}), zeros({3})); });
BAD_INPUT("equal", "undefined tensor", [] { equal(zeros({2}), Tensor()); });

TEST_CASE("equal is false for tensors of different dtypes") {
  CHECK_FALSE(equal(ones({2}), ones({2}, kFloat64)));
}

TEST_CASE("a number that the tensor's dtype cannot hold is compared by its value") {
  const Tensor x = tensor({0, 44, 255}, kUInt8);
  CHECK(equal(x < 300, tensor(std::vector<bool>{true, true, true})));
  CHECK(equal(x == 300, tensor(std::vector<bool>{false, false, false})));
  CHECK(equal(x > -1, tensor(std::vector<bool>{true, true, true})));
  CHECK(equal(ones({1}, kBool) < 2, tensor(std::vector<bool>{true})));
  CHECK(equal(ones({1}, kInt32) < (std::int64_t{1} << 40), tensor(std::vector<bool>{true})));
}
