#include "tapestry/autograd/ops/sort.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;
using tapestry::test::Outputs;

namespace {

std::int64_t dim(const OpCase& c) { return c.integer("dim", -1); }
bool keepdim(const OpCase& c) { return c.flag("keepdim", false); }

struct Threads {
  explicit Threads(int n) : before(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

// The positions that sort a row, from std::stable_sort. NaN is greatest.
std::vector<std::int64_t> expected_order(const Tensor& row, bool descending) {
  const Tensor x = row.to(DType::f64).contiguous();
  const double* const v = x.data<double>();
  const auto less = [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
  std::vector<std::int64_t> order(static_cast<std::size_t>(x.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return descending ? less(v[b], v[a]) : less(v[a], v[b]);
  });
  return order;
}

// Random numbers of which many are equal, with NaN, infinities and both zeros.
Tensor awkward(std::int64_t n, DType dtype) {
  const Tensor x = randint(-40, 40, {n}).to(DType::f64);
  double* const v = x.data<double>();
  for (std::int64_t i = 0; i < n; ++i) {
    if (v[i] == 7) v[i] = std::nan("");
    if (v[i] == 8) v[i] = -0.0;
    if (v[i] == 9) v[i] = i % 2 ? INFINITY : -INFINITY;
  }
  return x.to(dtype);
}

}  // namespace

GOLDEN_OP("sort", "sort", [](const OpCase& c) { return sort(c[0], dim(c), c.flag("descending", false)); });
GOLDEN_OP("argsort", "sort",
          [](const OpCase& c) { return argsort(c[0], dim(c), c.flag("descending", false)); });
GOLDEN_OP("topk", "sort",
          [](const OpCase& c) { return topk(c[0], c.integer("k"), dim(c), c.flag("largest", true)); });
GOLDEN_OP("kthvalue", "sort",
          [](const OpCase& c) { return kthvalue(c[0], c.integer("k"), dim(c), keepdim(c)); });
GOLDEN_OP("median", "sort", [](const OpCase& c) { return median(c[0], dim(c), keepdim(c)); });
GOLDEN_OP("median/all", "sort", [](const OpCase& c) { return median(c[0]); });
GOLDEN_OP("mode", "sort", [](const OpCase& c) { return c[0].mode(dim(c), keepdim(c)); });
BAD_INPUT("mode", "is empty", [] { zeros({3, 0}).mode(); });
GOLDEN_OP("unique_consecutive", "sort", [](const OpCase& c) {
  const Unique u = c[0].unique_consecutive({.return_inverse = true, .return_counts = true});
  return std::vector<Tensor>{u.values, u.inverse, u.counts};
});
BAD_INPUT("unique_consecutive", "undefined", [] { unique_consecutive(Tensor()); });
GOLDEN_OP("quantile", "sort", [](const OpCase& c) {
  return quantile(c[0], c.real("q"), c.maybe_integer("dim"), keepdim(c), c.text("interpolation", "linear"));
});
GOLDEN_OP("quantile/list", "sort", [](const OpCase& c) {
  return quantile(c[0], tensor(c.reals("q"), TensorOptions(DType::f64, kCPU)), c.maybe_integer("dim"),
                  keepdim(c), c.text("interpolation", "linear"));
});
GOLDEN_OP("nanquantile", "sort", [](const OpCase& c) {
  return c[0].nanquantile(c.real("q"), c.maybe_integer("dim"), keepdim(c), c.text("interpolation", "linear"));
});
GOLDEN_OP("nanquantile/list", "sort", [](const OpCase& c) {
  return c[0].nanquantile(tensor(c.reals("q"), TensorOptions(DType::f64, kCPU)), c.maybe_integer("dim"),
                          keepdim(c), c.text("interpolation", "linear"));
});
GOLDEN_OP("unique/dim", "sort", [](const OpCase& c) {
  const Unique u = c[0].unique({.return_inverse = true, .return_counts = true, .dim = c.integer("dim")});
  return Outputs{u.values, u.inverse, u.counts};
});
GOLDEN_OP("unique_consecutive/dim", "sort", [](const OpCase& c) {
  const Unique u =
      c[0].unique_consecutive({.return_inverse = true, .return_counts = true, .dim = c.integer("dim")});
  return Outputs{u.values, u.inverse, u.counts};
});
GOLDEN_OP("unique", "sort", [](const OpCase& c) {
  const Unique u = unique(c[0], {.return_inverse = true, .return_counts = true});
  return Outputs{u.values, u.inverse, u.counts};
});

BAD_INPUT("sort", "dimension 2", [] { zeros({2, 3}).sort(2); });
BAD_INPUT("sort", "undefined", [] { Tensor().sort(); });
BAD_INPUT("argsort", "dimension -3", [] { zeros({2, 3}).argsort(-3); });
BAD_INPUT("topk", "k is 4, but dimension 1 of shape [2, 3] has 3 elements", [] { zeros({2, 3}).topk(4); });
BAD_INPUT("topk", "k is -1", [] { zeros({2, 3}).topk(-1); });
BAD_INPUT("topk", "bool", [] { zeros({3}, kBool).topk(1); });
BAD_INPUT("topk", "0-d", [] { zeros({}).topk(0); });
BAD_INPUT("kthvalue", "k is 0", [] { zeros({2, 3}).kthvalue(0); });
BAD_INPUT("kthvalue", "give k in [1, 3]", [] { zeros({2, 3}).kthvalue(4); });
BAD_INPUT("median", "is empty", [] { zeros({0, 3}).median(0); });
BAD_INPUT("median", "has no median", [] { zeros({0}, kInt64).median(); });
BAD_INPUT("quantile", "q is 1.5", [] { zeros({3}).quantile(1.5); });
BAD_INPUT("quantile", "q is nan", [] { zeros({3}).quantile(std::nan("")); });
BAD_INPUT("quantile", "no elements", [] { zeros({0}).quantile(0.5); });
BAD_INPUT("quantile", "int64", [] { arange(3).quantile(0.5); });
BAD_INPUT("quantile", "interpolation is \"cubic\"", [] { quantile(zeros({3}), 0.5, {}, false, "cubic"); });
BAD_INPUT("quantile", "shape [1, 2]", [] { quantile(zeros({3}), zeros({1, 2})); });
BAD_INPUT("nanquantile", "[nanquantile] q is -0.5", [] { zeros({3}).nanquantile(-0.5); });
BAD_INPUT("nanquantile", "[nanquantile] there are no elements", [] { zeros({0}).nanquantile(0.5); });
BAD_INPUT("nanquantile", "int64", [] { arange(3).nanquantile(0.5); });
BAD_INPUT("unique", "undefined", [] { unique(Tensor()); });
BAD_INPUT("unique", "dimension 2", [] { unique(zeros({2, 3}), {.dim = 2}); });
BAD_INPUT("unique", "0-d", [] { unique(zeros({}), {.dim = 0}); });
BAD_INPUT("unique", "slices along dimension 1 of shape [0, 3] are empty", [] {
  unique(zeros({0, 3}), {.dim = 1});
});
BAD_INPUT("unique_consecutive", "slices along dimension 0 of shape [0, 0] are empty", [] {
  unique_consecutive(zeros({0, 0}), {.dim = 0});
});

TEST_CASE("long rows of every dtype are sorted as std::stable_sort sorts them, for any number of threads") {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool})
    for (const std::int64_t n : {300, 3000, 70001})
      for (const bool descending : {false, true}) {
        if (n > 3000 && dtype != kFloat32 && dtype != kInt64) continue;
        manual_seed(static_cast<std::uint64_t>(n));
        const Tensor x = is_floating(dtype) ? awkward(n, dtype) : randint(0, 90, {n}).to(dtype);
        const std::vector<std::int64_t> want = expected_order(x, descending);
        for (const int count : {1, 2, 3}) {
          const Threads threads(count);
          CAPTURE(dtype_name(dtype), n, descending, count);
          const auto [values, indices] = x.sort(0, descending);
          CHECK(std::equal(want.begin(), want.end(), indices.data<std::int64_t>()));
          // Compares bytes, so that signs of zeros and NaNs are those of the elements.
          const Tensor picked = x.index_select(0, indices);
          CHECK(std::memcmp(values.raw_data(), picked.raw_data(), picked.nbytes()) == 0);
        }
      }
}

TEST_CASE("64-bit integers are sorted by all their bits") {
  manual_seed(4);
  const Tensor x =
      randint(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), {5000});
  const auto values = x.sort().first;
  std::vector<std::int64_t> want(x.data<std::int64_t>(), x.data<std::int64_t>() + x.numel());
  std::sort(want.begin(), want.end());
  CHECK(std::equal(want.begin(), want.end(), values.data<std::int64_t>()));
}

