// Unusual uses and user errors that involve several parts of the library: copies into integer tensors,
// retain_grad before an in-place change, empty hooks, and functions that gradcheck cannot check.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

Tensor leaf(std::initializer_list<double> values) { return tensor(values, DType::f64).set_requires_grad(); }

}  // namespace

TEST_CASE("a tensor that requires gradients can be copied into integer tensors, without a history") {
  const Tensor x = leaf({1.5, -2.0});
  const Tensor whole = zeros({2}, DType::i64), truth = zeros({2}, DType::boolean);
  whole.copy_(x);
  truth.copy_(x * 0);
  CHECK(equal(whole, tensor({1, -2})));
  CHECK(equal(truth, tensor({false, false})));
  CHECK_FALSE(whole.requires_grad());
  CHECK(whole.is_leaf());
  whole.narrow(0, 1, 1).copy_(x.narrow(0, 0, 1));  // copying into a view must work too
  CHECK(equal(whole, tensor({1, 1})));
}

TEST_CASE("after an in-place change, retain_grad keeps the gradient of the changed tensor") {
  const Tensor x = leaf({1.0, 2.0});
  const Tensor y = x * 3;
  y.retain_grad();
  y.mul_(tensor({5.0, 5.0}, DType::f64));
  (y * 7).sum().backward();
  REQUIRE(y.grad().defined());
  CHECK(equal(y.grad(), tensor({7.0, 7.0}, DType::f64)));
  CHECK(equal(x.grad(), tensor({105.0, 105.0}, DType::f64)));
}

TEST_CASE("empty hooks are refused when they are registered") {
  const Tensor x = leaf({1.0});
  CHECK_THROWS_WITH(x.register_hook(nullptr), ContainsSubstring("[register_hook] the hook is empty"));
  CHECK_THROWS_WITH(x.register_post_accumulate_grad_hook(nullptr), ContainsSubstring("the hook is empty"));
  CHECK_THROWS_WITH(autograd::SavedTensorHooks(nullptr, nullptr), ContainsSubstring("a hook is empty"));
  CHECK(autograd::SavedTensorHooks::current() == nullptr);
  (x * x).backward();
  CHECK(x.grad().item() == 2);
}

TEST_CASE("gradcheck refuses an input whose elements share memory") {
  const Tensor row = tensor({1.0}, DType::f64).expand({3}).set_requires_grad();
  CHECK_THROWS_WITH(autograd::gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2; }, {row}),
                    ContainsSubstring("[gradcheck] input 0 of shape [3] is expanded"));
}

TEST_CASE("gradcheck refuses a function whose outputs differ between calls") {
  int calls = 0;
  const auto fewer = [&](const std::vector<Tensor>& in) {
    return ++calls == 1 ? std::vector<Tensor>{in[0], in[0] * 2} : std::vector<Tensor>{in[0]};
  };
  CHECK_THROWS_WITH(autograd::gradcheck(fewer, {leaf({1.0})}), ContainsSubstring("2 outputs at first and 1"));
  calls = 0;
  const auto smaller = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{++calls == 1 ? in[0] * 1 : in[0].sum()};
  };
  CHECK_THROWS_WITH(autograd::gradcheck(smaller, {leaf({1.0, 2.0})}), ContainsSubstring("of other shapes"));
  calls = 0;
  const auto undefined = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{++calls == 1 ? in[0] * 1 : Tensor()};
  };
  CHECK_THROWS_WITH(autograd::gradcheck(undefined, {leaf({1.0})}),
                    ContainsSubstring("return the same each time"));
}
