#include "tapestry/autograd/ops/search.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

SearchsortedOptions options(const OpCase& c) {
  SearchsortedOptions o{
      .out_int32 = c.flag("out_int32", false), .right = c.flag("right", false), .sorter = c[2]};
  if (c.has("side")) o.side = c.text("side");
  return o;
}

}  // namespace

GOLDEN_OP("searchsorted", "search", [](const OpCase& c) { return searchsorted(c[0], c[1], options(c)); });
GOLDEN_OP("bucketize", "search",
          [](const OpCase& c) { return bucketize(c[0], c[1], false, c.flag("right")); });
GOLDEN_OP("bincount", "search",
          [](const OpCase& c) { return bincount(c[0], c[1], c.integer("minlength", 0)); });

BAD_INPUT("searchsorted", "0-d", [] { searchsorted(zeros({}), zeros({2})); });
BAD_INPUT("searchsorted", "shape [2, 3], the values [3, 2]", [] {
  searchsorted(zeros({2, 3}), zeros({3, 2}));
});
BAD_INPUT("searchsorted", "side is \"middle\"",
          [] { searchsorted(zeros({3}), zeros({2}), {.side = "middle"}); });
BAD_INPUT("searchsorted", "right is true",
          [] { searchsorted(zeros({3}), zeros({2}), {.right = true, .side = "left"}); });
BAD_INPUT("searchsorted", "sorter has indices from 0 to 3", [] {
  searchsorted(zeros({3}), zeros({2}), {.sorter = tensor({0, 3, 1})});
});
BAD_INPUT("searchsorted", "sorter is float32",
          [] { searchsorted(zeros({3}), zeros({2}), {.sorter = zeros({3})}); });
BAD_INPUT("searchsorted", "sorter has shape [2]", [] {
  searchsorted(zeros({3}), zeros({2}), {.sorter = tensor({0, 1})});
});
BAD_INPUT("searchsorted", "bool", [] { searchsorted(zeros({3}, kBool), zeros({2})); });
BAD_INPUT("bucketize", "1-d list", [] { bucketize(zeros({3}), zeros({2, 2})); });
BAD_INPUT("bucketize", "bool", [] { bucketize(zeros({3}, kBool), zeros({2})); });
BAD_INPUT("bincount", "the input has -1", [] { bincount(tensor({1, -1})); });
BAD_INPUT("bincount", "shape [2, 2]", [] { bincount(zeros({2, 2}, kInt64)); });
BAD_INPUT("bincount", "float32", [] { bincount(zeros({2})); });
BAD_INPUT("bincount", "the input has 1152921504606846976, which needs more bins",
          [] { bincount(full({1}, std::int64_t{1} << 60, kInt64)); });
BAD_INPUT("bincount", "no more bins than fit", [] { bincount(arange(2), {}, std::int64_t{1} << 60); });
BAD_INPUT("bincount", "minlength is -1", [] { bincount(arange(2), {}, -1); });
BAD_INPUT("bincount", "weights have shape [3]", [] { bincount(arange(2), zeros({3})); });

TEST_CASE("searchsorted finds the place of a number in the sequence's dtype") {
  const Tensor x = tensor({0.1, 0.2, 0.3}, kFloat64);
  CHECK(searchsorted(x, 0.2).item<std::int64_t>() == 1);
  CHECK(searchsorted(x, 0.2, {.right = true}).item<std::int64_t>() == 2);
  CHECK(searchsorted(arange(10), 4).item<std::int64_t>() == 4);
  CHECK(searchsorted(arange(10), 4.5).item<std::int64_t>() == 5);
}

TEST_CASE("searchsorted agrees with std::lower_bound and std::upper_bound on a long sequence") {
  manual_seed(1);
  const Tensor sequence = randint(0, 5000, {20000}).sort().first, values = randint(-10, 5010, {3000});
  const Tensor left = searchsorted(sequence, values),
               right = searchsorted(sequence, values, {.side = "right"});
  const std::int64_t *const begin = sequence.data<std::int64_t>(), *const end = begin + sequence.numel();
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::int64_t v = values.data<std::int64_t>()[i];
    bad += left.data<std::int64_t>()[i] != std::lower_bound(begin, end, v) - begin ||
           right.data<std::int64_t>()[i] != std::upper_bound(begin, end, v) - begin;
  }
  CHECK(bad == 0);
}

TEST_CASE("histc counts as PyTorch does") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1.0, 2.0, 1.0, 0.0, 3.0, -1.0, 2.999, nan, 4.0, 0.75, 2.25});
  CHECK(equal(histc(tensor({1.0, 2.0, 1.0}), 4, 0, 3), tensor({0.0, 2.0, 1.0, 0.0})));
  CHECK(equal(histc(x, 4, 0, 3), tensor({1.0, 3.0, 1.0, 3.0})));
  CHECK(equal(histc(x.masked_select(x.eq(x)), 5), tensor({1.0, 2.0, 2.0, 3.0, 2.0})));
  CHECK(equal(histc(full({2}, 2.0), 3), tensor({0.0, 2.0, 0.0})));
  CHECK(equal(histc(zeros({0}), 3), zeros({3})));
  CHECK(histc(ones({2, 3}, kFloat64).t(), 7, 0, 2).sum().item() == 6);
  CHECK(histc(ones({2}, kBFloat16)).dtype() == kBFloat16);
  CHECK(histc(ones({2})).sizes() == Shape{100});
  CHECK_THROWS_WITH(histc(x, 0), ContainsSubstring("bins is 0"));
  CHECK_THROWS_WITH(histc(x, 3, 2, 1), ContainsSubstring("the range is 2 to 1"));
  CHECK_THROWS_WITH(histc(x, 3), ContainsSubstring("finite"));  // NaN is the largest element
  CHECK_THROWS_AS(histc(arange(3)), TypeError);
}
