#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/philox.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

TensorOptions options(const OpCase& c) {
  TensorOptions o;
  if (c.has("dtype")) o.dtype = c.dtype("dtype");
  return o;
}

template <class T>
std::vector<T> values(const Tensor& t) {
  const Tensor dense = t.contiguous();
  return std::vector<T>(dense.data<T>(), dense.data<T>() + dense.numel());
}

}  // namespace

GOLDEN_OP("full", "creation",
          [](const OpCase& c) { return full(c.dims("sizes"), c.scalar("value"), options(c)); });
GOLDEN_OP("arange", "creation", [](const OpCase& c) {
  return arange(c.scalar("start"), c.scalar("end"), c.scalar("step"), options(c));
});
GOLDEN_OP("linspace", "creation", [](const OpCase& c) {
  return linspace(c.real("start"), c.real("end"), c.integer("steps"), options(c));
});
GOLDEN_OP("eye", "creation", [](const OpCase& c) { return eye(c.integer("n"), options(c)); });
GOLDEN_OP("eye/columns", "creation",
          [](const OpCase& c) { return eye(c.integer("n"), c.integer("m"), options(c)); });
NOT_APPLICABLE("full", strided, "takes no tensor");
NOT_APPLICABLE("arange", strided, "takes no tensor");
NOT_APPLICABLE("linspace", strided, "takes no tensor");
NOT_APPLICABLE("eye", strided, "takes no tensor");
NOT_APPLICABLE("eye", extreme, "its values are 0 and 1");

BAD_INPUT("full", "[full] uint8 cannot hold 300; give a number from 0 to 255",
          [] { full({2}, 300, kUInt8); });
BAD_INPUT("full", "uint8 cannot hold -256", [] { full({2}, -256, kUInt8); });
BAD_INPUT("full", "uint8 cannot hold -0.5", [] { full({2}, -0.5, kUInt8); });
BAD_INPUT("full", "int32 cannot hold 3e+10", [] { full_like(zeros({2}, kInt32), 3e10); });
BAD_INPUT("full", "int64 cannot hold nan", [] { full({2}, std::nan(""), kInt64); });
BAD_INPUT("full", "int64 cannot hold inf", [] { zeros({2}, kInt64).new_full({2}, INFINITY); });
BAD_INPUT("full", "int64 cannot hold 9223372036854775808", [] { full({2}, 0x1p63, kInt64); });
BAD_INPUT("full", "uint16 cannot hold 65536", [] { full({0}, 65536, DType::u16); });
BAD_INPUT("full", "1e+39 is too large for f32", [] { full({2}, 1e39); });
BAD_INPUT("full", "[-1, 2]", [] { full({-1, 2}, 1); });
BAD_INPUT("full", "", [] { full({std::int64_t{1} << 40, std::int64_t{1} << 40}, 1); });
BAD_INPUT("arange", "step is 0", [] { arange(0, 5, 0); });
BAD_INPUT("arange", "step -1 leads away from end 5", [] { arange(0, 5, -1); });
BAD_INPUT("arange", "leads away", [] { arange(1.0, 0.0, 0.1); });
BAD_INPUT("arange", "leads away", [] { arange(0.0, -1e-200, 1e-200); });
BAD_INPUT("arange", "must be finite", [] { arange(0.0, INFINITY); });
BAD_INPUT("arange", "must be finite", [] { arange(0.0, 1.0, NAN); });
BAD_INPUT("arange", "does not take bool", [] { arange(0, 2, 1, kBool); });
BAD_INPUT("linspace", "-1 steps", [] { linspace(0, 1, -1); });
BAD_INPUT("linspace", "does not take int64", [] { linspace(0, 1, 3, kInt64); });
BAD_INPUT("eye", "n is -1", [] { eye(-1); });
BAD_INPUT("eye", "m is -2", [] { eye(3, -2); });
BAD_INPUT("rand", "does not take int64", [] { rand({2}, kInt64); });
BAD_INPUT("rand", "[rand] does not take int64", [] { zeros({2}, kInt64).uniform_(); });
BAD_INPUT("rand", "low <= high", [] { zeros({2}).uniform_(1, 0); });
BAD_INPUT("randn", "does not take int64", [] { randn({2}, kInt64); });
BAD_INPUT("randn", "[randn] does not take int64", [] { zeros({2}, kInt64).normal_(); });
BAD_INPUT("randn", "std -1", [] { zeros({2}).normal_(0, -1); });
BAD_INPUT("randint", "low 3 is not below high 3", [] { randint(3, 3, {2}); });
BAD_INPUT("randint", "uint8 cannot hold all integers from 0 to 256", [] { randint(0, 257, {2}, kUInt8); });
BAD_INPUT("randint", "uint8 cannot hold", [] { randint(-1, 5, {2}, kUInt8); });
BAD_INPUT("randint", "does not take bool", [] { randint(0, 2, {2}, kBool); });
BAD_INPUT("randperm", "n is -2", [] { randperm(-2); });
BAD_INPUT("randperm", "does not take float32", [] { randperm(2, kFloat32); });