TEST_CASE("topk, kthvalue and median agree with sort, for any k, row length and number of threads") {
  for (const Shape& sizes : {Shape{70001}, Shape{3, 5000}, Shape{40, 33}}) {
    manual_seed(5);
    const Tensor x = awkward(sizes.numel(), kFloat32).view(sizes);
    const std::int64_t n = sizes.back();
    for (const bool largest : {false, true}) {
      const auto [values, indices] = x.sort(-1, largest);
      for (const std::int64_t k : {std::int64_t{1}, std::int64_t{2}, n / 50 + 1, n / 3, n})
        for (const int count : {1, 3}) {
          const Threads threads(count);
          CAPTURE(sizes.str(), largest, k, count);
          const auto [top, at] = x.topk(k, -1, largest);
          CHECK(equal(at, indices.narrow(-1, 0, k).contiguous()));
          CHECK(allclose(top, values.narrow(-1, 0, k), 0, 0, true));
          if (largest) continue;
          const auto [kth, kth_at] = x.kthvalue(k);
          CHECK(equal(kth_at, indices.select(-1, k - 1).contiguous()));
        }
    }
    const Tensor numbers = where(isnan(x), zeros({}), x);
    const auto [values, at] = numbers.median(-1);
    CHECK(equal(at, numbers.sort(-1).second.select(-1, (n - 1) / 2).contiguous()));
  }
}

