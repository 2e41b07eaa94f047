// Tests rows that the library does not have: a function, gradients that are computed from the output, and
// gradients of operations with a number.
#include "tapestry/kernels/ops/pointwise.h"

#include <string_view>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/autograd/ops/internal/function.h"
#include "tapestry/kernels/cpu/pointwise.h"
#include "tests/support/catch.h"

using namespace tapestry;
using kernels::Of, kernels::Takes, kernels::ValueOf;

namespace {

/// dy t / y
struct Scaled : kernels::Pointwise<"test_scaled", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C t, C y) {
    return dy * (t / y);
  }
};
/// sqrt(a^2 + b^2)
struct Hypotenuse : kernels::Binary<"test_hypot", Takes::floats> {
  using GradientA = ValueOf<Scaled, Of::dy, Of::a, Of::y>;
  using GradientB = ValueOf<Scaled, Of::dy, Of::b, Of::y>;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return M::sqrt(a * a + b * b);
  }
};
/// a / b^2
struct OverSquare : kernels::Binary<"test_over_square", Takes::floats, kernels::Number::either> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a / (b * b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C, C b) {
    return dy / (b * b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return -2 * dy * a / (b * b * b);
  }
};
/// log(1 + e^(rate x))
struct Planted : kernels::Function<"test_planted", Takes::floats, kernels::GradientFrom::input, 1> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C rate) {
    return M::log1p(M::exp(rate * x));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C rate) {
    using kernels::select;
    return select(rate * x > 20, dy * rate, dy * rate * M::sigmoid(rate * x));
  }
};
using Rows = kernels::RowList<Scaled, Hypotenuse, OverSquare, Planted>;
const bool rows =
    kernels::for_kernels_of(Rows(), []<class Row>() { kernels::cpu::register_pointwise<Row>(); });

Tensor hypotenuse(const Tensor& a, const Tensor& b) { return autograd::binary<Hypotenuse>(a, b); }

}  // namespace

TEST_CASE("a row's gradients may name the output, and broadcast operands get sums") {
  const TensorOptions options = TensorOptions(kFloat64).with_grad();
  const Tensor a = tensor({3.0, 5.0, -8.0}, options), b = tensor({4.0, 12.0, 15.0}, options);
  const Tensor y = hypotenuse(a, b);
  CHECK(equal(y.detach(), tensor({5.0, 13.0, 17.0}, kFloat64)));
  y.backward(tensor({1.0, 2.0, -1.0}, kFloat64));
  CHECK(allclose(a.grad(), tensor({3.0 / 5, 2 * 5.0 / 13, 8.0 / 17}, kFloat64)));
  CHECK(allclose(b.grad(), tensor({4.0 / 5, 2 * 12.0 / 13, -15.0 / 17}, kFloat64)));
  autograd::gradcheck([](const std::vector<Tensor>& in) { return hypotenuse(in[0], in[1]); },
                      {a, full({2, 1}, 2.0, options)});
}

TEST_CASE("a row in place copies the old elements if a gradient names them") {
  const Tensor x = tensor({3.0, 6.0}, TensorOptions(kFloat64).with_grad());
  const Tensor y = x * 1;
  autograd::binary_in_place<Hypotenuse>(y, tensor({4.0, 8.0}, kFloat64));
  CHECK(equal(y.detach(), tensor({5.0, 10.0}, kFloat64)));
  y.sum().backward();
  CHECK(allclose(x.grad(), tensor({0.6, 0.6}, kFloat64)));
}

TEST_CASE("a number as either operand gives the same values and gradients as a tensor of that number") {
  const Tensor x = tensor({0.5, -2.0, 3.0}, TensorOptions(kFloat64).with_grad()),
               s = full({3}, 1.5, kFloat64);
  CHECK(equal(autograd::binary_with<OverSquare, 0>(x, 1.5), autograd::binary<OverSquare>(s, x)));
  CHECK(equal(autograd::binary_with<OverSquare, 1>(x, 1.5), autograd::binary<OverSquare>(x, s)));
  const auto gradient = [&](const Tensor& y) {
    x.zero_grad();
    y.sum().backward();
    return x.grad();
  };
  CHECK(equal(gradient(autograd::binary_with<OverSquare, 0>(x, 1.5)),
              gradient(autograd::binary<OverSquare>(s, x))));
  CHECK(equal(gradient(autograd::binary_with<OverSquare, 1>(x, 1.5)),
              gradient(autograd::binary<OverSquare>(x, s))));
}

TEST_CASE("a row rejects dtypes that it does not take") {
  CHECK_THROWS_WITH(hypotenuse(ones({2}, kInt64), ones({2})), ContainsSubstring("does not take int64"));
}

TEST_CASE("a row alone gives an operation, its gradients of both orders, and its rule of autocast") {
  const autograd::Op* op = autograd::Op::first();
  while (op && std::string_view(op->name) != "test_planted") op = op->next();
  REQUIRE(op);
  CHECK(op->twice);
  CHECK(op->dtypes == kFloats);
  CHECK(autograd::cast_policy("test_planted", DeviceType::cuda) == CastPolicy::f32);
  CHECK(autograd::cast_policy("test_planted", DeviceType::cpu) == CastPolicy::none);

  const Tensor x = tensor({-1.5, 0.25, 2.0}, TensorOptions(kFloat64).with_grad());
  const auto planted = [](const std::vector<Tensor>& in) { return autograd::function<Planted>(in[0], {2}); };
  CHECK(allclose(planted({x}), log1p(exp(x * 2))));
  autograd::gradcheck(planted, {x});
  autograd::gradgradcheck(planted, {x});
  const Tensor far = tensor({40.0, -400.0}, TensorOptions(kFloat64).with_grad());
  autograd::function<Planted>(far, {2}).sum().backward();
  CHECK(equal(far.grad(), tensor({2.0, 0.0}, kFloat64)));
}
