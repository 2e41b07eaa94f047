#include <cmath>

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/philox.h"
#include "tests/support/op_case.h"

using namespace tapestry;

BAD_INPUT("dropout", "p is 1.5", [] { dropout(zeros({2}), 1.5); });
BAD_INPUT("dropout", "p is nan", [] { dropout(zeros({2}), NAN); });
BAD_INPUT("dropout", "does not take int64", [] { dropout(zeros({2}, kInt64)); });
BAD_INPUT("dropout", "undefined tensor", [] { dropout(Tensor()); });

OP_TEST("dropout", golden, "keeps what its words say, scaled, in every dtype; gradients alike") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    manual_seed(9);
    const Tensor x = full({4001}, 3.0, TensorOptions(t).with_grad());
    const Tensor y = dropout(x, 0.25);
    y.backward(full({4001}, 3.0, t));
    CHECK(equal(x.grad(), y.detach()));
    const Tensor f = y.detach().to(kFloat32);
    int kept = 0;
    for (int i = 0; i < 4001; ++i) {
      const bool keep = uniform_float(philox(9, static_cast<std::uint64_t>(i / 4)).v[i % 4]) >= 0.25f;
      kept += keep;
      REQUIRE(f.data<float>()[i] == (keep ? 4.0f : 0.0f));
    }
    CHECK(std::abs(kept - 3000) < 200);  // the tolerance is 7 standard deviations
  }
}
OP_TEST("dropout", dtypes, "of the result and of the gradient") {
  for (DType t : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const Tensor x = ones({64}, TensorOptions(t).with_grad());
    const Tensor y = dropout(x, 0.5);
    y.sum().backward();
    CHECK(y.dtype() == t);
    CHECK(x.grad().dtype() == t);
    // Every element y must be 0 or 2, so y (2 - y) = 0.
    CHECK(equal(y.mul(2 - y.detach()).detach(), zeros({64}, t)));
  }
}
OP_TEST("dropout", gradcheck, "with the generator set back for every evaluation") {
  const Tensor x = randn({3, 7}, TensorOptions(kFloat64).with_grad());
  autograd::gradcheck(
      [](const std::vector<Tensor>& in) {
        manual_seed(3);
        return std::vector<Tensor>{dropout(in[0], 0.4)};
      },
      {x});
}
OP_TEST("dropout", gradgradcheck, "the recorded gradient has the mask of the forward pass") {
  const Tensor x = randn({3, 7}, TensorOptions(kFloat64).with_grad());
  const auto dropped_exp = [](const std::vector<Tensor>& in) {
    manual_seed(3);
    return std::vector<Tensor>{dropout(in[0].exp(), 0.4)};
  };
  autograd::gradgradcheck(dropped_exp, {x});
}
OP_TEST("dropout", strided, "counts in row-major order, for the gradient's layout as for the input's") {
  const Tensor x = randn({2, 3, 4, 5});
  manual_seed(3);
  const Tensor y = dropout(x, 0.5);
  const Tensor nhwc = x.contiguous(MemoryFormat::channels_last).set_requires_grad();
  manual_seed(3);
  const Tensor z = dropout(nhwc, 0.5);
  CHECK(equal(y, z.detach()));
  z.backward(ones({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last));
  CHECK(equal(nhwc.grad() * x, y));
}
OP_TEST("dropout", empty, "no elements") { CHECK(dropout(zeros({0, 3})).sizes() == Shape{0, 3}); }
OP_TEST("dropout", extreme, "p of 0 and 1, evaluation, what is no number") {
  const Tensor x = tensor({INFINITY, NAN, -1.0F, 2.0F});
  CHECK(dropout(x, 0).is_same(x));
  CHECK(dropout(x, 0.5, false).is_same(x));
  CHECK(equal(dropout(x, 1), zeros({4})));
  manual_seed(0);
  const Tensor many = dropout(full({1000}, INFINITY), 0.5);
  CHECK((many == INFINITY).sum().item() + (many == 0).sum().item() == 1000);
}
