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
