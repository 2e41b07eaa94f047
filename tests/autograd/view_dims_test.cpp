// Views of view_dims.cpp, view_strided.cpp and view_cat.cpp: other dimensions, computed strides, pieces.
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {
std::vector<Tensor> all(const OpCase& c) { return c.inputs(); }
std::optional<std::int64_t> offset_of(const OpCase& c) { return c.maybe_integer("offset"); }
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
}  // namespace

GOLDEN_OP("unflatten", "view_dims",
          [](const OpCase& c) { return c[0].unflatten(c.integer("dim"), c.dims("sizes")); });
GOLDEN_OP("movedim", "view_dims",
          [](const OpCase& c) { return c[0].movedim(c.dims("source"), c.dims("destination")); });
GOLDEN_OP("meshgrid", "view_dims", [](const OpCase& c) {
  return meshgrid(all(c), c.text("indexing") == "xy" ? Indexing::xy : Indexing::ij);
});
GOLDEN_OP("broadcast_tensors", "view_dims", [](const OpCase& c) { return broadcast_tensors(all(c)); });
GOLDEN_OP("diagonal", "view_dims", [](const OpCase& c) {
  return c[0].diagonal(c.integer("offset"), c.integer("dim1"), c.integer("dim2"));
});
GOLDEN_OP("unfold", "view_dims", [](const OpCase& c) {
  return c[0].unfold(c.integer("dim"), c.integer("size"), c.integer("step"));
});
GOLDEN_OP("as_strided", "view_dims",
          [](const OpCase& c) { return c[0].as_strided(c.dims("size"), c.dims("stride"), offset_of(c)); });
GOLDEN_OP("tensor_split", "view_dims",
          [](const OpCase& c) { return c[0].tensor_split(c.integer("sections"), c.integer("dim")); });
GOLDEN_OP("tensor_split/indices", "view_dims",
          [](const OpCase& c) { return c[0].tensor_split(c.integers("indices"), c.integer("dim")); });
GOLDEN_OP("unbind", "view_dims", [](const OpCase& c) { return c[0].unbind(c.integer("dim")); });
GOLDEN_OP("hstack", "view_dims", [](const OpCase& c) { return hstack(all(c)); });
GOLDEN_OP("vstack", "view_dims", [](const OpCase& c) { return vstack(all(c)); });
GOLDEN_OP("dstack", "view_dims", [](const OpCase& c) { return dstack(all(c)); });