OP_TEST("rand", golden, "Philox's words in order, whatever the dtype and number of threads") {
  manual_seed(7);
  const Tensor x = rand({9});
  for (int i = 0; i < 9; ++i)
    CHECK(x.data<float>()[i] == uniform_float(philox(7, static_cast<std::uint64_t>(i / 4)).v[i % 4]));
  manual_seed(7);
  const Tensor d = rand({5}, kFloat64);
  for (int i = 0; i < 5; ++i) {
    const Philox4 words = philox(7, static_cast<std::uint64_t>(i / 2));
    CHECK(d.data<double>()[i] == uniform_double(words.v[2 * (i % 2)], words.v[2 * (i % 2) + 1]));
  }
  // Three counters were used, so the next number must be the first of the fourth counter.
  CHECK(rand({1}).item<float>() == uniform_float(philox(7, 3).v[0]));
  const int threads = get_num_threads();
  manual_seed(3);
  set_num_threads(1);
  const Tensor one = rand({100003});
  manual_seed(3);
  set_num_threads(4);
  const Tensor four = rand({100003});
  set_num_threads(threads);
  CHECK(equal(one, four));
}
OP_TEST("rand", extreme, "never 1, in no dtype; means as they should be") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = rand({40000}, t).to(kFloat64);
    CHECK(x.min().item() >= 0);
    CHECK(x.max().item() < 1);
    CHECK(std::abs(x.mean().item() - 0.5) < 0.01);  // the tolerance is 7 standard deviations of the mean
  }
}
OP_TEST("rand", strided, "uniform_ counts elements in row-major order in any layout") {
  manual_seed(5);
  const Tensor dense = rand({2, 3, 4, 5}) * 4 - 2;
  manual_seed(5);
  const Tensor nhwc = zeros({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  nhwc.uniform_(-2, 2);
  CHECK(nhwc.memory_format() == MemoryFormat::channels_last);
  CHECK(allclose(nhwc, dense, 0, 1e-6));
}
OP_TEST("rand", empty, "no elements, no numbers used") {
  manual_seed(5);
  CHECK(rand({0, 3}).sizes() == Shape{0, 3});
  const Tensor x = rand({1});
  manual_seed(5);
  CHECK(equal(x, rand({1})));
}

OP_TEST("randn", golden, "Box-Muller on Philox's words") {
  manual_seed(11);
  const Tensor x = randn({6}), d = randn({3}, kFloat64);
  for (int i = 0; i < 6; ++i) {
    const Philox4 w = philox(11, static_cast<std::uint64_t>(i / 4));
    const int pair = i % 4 / 2;
    const double u = (w.v[2 * pair] + 1.0) / 4294967296.0, v = w.v[2 * pair + 1] / 4294967296.0;
    const double r = std::sqrt(-2 * std::log(u)), t = 2 * 3.14159265358979323846 * v;
    CHECK(x.data<float>()[i] == Approx(i % 2 ? r * std::sin(t) : r * std::cos(t)).epsilon(1e-6).margin(1e-7));
  }
  for (int i = 0; i < 3; ++i) {
    const Philox4 w = philox(11, static_cast<std::uint64_t>(2 + i / 2));
    const double u = 1 - uniform_double(w.v[0], w.v[1]), v = uniform_double(w.v[2], w.v[3]);
    const double r = std::sqrt(-2 * std::log(u)), t = 2 * 3.14159265358979323846 * v;
    CHECK(d.data<double>()[i] ==
          Approx(i % 2 ? r * std::sin(t) : r * std::cos(t)).epsilon(1e-12).margin(1e-12));
  }
}
OP_TEST("randn", extreme, "finite; moments of the normal distribution") {
  manual_seed(1);
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    // Normal numbers are made in pairs. The count is odd, so only half of the last pair is used.
    const Tensor x = randn({40001}, t).to(kFloat64);
    CHECK(std::abs(x.mean().item()) < 0.035);
    CHECK(std::abs(x.var().item() - 1) < 0.05);
    CHECK(std::abs((x * x * x * x).mean().item() - 3) < 0.4);
    CHECK(x.abs().max().item() < 10);
  }
}
OP_TEST("randn", strided, "normal_ in any layout; mean and deviation") {
  manual_seed(5);
  const Tensor dense = randn({3, 4, 5, 6}) * 0.5 + 3;
  manual_seed(5);
  const Tensor t = zeros({6, 5, 4, 3}).permute({3, 2, 1, 0});
  t.normal_(3, 0.5);
  CHECK(allclose(t, dense, 0, 1e-6));
}
OP_TEST("randn", empty, "no elements") { CHECK(randn({0}).numel() == 0); }

OP_TEST("randint", golden, "the upper half of word times span") {
  manual_seed(2);
  const Tensor x = randint(-5, 1000000, {7});
  for (int i = 0; i < 7; ++i) {
    const Philox4 w = philox(2, static_cast<std::uint64_t>(i / 2));
    const double share = (w.v[2 * (i % 2)] + w.v[2 * (i % 2) + 1] / 4294967296.0) / 4294967296.0;
    CHECK(std::abs(static_cast<double>(x.data<std::int64_t>()[i]) - (-5 + std::floor(share * 1000005))) <= 1);
  }
  for (DType t : {kInt64, kInt32, kUInt8, kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor y = randint(0, 6, {6000}, t).to(kInt64);
    for (int v = 0; v < 6; ++v) CHECK(std::abs((y == v).sum().item() - 1000) < 200);  // 7 standard deviations
  }
}
OP_TEST("randint", extreme, "the whole of i64") {
  const Tensor x =
      randint(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), {1000});
  const double below = (x < 0).sum().item();
  CHECK(below > 350);
  CHECK(below < 650);
}
OP_TEST("randint", empty, "no elements") { CHECK(randint(0, 3, {0, 2}).sizes() == Shape{0, 2}); }
NOT_APPLICABLE("randint", strided, "takes no tensor");

OP_TEST("randperm", golden, "each number once, another order each time") {
  manual_seed(4);
  std::vector<std::int64_t> a = values<std::int64_t>(randperm(1001)),
                            b = values<std::int64_t>(randperm(1001));
  CHECK(a != b);
  manual_seed(4);
  CHECK(a == values<std::int64_t>(randperm(1001)));
  std::sort(a.begin(), a.end());
  for (std::int64_t i = 0; i < 1001; ++i) CHECK(a[static_cast<std::size_t>(i)] == i);
}
OP_TEST("randperm", empty, "none and one") {
  CHECK(randperm(0).numel() == 0);
  CHECK(randperm(1).item<int>() == 0);
}
NOT_APPLICABLE("randperm", strided, "takes no tensor");
NOT_APPLICABLE("randperm", extreme, "its values are 0 to n - 1");

OP_TEST("rand", dtypes, "in [0, 1)") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = rand({500}, t);
    CHECK(x.dtype() == t);
    CHECK(x.min().item() >= 0);
    CHECK(x.max().item() < 1);
    CHECK(x.max().item() > 0.9);
  }
}
OP_TEST("randn", dtypes, "of both signs, few beyond 3") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = randn({500}, t);
    CHECK(x.dtype() == t);
    CHECK(x.min().item() < -1.5);
    CHECK(x.max().item() > 1.5);
    CHECK(x.abs().max().item() < 7);
  }
}
OP_TEST("randint", dtypes, "each number of the range, and no other") {
  for (DType t : {kInt64, kInt32, kUInt8, kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = randint(2, 6, {500}, t);
    CHECK(x.dtype() == t);
    int seen = 0;
    for (int v = 2; v < 6; ++v) seen += x.eq(scalar_tensor(v, t)).to(kInt64).sum().item<int>();
    CHECK(seen == 500);
    CHECK(x.min().item() == 2);
    CHECK(x.max().item() == 5);
  }
}
OP_TEST("randperm", dtypes, "i64") { CHECK(randperm(5).dtype() == kInt64); }

TEST_CASE("factories heed device, dtype and requires_grad") {
  CHECK(zeros({2}).dtype() == kFloat32);
  CHECK(zeros({2}, kInt64).dtype() == kInt64);
  CHECK(ones({2}, TensorOptions().with_grad()).requires_grad());
  CHECK(ones({2}, TensorOptions().with_grad()).is_leaf());
  CHECK(eye(3, TensorOptions().with_grad()).is_leaf());
  CHECK(randn({2}, TensorOptions().with_grad()).requires_grad());
  CHECK_THROWS_AS(arange(3, TensorOptions().with_grad()), TypeError);
  CHECK(full({}, true).dtype() == kBool);
  CHECK(full({}, 2).dtype() == kInt64);
  CHECK(full({}, 2.0).dtype() == kFloat32);
  CHECK(zeros_like(randn({2}), kInt32).dtype() == kInt32);
  CHECK(rand_like(zeros({2, 3}, kFloat64)).dtype() == kFloat64);
  CHECK(empty_like(zeros({2, 3}), TensorOptions().with_grad()).requires_grad());
  CHECK_THROWS_AS(randn_like(zeros({2}, kInt64)), TypeError);
}

TEST_CASE("tensor() takes dtype and shape from nested lists of values, and refuses ragged lists") {
  CHECK(tensor({1.5, 2.5}).dtype() == kFloat32);
  CHECK(tensor({1, 2}).dtype() == kInt64);
  CHECK(tensor(std::vector<bool>{true, false}).dtype() == kBool);
  CHECK(tensor(std::vector<std::uint8_t>{1, 2}).dtype() == kInt64);
  CHECK(tensor({1, 2}, kFloat16).dtype() == kFloat16);
  CHECK(tensor(std::vector<double>{0.1}, kFloat64).item() == 0.1);
  const Tensor m = tensor({{1, 2, 3}, {4, 5, 6}});
  CHECK(m.sizes() == Shape{2, 3});
  CHECK(values<std::int64_t>(m) == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(tensor({{1}, {2}}).sizes() == Shape{2, 1});
  CHECK(tensor({{1.5F, 2.5F}}).dtype() == kFloat32);
  CHECK(tensor({{true, false}}).dtype() == kBool);
  CHECK(tensor({{{1.0, 2.0}}, {{3.0, 4.0}}}).sizes() == Shape{2, 1, 2});
  CHECK(tensor({{{1, 2}}}).dtype() == kInt64);
  CHECK_THROWS_WITH(tensor({{1.0, 2.0}, {3.0}}), ContainsSubstring("a list of 1 beside one of 2"));
  CHECK_THROWS_WITH(tensor(std::vector<float>{1, 2, 3}, {2, 2}),
                    ContainsSubstring("3 values for shape [2, 2]"));
  CHECK(tensor(std::vector<float>{}).sizes() == Shape{0});
}

TEST_CASE("tensor() accepts numbers of several types in one list, and promotes them to one dtype") {
  const int n = 3;
  const std::size_t size = 4;
  const Tensor mixed = tensor({1, 2.5, 0.5F, true, n, size});
  CHECK(mixed.dtype() == kFloat32);
  CHECK(values<float>(mixed) == std::vector<float>{1, 2.5F, 0.5F, 1, 3, 4});
  CHECK(values<float>(tensor({INFINITY, 1.0}))[0] == INFINITY);
  CHECK(tensor({true, 2}).dtype() == kInt64);
  // If all values are integers, an integer that no double can represent must stay exact.
  CHECK(values<std::int64_t>(tensor({(std::int64_t{1} << 53) + 1, 1, true}))[0] ==
        (std::int64_t{1} << 53) + 1);
  CHECK(tensor({0.1F, 0.1}, kFloat64)[1].item() == 0.1);

  CHECK(tensor({{1, 2.5}, {3.0F, 4}}).sizes() == Shape{2, 2});
  CHECK(tensor({{1}, {2.5}}).sizes() == Shape{2, 1});
  CHECK(tensor({{1.0}, {2.0}}).sizes() == Shape{2, 1});
  CHECK(tensor({{{1}}, {{2.5}}}).sizes() == Shape{2, 1, 1});
  CHECK(tensor({{{{1, 2.5}}}}).sizes() == Shape{1, 1, 1, 2});
  CHECK(tensor({{true}, {false}}).dtype() == kBool);
  const std::initializer_list<double> named = {1, 2};
  CHECK(tensor(named, kInt64).dtype() == kInt64);

  CHECK(tensor({}).sizes() == Shape{0});
  CHECK(tensor({}).dtype() == kFloat32);
  CHECK(tensor({{}, {}}).sizes() == Shape{2, 0});
  CHECK_THROWS_WITH(tensor({{}, {1}}), ContainsSubstring("a list of 1 beside one of 0"));
  CHECK_THROWS_WITH(tensor({{1}, 2}), ContainsSubstring("a number beside a list"));
  CHECK_THROWS_WITH(tensor({1, {2}}), ContainsSubstring("a number beside a list"));
  CHECK_THROWS_AS(tensor({{{{{{{{{1, 2.5}}}}}}}}}), ValueError);
}

TEST_CASE("rand, which computes Philox in blocks, gives the numbers of philox(), also across 2^32 counters") {
  for (const std::uint64_t offset :
       {std::uint64_t{0}, (std::uint64_t{1} << 32) - 5, ~std::uint64_t{0} - 40}) {
    default_generator(kCPU).set_state({0x123456789abcdef0u, offset});
    const Tensor x = rand({131});
    for (int i = 0; i < 131; ++i)
      REQUIRE(
          x.data<float>()[i] ==
          uniform_float(philox(0x123456789abcdef0u, offset + static_cast<std::uint64_t>(i / 4)).v[i % 4]));
  }
}

GOLDEN_OP("logspace", "creation", [](const OpCase& c) {
  return logspace(c.real("start"), c.real("end"), c.integer("steps"), c.real("base", 10), options(c));
});
BAD_INPUT("logspace", "base -2 is not positive", [] { logspace(0, 1, 3, -2); });
NOT_APPLICABLE("logspace", strided, "takes no tensor");

OP_TEST("bernoulli", golden, "1 where rand() is below the probability, in place and out of place") {
  const Tensor p = arange(1000).to(kFloat32) / 1000;
  manual_seed(9);
  const Tensor want = (rand({1000}) < p).to(kFloat32);
  manual_seed(9);
  CHECK(equal(p.bernoulli(), want));
  manual_seed(9);
  CHECK(equal(zeros({1000}).bernoulli_(p), want));
  manual_seed(9);
  CHECK(equal(zeros({1000}, kInt64).bernoulli_(p), want.to(kInt64)));
  CHECK(std::abs(ones({40000}, kBool).bernoulli_(0.25).to(kFloat64).mean().item() - 0.25) < 0.015);
}
OP_TEST("bernoulli", dtypes, "0 and 1 in the dtype of the probabilities") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = full({400}, 0.5, t).bernoulli();
    CHECK(x.dtype() == t);
    CHECK(equal(x, x * x));
    CHECK(std::abs(x.to(kFloat64).mean().item() - 0.5) < 0.2);
  }
}
OP_TEST("bernoulli", strided, "elements count in row-major order in any layout") {
  manual_seed(5);
  const Tensor want = full({4, 6}, 0.5).bernoulli();
  manual_seed(5);
  CHECK(equal(full({6, 4}, 0.5).t().bernoulli(), want));
  manual_seed(5);
  CHECK(equal(zeros({6, 4}).t().bernoulli_(full({6}, 0.5)), want));
}
OP_TEST("bernoulli", empty, "no elements") { CHECK(zeros({0, 3}).bernoulli().sizes() == Shape{0, 3}); }
OP_TEST("bernoulli", extreme, "the probabilities 0 and 1 are certain") {
  CHECK(equal(zeros({1000}).bernoulli(), zeros({1000})));
  CHECK(equal(ones({1000}).bernoulli(), ones({1000})));
}
BAD_INPUT("bernoulli", "they must lie in [0, 1]", [] { tensor({0.5, 1.5}).bernoulli(); });
BAD_INPUT("bernoulli", "probability -1 is outside", [] { zeros({2}).bernoulli_(-1); });
BAD_INPUT("bernoulli", "does not take int64", [] { arange(2).bernoulli(); });
BAD_INPUT("rand", "lambd 0 is not positive", [] { zeros({2}).exponential_(0); });
BAD_INPUT("randint", "uint8 cannot hold", [] { zeros({2}, kUInt8).random_(300); });

