#include <cmath>
#include <limits>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("add", "arithmetic", [](const OpCase& c) { return c[0] + c[1]; });
GOLDEN_OP("sub", "arithmetic", [](const OpCase& c) { return c[0] - c[1]; });
GOLDEN_OP("mul", "arithmetic", [](const OpCase& c) { return c[0] * c[1]; });
GOLDEN_OP("div", "arithmetic", [](const OpCase& c) { return c[0] / c[1]; });
GOLDEN_OP("maximum", "arithmetic", [](const OpCase& c) { return maximum(c[0], c[1]); });
GOLDEN_OP("minimum", "arithmetic", [](const OpCase& c) { return minimum(c[0], c[1]); });
GOLDEN_OP("pow", "arithmetic", [](const OpCase& c) { return pow(c[0], c[1]); });

GOLDEN_OP("add/scalar", "arithmetic", [](const OpCase& c) { return c.scalar("other") + c[0]; });
GOLDEN_OP("sub/scalar", "arithmetic", [](const OpCase& c) { return c[0] - c.scalar("other"); });
GOLDEN_OP("mul/scalar", "arithmetic", [](const OpCase& c) { return c.scalar("other") * c[0]; });
GOLDEN_OP("div/scalar", "arithmetic", [](const OpCase& c) { return c[0] / c.scalar("other"); });
GOLDEN_OP("sub/reversed", "arithmetic", [](const OpCase& c) { return c.scalar("other") - c[0]; });
GOLDEN_OP("div/reversed", "arithmetic", [](const OpCase& c) { return c.scalar("other") / c[0]; });
GOLDEN_OP("pow/scalar", "arithmetic", [](const OpCase& c) { return c[0].pow(c.scalar("exponent")); });