BAD_INPUT("unflatten", "do not multiply to size 6", [] { zeros({6}).unflatten(0, {4, 2}); });
BAD_INPUT("unflatten", "do not multiply to size 6", [] { zeros({6}).unflatten(0, {-1, 4}); });
BAD_INPUT("unflatten", "only one can be worked out", [] { zeros({6}).unflatten(0, {-1, -1}); });
BAD_INPUT("unflatten", "beside a size of 0", [] { zeros({0}).unflatten(0, {-1, 0}); });
BAD_INPUT("unflatten", "0-d tensor", [] { zeros({}).unflatten(0, {1}); });
BAD_INPUT("unflatten", "empty list", [] { zeros({1}).unflatten(0, {}); });
BAD_INPUT("unflatten", "the limit", [] { zeros({1, 1, 1, 1}).unflatten(0, {1, 1, 1, 1, 1, 1}); });
BAD_INPUT("movedim", "appears twice", [] { zeros({2, 3}).movedim({0, -2}, {0, 1}); });
BAD_INPUT("movedim", "appears twice", [] { zeros({2, 3}).movedim({0, 1}, {1, 1}); });
BAD_INPUT("movedim", "give as many", [] { zeros({2, 3}).movedim({0, 1}, {1}); });
BAD_INPUT("movedim", "dimension 2", [] { zeros({2, 3}).moveaxis(2, 0); });
BAD_INPUT("meshgrid", "empty list", [] { meshgrid({}); });
BAD_INPUT("meshgrid", "at most one dimension", [] { meshgrid({zeros({2, 2})}); });
BAD_INPUT("meshgrid", "one dtype", [] { meshgrid({zeros({2}), zeros({2}, kInt64)}); });
BAD_INPUT("broadcast_tensors", "[2]", [] { broadcast_tensors({zeros({2}), zeros({3})}); });
BAD_INPUT("diagonal", "same dimension", [] { zeros({2, 3}).diagonal(0, 1, -1); });
BAD_INPUT("diagonal", "no matrices", [] { zeros({3}).diagonal(); });
BAD_INPUT("unfold", "windows of 4 elements", [] { zeros({3}).unfold(0, 4, 1); });
BAD_INPUT("unfold", "step 0", [] { zeros({3}).unfold(0, 2, 0); });
BAD_INPUT("unfold", "windows of 2 elements", [] { zeros({}).unfold(0, 2, 1); });
BAD_INPUT("unfold", "no room", [] { zeros({1, 1, 1, 1, 1, 1, 1, 1}).unfold(0, 1, 1); });
BAD_INPUT("as_strided", "reach beyond the 6 elements", [] { zeros({2, 3}).as_strided({2, 3}, {3, 2}); });
BAD_INPUT("as_strided", "reach beyond the 6 elements", [] { zeros({2, 3}).as_strided({1}, {1}, 6); });
BAD_INPUT("as_strided", "reach beyond", [] { zeros({2, 3}).as_strided({2, 2}, {kMost, kMost}); });
BAD_INPUT("as_strided", "reach beyond", [] { zeros({2, 3}).as_strided({2}, {1}, kMost); });
BAD_INPUT("as_strided", "is negative", [] { zeros({2, 3}).as_strided({2}, {-1}, 3); });
BAD_INPUT("as_strided", "is negative", [] { zeros({2, 3}).as_strided({2}, {1}, -1); });
BAD_INPUT("as_strided", "give one stride for each size", [] { zeros({2, 3}).as_strided({2}, {1, 1}); });
BAD_INPUT("tensor_split", "0 sections", [] { zeros({3}).tensor_split(0); });
BAD_INPUT("tensor_split", "0-d tensor", [] { zeros({}).tensor_split(2); });
BAD_INPUT("unbind", "0-d tensor", [] { zeros({}).unbind(); });
BAD_INPUT("hstack", "empty list", [] { hstack({}); });
BAD_INPUT("hstack", "all sizes but that of dimension 1", [] { hstack({zeros({2, 3}), zeros({3, 3})}); });
BAD_INPUT("vstack", "empty list", [] { vstack({}); });
BAD_INPUT("dstack", "undefined", [] { dstack({zeros({2}), Tensor()}); });

OP_TEST("as_strided", strided, "reads the storage, whatever the layout of the input is") {
  const Tensor base = arange(12, DType::f64);
  const Tensor x = base.view({3, 4}).transpose(0, 1).narrow(0, 1, 2);  // offset 1, strides (1, 4)
  CHECK(equal(x.as_strided({2, 2}, {2, 3}), tensor({{1, 4}, {3, 6}}, DType::f64)));
  CHECK(equal(x.as_strided({3}, {5}, 0), tensor({0, 5, 10}, DType::f64)));
}

TEST_CASE("as_strided: an element of the input that the view shows n times gets n gradients") {
  const Tensor base = arange(12, DType::f64).view({3, 4});
  const Tensor x = base.clone().transpose(0, 1).narrow(0, 1, 2).set_requires_grad();  // elements 1 2 5 6 9 10
  // Element 5 appears twice, 1 and 9 once. Elements 3 and 7 are not elements of x.
  x.as_strided({2, 3}, {4, 2}).sum().backward();  // 1 3 5, 5 7 9
  CHECK(equal(x.grad(), tensor({{1, 2, 1}, {0, 0, 0}}, DType::f64)));
}

TEST_CASE("as_strided: elements of an expanded input share the gradient, as in PyTorch") {
  const Tensor x = tensor({1.0, 2.0}, DType::f64).unsqueeze(0).expand({4, 2}).set_requires_grad();
  (x.as_strided({2}, {1}) * tensor({8.0, 4.0}, DType::f64)).sum().backward();
  CHECK(equal(x.grad(), tensor({{2, 1}, {2, 1}, {2, 1}, {2, 1}}, DType::f64)));
}

