// Methods of Tensor that are another name of a function or of another method.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("new_zeros and its siblings take dtype and device from the tensor") {
  const Tensor t = ones({3}, kFloat64);
  CHECK(equal(t.new_zeros({2, 2}), zeros({2, 2}, kFloat64)));
  CHECK(equal(t.new_ones(2), ones({2}, kFloat64)));
  CHECK(equal(t.new_full({2}, 7), full({2}, 7, kFloat64)));
  CHECK(t.new_empty({4, 5}).sizes() == Shape{4, 5});
  CHECK(t.new_empty({4, 5}).dtype() == kFloat64);
  CHECK(t.new_zeros({2}, kInt32).dtype() == kInt32);
  CHECK(t.new_empty({2}, TensorOptions().with_grad()).requires_grad());
  CHECK(t.new_ones({2}, TensorOptions().with_grad()).requires_grad());
  CHECK_THROWS_AS(t.new_zeros({-1}), ValueError);
  CHECK_THROWS_WITH(Tensor().new_full({1}, 1), ContainsSubstring("[new_full]"));
  CHECK(t.new_zeros({2}, kCPU).device() == kCPU);
}

TEST_CASE("to_vector copies all elements in row-major order") {
  const Tensor t = arange(6).reshape({2, 3});
  CHECK(t.t().to_vector() == std::vector<double>{0, 3, 1, 4, 2, 5});
  CHECK(t.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
  CHECK((t > 3).to_vector<bool>() == std::vector<bool>{false, false, false, false, true, true});
  CHECK(t.select(1, 2).to_vector<float>() == std::vector<float>{2, 5});
  CHECK(zeros({0, 3}).to_vector().empty());
  CHECK(scalar_tensor(1.5).to_vector() == std::vector<double>{1.5});
  CHECK(full({2}, 2.5, kBFloat16).to_vector() == std::vector<double>{2.5, 2.5});
  CHECK(ones({1}).requires_grad_().to_vector<float>() == std::vector<float>{1});
  CHECK_THROWS_AS(Tensor().to_vector(), ValueError);
}

TEST_CASE("requires_grad_, clamp_min, clamp_max, equal, unique and prelu are methods") {
  const Tensor x = tensor({-2.0, 0.5, 3.0, -2.0});
  CHECK(x.requires_grad_().requires_grad());
  CHECK_FALSE(x.requires_grad_(false).requires_grad());
  CHECK_THROWS_AS(arange(3).requires_grad_(), TypeError);
  CHECK(equal(x.clamp_min(-1), tensor({-1.0, 0.5, 3.0, -1.0})));
  CHECK(equal(x.clamp_max(1), tensor({-2.0, 0.5, 1.0, -2.0})));
  CHECK(x.equal(x.clone()));
  CHECK_FALSE(x.equal(x + 1));
  CHECK(equal(x.unique().values, tensor({-2.0, 0.5, 3.0})));
  CHECK(equal(x.unique({.return_counts = true}).counts, tensor({2, 1, 1})));
  CHECK(equal(x.prelu(tensor({0.25})), prelu(x, tensor({0.25}))));
}

TEST_CASE("element_size and is_floating_point describe the dtype") {
  CHECK(ones({1}).element_size() == 4);
  CHECK(ones({1}, kInt64).element_size() == 8);
  CHECK(ones({1}, kBFloat16).element_size() == 2);
  CHECK(ones({1}, kBFloat16).is_floating_point());
  CHECK_FALSE(ones({1}, kInt64).is_floating_point());
  CHECK_THROWS_AS(ones({1}).cuda(63), DeviceError);
}

TEST_CASE("functions of linalg and the parts of hsplit, vsplit and dsplit are methods too") {
  const Tensor a = tensor({{2.0, 1.0}, {1.0, 3.0}}, kFloat64);
  CHECK(equal(a.det(), linalg::det(a)));
  CHECK(equal(a.slogdet().second, linalg::slogdet(a).second));
  CHECK(equal(a.inverse(), linalg::inv(a)));
  CHECK(allclose(a.pinverse(), linalg::inv(a)));
  CHECK(equal(a.matrix_power(3), linalg::matrix_power(a, 3)));
  CHECK(equal(a.cholesky(), linalg::cholesky(a)));
  CHECK(equal(a.cholesky(true), linalg::cholesky(a, true)));
  CHECK(ones({3, 2}).qr().first.sizes() == Shape{3, 2});
  CHECK(ones({3, 2}).qr(false).first.sizes() == Shape{3, 3});
  CHECK(equal(a.histc(4), histc(a, 4)));
  const Tensor x = arange(24).reshape({2, 6, 2});
  CHECK(equal(x.hsplit(3)[2], hsplit(x, 3)[2]));
  CHECK(equal(x.hsplit({1, 4})[1], hsplit(x, {1, 4})[1]));
  CHECK(equal(x.vsplit(2)[1], x.narrow(0, 1, 1)));
  CHECK(x.vsplit(std::vector<std::int64_t>{1}).size() == 2);
  CHECK(equal(x.dsplit(2)[1], x.narrow(2, 1, 1)));
  CHECK(x.dsplit(std::vector<std::int64_t>{1}).size() == 2);
  CHECK(equal(tensor({0, 2}).argwhere(), tensor({1}).reshape({1, 1})));
}

TEST_CASE("addmm_, baddbmm_, clamp_min_ and clamp_max_ change the tensor in place") {
  const Tensor a = randn({2, 3}), b = randn({3, 2}), x = randn({2, 2});
  CHECK(equal(x.clone().addmm_(a, b, 2, 3), addmm(x, a, b, 2, 3)));
  const Tensor batch = x.reshape({1, 2, 2});
  CHECK(equal(batch.clone().baddbmm_(a.unsqueeze(0), b.unsqueeze(0)),
              baddbmm(batch, a.unsqueeze(0), b.unsqueeze(0))));
  CHECK(equal(x.clone().clamp_min_(0), x.relu()));
  CHECK(equal(x.clone().clamp_max_(0), -(-x).relu()));
  CHECK_THROWS_WITH(zeros({1, 2}).addmm_(a, b), ContainsSubstring("the result has shape [2, 2]"));
}

TEST_CASE("comparisons in place write 1 and 0 in the tensor's dtype") {
  const Tensor x = tensor({1, 2, 3});
  CHECK(x.clone().eq_(2).dtype() == kInt64);
  CHECK(equal(x.clone().eq_(2), tensor({0, 1, 0})));
  CHECK(equal(x.clone().ne_(tensor({1, 0, 3})), tensor({0, 1, 0})));
  CHECK(equal(x.clone().lt_(2.5), tensor({1, 1, 0})));
  CHECK(equal(x.clone().le_(2), tensor({1, 1, 0})));
  CHECK(equal(tensor({1.5, -1.0}).gt_(tensor({0, 0})), tensor({1.0, 0.0})));
  CHECK(equal(x.clone().ge_(x), tensor({1, 1, 1})));
  CHECK_THROWS_WITH(x.eq_(zeros({2, 3})), ContainsSubstring("does not broadcast to [3]"));
  const Tensor leaf = tensor({1.0, 2.0}).requires_grad_(), y = leaf * 1;
  y.ge_(0);
  y.sum().backward();
  CHECK_FALSE(leaf.grad().defined());  // 0
  CHECK_THROWS_AS(leaf.eq_(1), AutogradError);
}

TEST_CASE("methods that change the shape in place change it for all handles") {
  const Tensor x = arange(6).reshape({2, 3}), other = x;
  x.unsqueeze_(1);
  CHECK(other.sizes() == Shape{2, 1, 3});
  CHECK(x.squeeze_(1).transpose_(0, 1).sizes() == Shape{3, 2});
  CHECK(!other.is_contiguous());
  CHECK(other.to_vector() == std::vector<double>{0, 3, 1, 4, 2, 5});
  CHECK(equal(x.t_(), arange(6).reshape({2, 3})));
  CHECK(other.is_contiguous());
  CHECK(x.unsqueeze_(0).swapaxes_(0, 2).swapdims_(0, 1).sizes() == Shape{2, 3, 1});
  CHECK(x.squeeze_().sizes() == Shape{2, 3});
  CHECK(equal(x.as_strided_({2, 2}, {1, 2}, 1), tensor({{1, 3}, {2, 4}})));
  CHECK(other.storage_offset() == 1);
  x.add_(10);
  CHECK(equal(other, tensor({{11, 13}, {12, 14}})));
  CHECK_THROWS_WITH(x.unsqueeze_(5), ContainsSubstring("dimension 5"));
  CHECK(x.sizes() == Shape{2, 2});
  CHECK_THROWS_AS(Tensor().t_(), ValueError);
}

TEST_CASE("a change of the shape in place is recorded") {
  const Tensor x = tensor({1.0, 2.0, 3.0}).requires_grad_();
  const auto gradient = [&](const Tensor& y) {
    x.zero_grad();
    (y * tensor({{1.0}, {2.0}, {4.0}})).sum().backward();
    return x.grad();
  };
  const Tensor expected = tensor({2.0, 4.0, 8.0});
  const Tensor y = x * 2;
  y.retain_grad();
  CHECK(equal(gradient(y.unsqueeze_(1)), expected));
  CHECK(y.grad().sizes() == Shape{3, 1});
  const Tensor late = x * 2;
  {
    const NoGradGuard no_grad;
    late.unsqueeze_(0).t_();
  }
  CHECK(equal(gradient(late), expected));
  const Tensor view = (x * 2).unsqueeze(0);  // a view of a recorded tensor
  CHECK(equal(gradient(view.t_()), expected));
  CHECK_THROWS_WITH(view.mul_(2), ContainsSubstring("changes in place a view"));
  CHECK_THROWS_WITH(x.unsqueeze_(0), ContainsSubstring("[unsqueeze_] changes in place a leaf"));
  CHECK(x.sizes() == Shape{3});
  const Tensor factor = tensor({1.0, 2.0, 3.0}), product = x * factor;
  factor.unsqueeze_(0);
  CHECK_THROWS_WITH(product.sum().backward(), ContainsSubstring("changed in place"));
}

TEST_CASE("a view of a tensor that has changed stays unusable when its shape changes in place") {
  const Tensor x = tensor({1.0, 2.0}).requires_grad_(), base = x * 2, view = base.view({2, 1});
  base.mul_(3);
  CHECK_THROWS_WITH(view.t_(), ContainsSubstring("[t_]"));
}

TEST_CASE("detach_ ends the history") {
  const Tensor x = tensor({1.0}).requires_grad_(), y = x * 2, view = (x * 2).view({1, 1});
  CHECK(!y.detach_().requires_grad());
  CHECK(y.is_leaf());
  CHECK(y.requires_grad_().requires_grad());
  CHECK_THROWS_WITH(view.detach_(), ContainsSubstring("use detach()"));
  CHECK(!x.detach_().requires_grad());
  CHECK_NOTHROW(tensor({1.0}).detach_());
}