TEST_CASE("random_ and randint_like draw all integers of their range, exponential_ its distribution") {
  for (DType t : {kInt64, kInt32, kUInt8, kFloat32, kBFloat16}) {
    const Tensor x = zeros({500}, t).random_(2, 6);
    CHECK(x.min().item() == 2);
    CHECK(x.max().item() == 5);
  }
  CHECK(zeros({2000}, kUInt8).random_().max().item() > 250);
  CHECK(zeros({200}).random_().max().item() > 0x1p22);
  CHECK(zeros({200}, kInt64).random_().max().item() > 0x1p61);
  const Tensor like = randint_like(zeros({300}, kFloat64), 3);
  CHECK(like.dtype() == kFloat64);
  CHECK(equal(like.unique().values, tensor({0.0, 1.0, 2.0}, kFloat64)));
  CHECK(randint_like(zeros({2, 3}), 7, 8, kInt32).sum().item() == 42);
  const Tensor waits = zeros({40000}, kFloat64).exponential_(4);
  CHECK(waits.min().item() >= 0);
  CHECK(std::abs(waits.mean().item() - 0.25) < 0.01);
  CHECK(std::abs(waits.std().item() - 0.25) < 0.015);
}

TEST_CASE("numbers that a dtype cannot hold are refused where a tensor is written, before anything changes") {
  const auto refuses = [](const char* op, const auto& write) {
    const Tensor x = ones({2, 2}, kUInt8);
    CHECK_THROWS_WITH(write(x), ContainsSubstring(std::string("[") + op + "] uint8 cannot hold 300"));
    CHECK(equal(x, ones({2, 2}, kUInt8)));
  };
  const Tensor at = tensor({0});
  refuses("fill_", [](const Tensor& x) { x.fill_(300); });
  refuses("fill_", [](const Tensor& x) { x[0].fill_(300.0); });
  refuses("index_fill", [&](const Tensor& x) { x.index_fill_(0, at, 300); });
  refuses("scatter", [&](const Tensor& x) { x.scatter_(0, zeros({1, 1}, kInt64), 300); });
  refuses("index_put", [&](const Tensor& x) { x.index_put_({at}, 300); });
  refuses("masked_fill", [](const Tensor& x) { x.masked_fill_(x == 1, 300); });
  refuses("fill_diagonal_", [](const Tensor& x) { x.fill_diagonal_(300); });
  refuses("tensor", [](const Tensor&) { tensor({1, 300}, kUInt8); });
  CHECK_THROWS_WITH(tensor({1.0, std::nan("")}, kInt64), ContainsSubstring("int64 cannot hold nan"));
  CHECK_THROWS_WITH(zeros({2}, kInt32).fill_(INFINITY), ContainsSubstring("[fill_] int32 cannot hold inf"));
  CHECK_THROWS_WITH(zeros({2}).fill_(1e39), ContainsSubstring("too large for f32"));
  CHECK_THROWS_WITH(zeros({2}, kFloat16).masked_fill(ones({2}, kBool), 70000),
                    ContainsSubstring("[masked_fill] 70000 is too large for float16"));
}

TEST_CASE("numbers that a dtype can hold, truncated or wrapped, are written") {
  CHECK(full({}, -1, kUInt8).item<int>() == 255);
  CHECK(zeros({}, kUInt8).fill_(-255).item<int>() == 1);
  CHECK(equal(zeros({2}, kInt32).index_fill(0, tensor({0}), 1.75), tensor({1, 0}, kInt32)));
  CHECK(equal(zeros({2}, kInt64).index_put_({tensor({1})}, -2.5), tensor({0, -2})));
  CHECK(full({}, 0.5, kBool).item<bool>());
  CHECK(full({}, INFINITY).item() == INFINITY);
  CHECK(std::isnan(full({}, std::nan("")).item()));
  CHECK(full({}, 70000, kFloat16).item() == INFINITY);
  CHECK(full({}, 1e39, kFloat64).item() == 1e39);
  // Numbers in arithmetic wrap around instead.
  CHECK(equal(tensor({7}, kUInt8).bitwise_and(0x105), tensor({5}, kUInt8)));
}