TEST_CASE("unfold adds up the gradients of overlapping windows in f32 for bf16") {
  // The middle element lies in 300 windows. A sum in bf16 would stop at 256.
  const Tensor x = zeros({599}, DType::bf16).set_requires_grad();
  x.unfold(0, 300, 1).sum().backward();
  CHECK(x.grad()[299].item() == 300);
  CHECK(x.grad()[0].item() == 1);
}

TEST_CASE("the other names of views give the same views") {
  const Tensor x = arange(24).view({2, 3, 4}), y = zeros({4, 6});
  CHECK(equal(x.swapaxes(0, 2), x.transpose(0, 2)));
  CHECK(equal(swapdims(x, 0, -1), x.transpose(0, 2)));
  CHECK(equal(x.swapdims(1, 2), swapaxes(x, 1, 2)));
  CHECK(equal(x.moveaxis(0, 2), movedim(x, 0, 2)));
  CHECK(equal(moveaxis(x, {0, 1}, {2, 0}), x.movedim({0, 1}, {2, 0})));
  CHECK(equal(x.ravel(), x.flatten()));
  CHECK(equal(x.view_as(y), x.view({4, 6})));
  CHECK(equal(x.reshape_as(y), x.reshape({4, 6})));
  CHECK(equal(x[0][0].expand_as(zeros({3, 4})), x[0][0].broadcast_to({3, 4})));
  CHECK(broadcast_to(x, {2, 2, 3, 4}).sizes() == Shape{2, 2, 3, 4});
  CHECK_THROWS_AS(x.view_as(zeros({5})), ValueError);
}

TEST_CASE("writes through these views change the base, and are counted") {
  const Tensor x = zeros({3, 4});
  const auto before = x.version();
  x.diagonal().fill_(1);
  CHECK(x.version() == before + 1);
  x.as_strided({2}, {2}, 8).fill_(2);
  x.unbind(1)[3].add_(3);
  x.unfold(1, 2, 2).select(2, 1).select(1, 0).mul_(10);
  x.unflatten(1, {2, 2}).select(1, 1).select(1, 0).add_(5);
  x.movedim(1, 0)[0].sub_(1);
  CHECK(equal(x, tensor({{0.0, 0.0, 5.0, 3.0}, {-1.0, 10.0, 5.0, 3.0}, {1.0, 0.0, 7.0, 3.0}})));
  for (const Tensor& t : x.tensor_split(3)) CHECK(t.storage() == x.storage());
  CHECK(meshgrid({x[0], x[1]})[1].storage() == x.storage());
}

TEST_CASE("views whose elements overlap refuse in-place changes") {
  const Tensor x = zeros({5});
  CHECK_THROWS_AS(x.unfold(0, 2, 1).fill_(1), ValueError);
  CHECK_THROWS_AS(x.as_strided({2, 2}, {1, 1}).add_(1), ValueError);
  CHECK_NOTHROW(x.unfold(0, 2, 2).fill_(1));
}

TEST_CASE("a recorded base that changes in place makes these views stale") {
  const Tensor leaf = ones({2, 2}).set_requires_grad();
  const Tensor x = leaf * 2, d = x.diagonal();
  x.add_(1);
  CHECK_THROWS_AS(d.sum(), AutogradError);
  CHECK_THROWS_AS((leaf * 2).as_strided({2}, {1}).add_(1), AutogradError);
}

TEST_CASE("extreme offsets and steps do not overflow") {
  const Tensor x = arange(12).view({3, 4});
  CHECK(x.diagonal(kMost).numel() == 0);
  CHECK(x.diagonal(kLeast).numel() == 0);
  CHECK(equal(x.unfold(1, 4, kMost), x.unsqueeze(1)));
  CHECK(equal(x.tensor_split(std::vector{kMost})[0], x));
  CHECK(x.tensor_split(std::vector{kLeast})[0].numel() == 0);
}
