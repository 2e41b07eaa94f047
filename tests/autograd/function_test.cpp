#include "tapestry/autograd/function.h"

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;
using autograd::FunctionContext;

namespace {

struct Cube : autograd::Function<Cube> {
  static constexpr const char* kName = "cube";
  static Tensor forward(FunctionContext& ctx, const Tensor& x) {
    ctx.save_for_backward({x});
    return x * x * x;
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const std::vector<Tensor>& grads) {
    return {grads[0] * 3 * ctx.saved(0) * ctx.saved(0)};
  }
};

// A user-defined function with two outputs and an argument that is not a tensor. It saves one of its outputs.
struct ScaleExp : autograd::Function<ScaleExp> {
  static std::vector<Tensor> forward(FunctionContext& ctx, const Tensor& x, double scale, const Tensor& y) {
    ctx.data = scale;
    const Tensor e = x.exp();
    ctx.save_for_backward({e});
    return {e * scale, y * scale};
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const double scale = std::any_cast<double>(ctx.data);
    return {ctx.needs_input_grad(0) ? grads[0] * ctx.saved(0) * scale : Tensor(), {}, grads[1] * scale};
  }
};

struct Wrong : autograd::Function<Wrong> {
  static constexpr const char* kName = "wrong";
  static Tensor forward(FunctionContext&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& grads) {
    return {grads[0].sum(), grads[0]};
  }
};

struct WrongShape : autograd::Function<WrongShape> {  // without kName, so errors show the type's name
  static Tensor forward(FunctionContext&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& grads) {
    return {grads[0].sum()};
  }
};

struct PassThrough : autograd::Function<PassThrough> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x; }
  static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0] * -1}; }
};

struct Flat : autograd::Function<Flat> {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x.view({-1}); }
  static std::vector<Tensor> backward(FunctionContext&, const std::vector<Tensor>& g) { return {g[0]}; }
};

Tensor leaf(std::initializer_list<double> values) { return tensor(values, DType::f64).set_requires_grad(); }

}  // namespace

TEST_CASE("a user-defined function is differentiated by its backward") {
  const Tensor x = leaf({2, -1});
  CHECK(autograd::gradcheck([](const std::vector<Tensor>& in) { return Cube::apply(in[0] * 2); }, {x}));
  CHECK(autograd::gradcheck([](const std::vector<Tensor>& in) { return ScaleExp::apply(in[0], 1.5, in[1]); },
                            {x, leaf({1, 3})}));
  // Only one of the two outputs is used, so the gradient of the other is zero.
  const Tensor y = leaf({1, 3});
  ScaleExp::apply(x, 2.0, y)[1].sum().backward();
  CHECK(y.grad()[0].item() == 2);
  CHECK(x.grad()[0].item() == 0);
  NoGradGuard no_grad;
  CHECK_FALSE(Cube::apply(x).requires_grad());
}

TEST_CASE("a function that returns its input gives a new tensor with its own history") {
  const Tensor x = leaf({2, 5});
  const Tensor y = PassThrough::apply(x);
  CHECK_FALSE(y.is_same(x));
  y.sum().backward();
  CHECK(x.grad()[0].item() == -1);
  CHECK(x.is_leaf());
}

TEST_CASE("an output that shares its input's memory is treated as a view") {
  const Tensor x = leaf({2, 5});
  const Tensor h = x * 1;
  for (const Tensor& y : {PassThrough::apply(h), Flat::apply(h)})
    CHECK_THROWS_WITH(y.mul_(3), ContainsSubstring("changes in place a view"));
  const Tensor flat = Flat::apply(h);
  h.mul_(3);
  CHECK_THROWS_WITH(flat * 2, ContainsSubstring("make the view again"));
  h.sum().backward();
  CHECK(equal(x.grad(), tensor({3.0, 3.0}, DType::f64)));
}

TEST_CASE("a wrong result of a function's backward throws an error that names the function") {
  const Tensor x = leaf({2, 5});
  CHECK_THROWS_WITH(Wrong::apply(x).sum().backward(), ContainsSubstring("[wrong] backward returned 2"));
  CHECK_THROWS_WITH(WrongShape::apply(x).sum().backward(),
                    ContainsSubstring("[WrongShape]") && ContainsSubstring("expected float64 [2]"));
}

TEST_CASE("an in-place change of a tensor that a function saved is detected") {
  const Tensor x = leaf({2, 5});
  const Tensor h = x * 1;
  const Tensor y = Cube::apply(h);
  {
    NoGradGuard no_grad;
    h.add_(1);
  }
  CHECK_THROWS_WITH(y.sum().backward(), ContainsSubstring("[cube]"));
}

TEST_CASE("gradcheck finds a wrong gradient, and refuses f32 inputs and inputs without gradients") {
  CHECK_THROWS_WITH(
      autograd::gradcheck([](const std::vector<Tensor>& in) { return PassThrough::apply(in[0]); },
                          {leaf({1, 2})}),
      ContainsSubstring("[gradcheck] d output 0 [element 0] / d input 0 [element 0]"));
  const Tensor single = tensor({1.0}).set_requires_grad();
  CHECK_THROWS_AS(autograd::gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2; }, {single}),
                  TypeError);
  CHECK_THROWS_AS(autograd::gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2; },
                                      {tensor({1.0}, DType::f64)}),
                  AutogradError);
}

TEST_CASE("gradcheck checks every floating output, whether recorded or not, and restores the inputs") {
  using Inputs = std::vector<Tensor>;
  const Tensor x = leaf({1, 2});
  const auto several = [](const Inputs& in) {
    return std::vector<Tensor>{in[0] * in[0], Tensor(), in[0] * 3 * in[0]};
  };
  CHECK(autograd::gradcheck(several, {x}));
  CHECK(equal(x.detach(), tensor({1.0, 2.0}, DType::f64)));
  const auto second_wrong = [](const Inputs& in) {
    return std::vector<Tensor>{in[0] * in[0], in[0] * in[0].detach()};
  };
  CHECK_THROWS_WITH(autograd::gradcheck(second_wrong, {x}), ContainsSubstring("d output 1 [element 0]"));
  CHECK_THROWS_WITH(autograd::gradcheck([](const Inputs& in) { return (in[0] * in[0]).detach(); }, {x}),
                    ContainsSubstring("backward gives 0"));
  CHECK(autograd::gradcheck(
      [](const Inputs& in) {
        return std::vector<Tensor>{in[0] * 2, in[0].argmax()};
      },
      {x}));
  int calls = 0;
  const auto fails_late = [&](const Inputs& in) {
    if (++calls == 2) throw std::runtime_error("late");
    return in[0] * 2;
  };
  CHECK_THROWS_WITH(autograd::gradcheck(fails_late, {x}), "late");
  CHECK(equal(x.detach(), tensor({1.0, 2.0}, DType::f64)));
}