// The target is a clone, because a leaf cannot be changed in place.
GOLDEN_OP("add/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().add_(c[1]); });
GOLDEN_OP("sub/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().sub_(c[1]); });
GOLDEN_OP("mul/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().mul_(c[1]); });
GOLDEN_OP("div/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().div_(c[1]); });
GOLDEN_OP("add/in_place_scalar", "arithmetic",
          [](const OpCase& c) { return c[0].clone().add_(c.scalar("other")); });
GOLDEN_OP("sub/in_place_scalar", "arithmetic",
          [](const OpCase& c) { return c[0].clone().sub_(c.scalar("other")); });
GOLDEN_OP("mul/in_place_scalar", "arithmetic",
          [](const OpCase& c) { return c[0].clone().mul_(c.scalar("other")); });
GOLDEN_OP("div/in_place_scalar", "arithmetic",
          [](const OpCase& c) { return c[0].clone().div_(c.scalar("other")); });
GOLDEN_OP("pow/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().pow_(c[1]); });
GOLDEN_OP("pow/in_place_scalar", "arithmetic",
          [](const OpCase& c) { return c[0].clone().pow_(c.scalar("other")); });

BAD_INPUT("add", "shapes [2, 3] and [4] do not broadcast", [] { zeros({2, 3}) + zeros({4}); });
BAD_INPUT("add", "the second operand is an undefined tensor", [] { zeros({2}) + Tensor(); });
BAD_INPUT("add", "the first operand is an undefined tensor", [] { Tensor() + zeros({2}); });
BAD_INPUT("add", "undefined tensor", [] { Tensor() + 1; });
BAD_INPUT("add", "float32 cannot be stored in place in a int64", [] { zeros({2}, kInt64).add_(1.5); });
BAD_INPUT("add", "int64 cannot be stored in place in a bool", [] { zeros({2}, kBool).add_(1); });
BAD_INPUT("add", "does not broadcast to the shape [3]", [] { zeros({3}).add_(zeros({2, 3})); });
BAD_INPUT("add", "share memory", [] { zeros({1, 3}).expand({2, 3}).add_(1); });
BAD_INPUT("sub", "does not take bool", [] { zeros({2}, kBool) - zeros({2}); });
BAD_INPUT("sub", "does not take bool", [] { zeros({2}) - zeros({2}, kBool); });
BAD_INPUT("sub", "do not broadcast", [] { zeros({2}) - zeros({3}); });
BAD_INPUT("mul", "do not broadcast", [] { zeros({2}) * zeros({3}); });
BAD_INPUT("div", "do not broadcast", [] { zeros({2}) / zeros({3}); });
BAD_INPUT("div", "cannot be stored in place", [] { ones({2}, kInt32).div_(2); });
BAD_INPUT("pow", "negative power, -1", [] { ones({2}, kInt64).pow(-1); });
BAD_INPUT("pow", "exponent 256 is more than uint8 can hold", [] { ones({2}, kUInt8).pow(256); });
BAD_INPUT("pow", "exponent 4294967296 is more than int32 can hold",
          [] { ones({2}, kInt32).pow_(std::int64_t{1} << 32); });
BAD_INPUT("pow", "does not take bool", [] { zeros({2}, kBool).pow(2); });
BAD_INPUT("pow", "negative power, -1", [] { ones({2}, kInt64).pow_(-1); });
BAD_INPUT("pow", "cannot be stored in place", [] { ones({2}, kInt64).pow_(0.5); });
BAD_INPUT("maximum", "do not broadcast", [] { maximum(zeros({2}), zeros({3})); });
BAD_INPUT("minimum", "do not broadcast", [] { minimum(zeros({2}), zeros({3})); });

GOLDEN_OP("atan2", "arithmetic", [](const OpCase& c) { return c[0].atan2(c[1]); });
GOLDEN_OP("atan2/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().atan2_(c[1]); });
BAD_INPUT("atan2", "do not broadcast", [] { atan2(zeros({2}), zeros({3})); });
BAD_INPUT("atan2", "cannot be stored in place", [] { ones({2}, kInt64).atan2_(ones({2}, kInt64)); });
TEST_CASE(
    "atan2 in f32 is exact to a few units in the last place, and follows std::atan2 at special values") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> some = {0.0f,  -0.0f, 1.0f, -1.0f, 0.41421354f, 0.5f,
                                   -3.0f, inf,   -inf, 3e38f, -3e38f,      1e-40f};
  std::vector<float> a, b;
  for (const float y : some)
    for (const float x : some) a.push_back(y), b.push_back(x);
  for (int i = 0; i < 20000; ++i) a.push_back(std::sin(0.1f * i) * i), b.push_back(std::cos(0.1f * i) * i);
  const Tensor angle = atan2(tensor(a), tensor(b));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double exact = std::atan2(static_cast<double>(a[i]), static_cast<double>(b[i]));
    const float got = angle.data<float>()[i];
    CAPTURE(a[i], b[i], got, exact);
    REQUIRE(std::abs(got - exact) <= 4 * 0x1p-23 * std::abs(exact) + 0x1p-149);
    REQUIRE(std::signbit(got) == std::signbit(a[i]));
  }
}

TEST_CASE("a result has the layout that its operands share") {
  const Tensor x = randn({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  CHECK((x + x).memory_format() == MemoryFormat::channels_last);
  CHECK((x * 2).memory_format() == MemoryFormat::channels_last);
  CHECK((x + randn({3, 1, 1})).memory_format() == MemoryFormat::channels_last);
  CHECK((x > 0).memory_format() == MemoryFormat::channels_last);
  CHECK(x.relu().memory_format() == MemoryFormat::channels_last);
  CHECK((x + x.contiguous()).is_contiguous());
  const Tensor transposed = randn({3, 4}).t();
  CHECK((transposed + transposed).strides() == transposed.strides());
  const Tensor gaps = randn({3, 8}).slice(1, 0, 8, 2);
  CHECK((gaps + gaps).is_contiguous());
  CHECK(zeros_like(x).memory_format() == MemoryFormat::channels_last);
}

TEST_CASE("dtypes promote as in PyTorch: a 0-d tensor widens the dtype only across categories") {
  const auto of = [](DType a, const Shape& sa, DType b, const Shape& sb) {
    return (ones(sa, a) + ones(sb, b)).dtype();
  };
  CHECK(of(kFloat32, {2}, kFloat64, {2}) == kFloat64);
  CHECK(of(kFloat32, {2}, kFloat64, {}) == kFloat32);
  CHECK(of(kFloat32, {}, kFloat64, {2}) == kFloat64);
  CHECK(of(kFloat32, {}, kFloat64, {}) == kFloat64);
  CHECK(of(kInt32, {2}, kInt64, {}) == kInt32);
  CHECK(of(kBool, {2}, kUInt8, {}) == kUInt8);
  CHECK(of(kInt64, {2}, kFloat64, {}) == kFloat64);
  CHECK(of(kFloat16, {1}, kBFloat16, {1}) == kFloat32);
}

TEST_CASE("gradients of promoted operands come back in the operands' dtypes") {
  const Tensor a = ones({2, 3}, TensorOptions(kFloat32).with_grad());
  const Tensor b = full({3}, 2.0, TensorOptions(kFloat64).with_grad());
  const Tensor c = full({}, 3.0, TensorOptions(kFloat64).with_grad());
  (a * b * c).backward(ones({2, 3}, kFloat64));
  CHECK(equal(a.grad(), full({2, 3}, 6.0)));
  CHECK(equal(b.grad(), full({3}, 6.0, kFloat64)));
  CHECK(equal(c.grad(), full({}, 12.0, kFloat64)));
}

TEST_CASE("in-place changes keep the address, count a version and see the old elements") {
  const Tensor x = arange(6.0);
  const void* const address = x.raw_data();
  const auto version = x.version();
  CHECK(&x.add_(1.0) == &x);
  CHECK(x.version() > version);
  CHECK(x.raw_data() == address);
  CHECK(equal(x, tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0})));
  // The target overlaps the operand partly. The operation must use the old values of the operand.
  x.slice(0, 1).add_(x.slice(0, 0, 5));
  CHECK(equal(x, tensor({1.0, 3.0, 5.0, 7.0, 9.0, 11.0})));
  x.add_(x);
  CHECK(equal(x, tensor({2.0, 6.0, 10.0, 14.0, 18.0, 22.0})));
  const Tensor square = arange(9.0).reshape({3, 3});
  square.add_(square.t());
  CHECK(equal(square, tensor({{0.0, 4.0, 8.0}, {4.0, 8.0, 12.0}, {8.0, 12.0, 16.0}})));
}

TEST_CASE("gradients of a product in place use both factors as they were before the change") {
  const Tensor x = full({2}, 3.0, TensorOptions(kFloat64).with_grad());
  const Tensor w = full({2}, 5.0, TensorOptions(kFloat64).with_grad());
  Tensor y = x * 1;
  y *= w;
  y.backward(ones({2}, kFloat64));
  CHECK(equal(x.grad(), full({2}, 5.0, kFloat64)));
  CHECK(equal(w.grad(), full({2}, 3.0, kFloat64)));
  x.set_grad({});
  Tensor z = x * 1;
  z *= z;
  z.backward(ones({2}, kFloat64));
  CHECK(equal(x.grad(), full({2}, 6.0, kFloat64)));
  CHECK_THROWS_WITH(x.add_(1), ContainsSubstring("leaf"));
}

TEST_CASE("large tensors that several threads share give the same values in every kind of loop") {
  const std::int64_t n = 70001;
  const Tensor x = arange(0, n, 1, kFloat64), y = arange(n, 0, -1, kFloat64);
  const auto all = [](const Tensor& t, double value) { return equal(t, full_like(t, value)); };
  CHECK(all(x + y, static_cast<double>(n)));
  const Tensor wide = arange(0, 2 * n, 1, kFloat64);
  CHECK(all(wide.slice(0, 1, 2 * n, 2) - wide.slice(0, 0, 2 * n, 2), 1));
  // The large tensor is cut into one piece per thread, so rows begin and end inside a piece. A column and a
  // row broadcast to it.
  const Tensor m = arange(0, 301 * 233, 1, kFloat64).reshape({301, 233});
  const Tensor rows = arange(0, 301 * 233, 233, kFloat64).reshape({301, 1}),
               columns = arange(0, 233, 1, kFloat64);
  CHECK(all(m - rows - columns, 0));
  CHECK(all(m.t() - (columns.reshape({233, 1}) + rows.reshape({301})), 0));
  CHECK(all(zeros({301, 233}, kFloat64) + rows + columns - m, 0));
  const Tensor half = ones({n}, kFloat16), brain = ones({n}, kBFloat16);
  CHECK(equal(half + half, full({n}, 2.0, kFloat16)));
  CHECK(equal(brain * 3, full({n}, 3.0, kBFloat16)));
}

TEST_CASE("the gradients of numbers divided by a tensor, and of a difference, use only that tensor") {
  const Tensor x = tensor({0.5, 2.0, -4.0}, TensorOptions(kFloat64).with_grad());
  ((3.0 / x) + (1.0 - x)).sum().backward();
  CHECK(equal(x.grad(), tensor({-13.0, -1.75, -1.1875}, kFloat64)));
}

TEST_CASE("i64 wraps around") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = -most - 1;
  const Tensor x = tensor(std::vector<std::int64_t>{most, least, most});
  const auto wrapped = [](const Tensor& t, std::vector<std::int64_t> values) {
    return equal(t, tensor(values));
  };
  CHECK(wrapped(x + 1, {least, least + 1, least}));
  CHECK(wrapped(x - least, {-1, 0, -1}));
  CHECK(wrapped(x * x, {1, 0, 1}));
  CHECK(wrapped(x.pow(3), {most, 0, most}));
  CHECK(wrapped(-x, {-most, least, -most}));
  CHECK(wrapped(x.abs(), {most, least, most}));
}

TEST_CASE("numbers are operands of methods and of changes in place, as tensors are") {
  const Tensor x = tensor({1.0, 4.0}).set_requires_grad();
  const Tensor y = x * 1;
  y += 1;
  y *= 3;
  y -= 0.5;
  y /= 2;
  CHECK(equal(y.detach(), tensor({2.75, 7.25})));
  y.sum().backward();
  CHECK(equal(x.grad(), tensor({1.5, 1.5})));
  const Tensor n = tensor({2, 3});
  CHECK(equal(n.add(1), tensor({3, 4})));
  CHECK(equal(n.sub(0.5), tensor({1.5, 2.5})));
  CHECK(equal(n.mul(2), tensor({4, 6})));
  CHECK(equal(n.div(2), tensor({1.0, 1.5})));
  CHECK(equal(n.eq(3), tensor({false, true})));
  CHECK(equal(n.ne(3), tensor({true, false})));
  CHECK(equal(n.lt(3), tensor({true, false})));
  CHECK(equal(n.le(2), tensor({true, false})));
  CHECK(equal(n.gt(2), tensor({false, true})));
  CHECK(equal(n.ge(3), tensor({false, true})));
}

GOLDEN_OP("fmod", "arithmetic", [](const OpCase& c) { return fmod(c[0], c[1]); });
GOLDEN_OP("remainder", "arithmetic", [](const OpCase& c) { return c[0] % c[1]; });
GOLDEN_OP("floor_divide", "arithmetic", [](const OpCase& c) { return div(c[0], c[1], "floor"); });
GOLDEN_OP("floor_divide/trunc", "arithmetic", [](const OpCase& c) { return c[0].div(c[1], "trunc"); });
GOLDEN_OP("fmod/scalar", "arithmetic", [](const OpCase& c) { return c[0].fmod(c.scalar("other")); });
GOLDEN_OP("remainder/scalar", "arithmetic",
          [](const OpCase& c) { return c[0].remainder(c.scalar("other")); });
GOLDEN_OP("remainder/reversed", "arithmetic",
          [](const OpCase& c) { return remainder(c.scalar("other"), c[0]); });
GOLDEN_OP("floor_divide/scalar", "arithmetic",
          [](const OpCase& c) { return c[0].floor_divide(c.scalar("other")); });
GOLDEN_OP("fmod/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().fmod_(c[1]); });
GOLDEN_OP("remainder/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().remainder_(c[1]); });
GOLDEN_OP("floor_divide/in_place", "arithmetic",
          [](const OpCase& c) { return c[0].clone().floor_divide_(c[1]); });
GOLDEN_OP("xlogy", "arithmetic", [](const OpCase& c) { return c[0].xlogy(c[1]); });
GOLDEN_OP("xlogy/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().xlogy_(c[1]); });
GOLDEN_OP("hypot", "arithmetic", [](const OpCase& c) { return c[0].hypot(c[1]); });
GOLDEN_OP("hypot/in_place", "arithmetic", [](const OpCase& c) { return c[0].clone().hypot_(c[1]); });
BAD_INPUT("hypot", "does not take int64", [] { hypot(arange(3), arange(3)); });
GOLDEN_OP("logaddexp", "arithmetic", [](const OpCase& c) { return c[0].logaddexp(c[1]); });
BAD_INPUT("logaddexp", "do not broadcast", [] { logaddexp(ones({2}), ones({3})); });
BAD_INPUT("fmod", "does not take bool", [] { fmod(zeros({2}, kBool), 1); });
BAD_INPUT("fmod", "an integer is divided by 0", [] { fmod(ones({2}, kInt64), 0); });
BAD_INPUT("remainder", "an integer is divided by 0",
          [] { ones({2}, kInt64).remainder_(zeros({2}, kInt64)); });
BAD_INPUT("floor_divide", "an integer is divided by 0", [] {
  floor_divide(ones({2}, kInt32), tensor({1, 0}, kInt32));
});
BAD_INPUT("floor_divide", "cannot be stored in place", [] { ones({2}, kInt64).floor_divide_(2.5); });
BAD_INPUT("div", "rounding_mode is 'up'", [] { div(ones({2}), ones({2}), "up"); });
BAD_INPUT("xlogy", "do not broadcast", [] { xlogy(ones({2}), ones({3})); });
TEST_CASE("integer quotients at the limits of the dtype wrap instead of trapping") {
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  const Tensor a = full({1}, lowest, kInt64), b = full({1}, -1, kInt64);
  CHECK(floor_divide(a, b).item<std::int64_t>() == lowest);
  CHECK(div(a, b, "trunc").item<std::int64_t>() == lowest);
  CHECK(remainder(a, b).item<std::int64_t>() == 0);
  CHECK(fmod(a, b).item<std::int64_t>() == 0);
}