TEST_CASE("the median of a row with NaN is its first NaN") {
  const double nan = std::nan("");
  const auto [values, at] = tensor({{1, 2, nan, 0, nan}, {1, 2, 3, 4, 5}}).median(1);
  CHECK(std::isnan(values[0].item()));
  CHECK(at[0].item<std::int64_t>() == 2);
  CHECK(values[1].item() == 3);
}

TEST_CASE("the gradient of sort along a middle dimension goes to the elements' old places") {
  manual_seed(6);
  const Tensor x = randn({3, 5, 4}, kFloat64).set_requires_grad();
  const Tensor weights = randn({3, 5, 4}, kFloat64);
  const auto [values, indices] = x.sort(1, true);
  (values * weights).sum().backward();
  for (std::int64_t a = 0; a < 3; ++a)
    for (std::int64_t b = 0; b < 5; ++b)
      for (std::int64_t c = 0; c < 4; ++c) {
        const auto from = indices[a][b][c].item<std::int64_t>();
        CHECK(x.grad()[a][from][c].item() == weights[a][b][c].item());
      }
}

TEST_CASE("quantiles of infinities are infinities, not NaN") {
  const Tensor x = tensor({-INFINITY, -INFINITY, 1.0, INFINITY, INFINITY});
  CHECK(x.quantile(0).item() == -INFINITY);
  CHECK(x.quantile(0.25).item() == -INFINITY);
  CHECK(x.quantile(0.5).item() == 1);
  CHECK(x.quantile(1).item() == INFINITY);
}

TEST_CASE("quantile as a method takes several q and an interpolation") {
  const Tensor x = tensor({0.0, 1.0, 5.0});
  CHECK(equal(x.quantile(tensor({0.0, 0.25, 1.0})), tensor({0.0, 0.5, 5.0})));
  CHECK(x.quantile(0.25, {}, false, "lower").item() == 0);
  CHECK(x.quantile(0.25, {}, false, "higher").item() == 1);
  CHECK(x.quantile(tensor({0.5}), 0, true).sizes() == Shape{1, 1});
}

TEST_CASE("the last number of nanquantile may be infinite") {
  const Tensor x = tensor({INFINITY, -INFINITY, std::nan("")});
  CHECK(x.nanquantile(0).item() == -INFINITY);
  CHECK(x.nanquantile(1).item() == INFINITY);
}

TEST_CASE("unique slices restore the tensor, and a slice with NaN equals none") {
  manual_seed(8);
  const Tensor x = randint(0, 3, {2000, 2, 2});
  const Unique u = unique(x, {.return_inverse = true, .return_counts = true, .dim = 0});
  CHECK(u.values.size(0) == 81);
  CHECK(equal(u.values.index_select(0, u.inverse), x));
  CHECK(u.counts.sum().item<std::int64_t>() == 2000);
  CHECK(!unique(x, {.dim = 1}).inverse.defined());
  const Tensor holes = tensor({{1.0, NAN}, {1.0, NAN}, {1.0, 0.0}, {1.0, 0.0}});
  const Unique rows = unique(holes, {.return_inverse = true, .return_counts = true, .dim = 0});
  CHECK(equal(rows.counts, tensor({2, 1, 1})));
  CHECK(equal(rows.inverse, tensor({1, 2, 0, 0})));
  CHECK(unique_consecutive(holes, {.dim = 0}).values.size(0) == 3);
}

TEST_CASE("unique restores the tensor from its values and inverse indices") {
  manual_seed(7);
  const Tensor x = randint(-500, 500, {40, 50});
  const Unique u = unique(x, {.return_inverse = true, .return_counts = true});
  CHECK(equal(u.values.index_select(0, u.inverse.reshape({-1})).reshape({40, 50}), x));
  CHECK(u.counts.sum().item<std::int64_t>() == 2000);
  CHECK(lt(u.values.narrow(0, 0, u.values.numel() - 1), u.values.narrow(0, 1, u.values.numel() - 1))
            .all()
            .item<bool>());
  CHECK(!unique(x).inverse.defined());
  CHECK(!unique(x).counts.defined());
}
