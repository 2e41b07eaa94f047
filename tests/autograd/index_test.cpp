#include "tapestry/autograd/ops/index.h"

#include <limits>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::indexing;
using tapestry::test::OpCase;

namespace {

using Indices = std::vector<TensorIndex>;

// The indices that tests/golden/index.py writes for a form.
Indices indices_of(const std::string& form, const Tensor& a, const Tensor& b) {
  if (form == "t") return {a};
  if (form == "t,t") return {a, b};
  if (form == ":,t") return {Slice(), a};
  if (form == ":,t,t") return {Slice(), a, b};
  if (form == "t,:,t") return {a, Slice(), b};
  if (form == "...,t") return {"...", a};
  if (form == "t,1") return {a, 1};
  if (form == "1,t") return {1, a};
  if (form == "1,:,t") return {1, Slice(), a};
  if (form == "t,None,t") return {a, None, b};
  if (form == "None,t") return {None, a};
  if (form == "1::2,t") return {Slice(1, None, 2), a};
  if (form == "t,-2:") return {a, Slice(-2)};
  if (form == "True,t") return {true, a};
  if (form == "False") return {false};
  if (form == "True") return {true};
  if (form == "1") return {1};
  if (form == "...,-1") return {Ellipsis, -1};
  if (form == ":-1,None,1::2") return {Slice(None, -1), None, Slice(1, None, 2)};
  if (form == "...") return {"..."};
  FAIL("unknown form " << form);
  return {};
}
Indices indices(const OpCase& c) { return indices_of(c.text("form"), c[1], c[2]); }

struct Threads {
  explicit Threads(int n) : before(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

}  // namespace

GOLDEN_OP("gather", "index", [](const OpCase& c) { return gather(c[0], c.integer("dim"), c[1]); });
GOLDEN_OP("gather/take_along_dim", "index",
          [](const OpCase& c) { return take_along_dim(c[0], c[1], c.maybe_integer("dim")); });
GOLDEN_OP("scatter", "index", [](const OpCase& c) { return scatter(c[0], c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("scatter/value", "index",
          [](const OpCase& c) { return scatter(c[0], c.integer("dim"), c[1], c.scalar("value")); });
GOLDEN_OP("scatter/in_place", "index",
          [](const OpCase& c) { return c[0].clone().scatter_(c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("scatter/in_place_value", "index",
          [](const OpCase& c) { return c[0].clone().scatter_(c.integer("dim"), c[1], c.scalar("value")); });
GOLDEN_OP("scatter_add", "index",
          [](const OpCase& c) { return scatter_add(c[0], c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("scatter_add/in_place", "index",
          [](const OpCase& c) { return c[0].clone().scatter_add_(c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("scatter_reduce", "index", [](const OpCase& c) {
  return scatter_reduce(c[0], c.integer("dim"), c[1], c[2], c.text("reduce"), c.flag("include_self"));
});
GOLDEN_OP("scatter_reduce/in_place", "index", [](const OpCase& c) {
  return c[0].clone().scatter_reduce_(c.integer("dim"), c[1], c[2], c.text("reduce"), c.flag("include_self"));
});
GOLDEN_OP("index_add", "index",
          [](const OpCase& c) { return index_add(c[0], c.integer("dim"), c[1], c[2], c.scalar("alpha")); });
GOLDEN_OP("index_add/in_place", "index", [](const OpCase& c) {
  return c[0].clone().index_add_(c.integer("dim"), c[1], c[2], c.scalar("alpha"));
});
GOLDEN_OP("index_copy", "index",
          [](const OpCase& c) { return index_copy(c[0], c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("index_copy/in_place", "index",
          [](const OpCase& c) { return c[0].clone().index_copy_(c.integer("dim"), c[1], c[2]); });
GOLDEN_OP("index_fill", "index",
          [](const OpCase& c) { return index_fill(c[0], c.integer("dim"), c[1], c.scalar("value")); });
GOLDEN_OP("index_fill/in_place", "index", [](const OpCase& c) {
  return c[0].clone().index_fill_(c.integer("dim"), c[1], c.scalar("value"));
});
GOLDEN_OP("index", "index", [](const OpCase& c) { return c[0].index(indices(c)); });
GOLDEN_OP("index/mask", "index", [](const OpCase& c) { return c[0].index(indices(c)); });
GOLDEN_OP("index_put", "index",
          [](const OpCase& c) { return c[0].index_put(indices(c), c[3], c.flag("accumulate")); });
GOLDEN_OP("index_put/in_place", "index",
          [](const OpCase& c) { return c[0].clone().index_put_(indices(c), c[3], c.flag("accumulate")); });
GOLDEN_OP("index_put/mask", "index",
          [](const OpCase& c) { return c[0].index_put(indices(c), c[3], c.flag("accumulate")); });
GOLDEN_OP("masked_select", "index", [](const OpCase& c) { return masked_select(c[0], c[1]); });
GOLDEN_OP("masked_scatter", "index", [](const OpCase& c) { return masked_scatter(c[0], c[1], c[2]); });
GOLDEN_OP("masked_scatter/in_place", "index",
          [](const OpCase& c) { return c[0].clone().masked_scatter_(c[1], c[2]); });
BAD_INPUT("masked_scatter", "the mask is int64", [] { zeros({3}).masked_scatter(arange(3), zeros({3})); });
BAD_INPUT("masked_scatter", "selects 3 elements, but source has 2",
          [] { zeros({3}).masked_scatter(ones({3}, kBool), zeros({2})); });
GOLDEN_OP("take", "index", [](const OpCase& c) { return c[0].take(c[1]); });
BAD_INPUT("take", "index 12", [] { zeros({3, 4}).take(tensor({12})); });
BAD_INPUT("take", "float32", [] { zeros({3, 4}).take(zeros({2})); });
GOLDEN_OP("nonzero", "index", [](const OpCase& c) { return nonzero(c[0]); });
GOLDEN_OP("nonzero/numpy", "index", [](const OpCase& c) { return nonzero_numpy(c[0]); });
GOLDEN_OP("one_hot", "index", [](const OpCase& c) { return one_hot(c[0], c.integer("num_classes")); });
GOLDEN_OP("one_hot/counted", "index", [](const OpCase& c) { return one_hot(c[0]); });
NOT_APPLICABLE("one_hot", extreme, "its inputs are class numbers");

BAD_INPUT("gather", "index 3 at position 1 is outside [0, 3) for dimension 0 of a tensor of shape [3, 2]",
          [] {
            gather(zeros({3, 2}), 0, tensor({{2, 3}}));
          });
BAD_INPUT("gather", "index -1 at position 0 is outside [0, 3)", [] { gather(zeros({3}), 0, tensor({-1})); });
BAD_INPUT("gather", "index is float32", [] { gather(zeros({3}), 0, zeros({1})); });
BAD_INPUT("gather", "same number of dimensions", [] { gather(zeros({3, 2}), 0, tensor({1})); });
BAD_INPUT("gather", "larger than the tensor's [3, 2] in dimension 1", [] {
  gather(zeros({3, 2}), 0, zeros({1, 3}, kInt64));
});
BAD_INPUT("gather", "dimension 2", [] { gather(zeros({3, 2}), 2, zeros({1, 1}, kInt64)); });
BAD_INPUT("gather", "undefined", [] { gather(Tensor(), 0, tensor({1})); });
BAD_INPUT("gather", "[take_along_dim] indices have shape [1]", [] {
  take_along_dim(zeros({3, 2}), tensor({1}), 0);
});
BAD_INPUT("scatter", "index 9223372036854775807 at position 1", [] {
  scatter(zeros({3}), 0, tensor(std::vector<std::int64_t>{0, std::numeric_limits<std::int64_t>::max()}), 1);
});
BAD_INPUT("scatter", "src has dtype float64",
          [] { scatter(zeros({3}), 0, tensor({0}), zeros({1}, kFloat64)); });
BAD_INPUT("scatter", "smaller than the index's [2] in dimension 0", [] {
  scatter(zeros({3}), 0, tensor({0, 1}), zeros({1}));
});
BAD_INPUT("scatter", "elements share memory", [] { zeros({1}).expand({3}).scatter_(0, tensor({0}), 1); });
BAD_INPUT("scatter_add", "index 3 at position 2 is outside [0, 3)", [] {
  scatter_add(zeros({3}), 0, tensor({0, 1, 3}), zeros({3}));
});
BAD_INPUT("scatter_add", "undefined", [] { scatter_add(zeros({3}), 0, tensor({0}), Tensor()); });
BAD_INPUT("scatter_reduce", "reduce is 'max'; choose",
          [] { scatter_reduce(zeros({3}), 0, tensor({0}), zeros({1}), "max"); });
BAD_INPUT("scatter_reduce", "mean does not take int64",
          [] { scatter_reduce(arange(3), 0, tensor({0}), arange(1), "mean"); });
BAD_INPUT("scatter_reduce", "index -3",
          [] { scatter_reduce(zeros({3}), 0, tensor({-3}), zeros({1}), "amax", false); });
BAD_INPUT("index_add", "source has shape [2, 3], expected [2, 2]", [] {
  index_add(zeros({3, 2}), 0, tensor({0, 1}), zeros({2, 3}));
});
BAD_INPUT("index_add", "index has shape [1, 1]", [] { index_add(zeros({3}), 0, tensor({{0}}), zeros({1})); });
BAD_INPUT("index_add", "alpha is 0.5", [] { index_add(arange(3), 0, tensor({0}), arange(1), 0.5); });
BAD_INPUT("index_add", "index 2 at position 1 is outside [0, 2) for dimension 1", [] {
  index_add(zeros({3, 2}), 1, tensor({0, 2}), zeros({3, 2}));
});
BAD_INPUT("index_copy", "index -1", [] { index_copy(zeros({3}), 0, tensor({-1}), zeros({1})); });
BAD_INPUT("index_copy", "source has dtype int64",
          [] { index_copy(zeros({3}), 0, tensor({0}), zeros({1}, kInt64)); });
BAD_INPUT("index_fill", "index -4 at position 0 is outside [-3, 3)",
          [] { index_fill(zeros({3}), 0, tensor({-4}), 1); });
BAD_INPUT("index", "index 3 is outside [-3, 3) for dimension 0", [] { zeros({3, 2}).index({3}); });
BAD_INPUT("index", "index 2 at position 1 is outside [-2, 2) for dimension 1 of a tensor of shape [3, 2]",
          [] {
            zeros({3, 2}).index({tensor({0, 1, 2}), tensor({1, 2, 0})});
          });
BAD_INPUT("index", "index -4 at position 0", [] { zeros({3, 2}).index({tensor({-4})}); });
BAD_INPUT("index", "for 3 dimensions, but the tensor of shape [3, 2] has 2", [] {
  zeros({3, 2}).index({0, Slice(), 0});
});
BAD_INPUT("index", "more than one index is an ellipsis", [] { zeros({3, 2}).index({"...", "..."}); });
BAD_INPUT("index", "the text '..' is not an index", [] { zeros({3, 2}).index({".."}); });
BAD_INPUT("index", "uint8; convert it to bool", [] { zeros({3}).index({zeros({3}, kUInt8)}); });
BAD_INPUT("index", "an index tensor is float32", [] { zeros({3}).index({zeros({3})}); });
BAD_INPUT("index", "a mask has shape [2], but dimension 0", [] { zeros({3}).index({zeros({2}, kBool)}); });
BAD_INPUT("index", "do not broadcast", [] { zeros({3, 3}).index({tensor({0, 1}), tensor({0, 1, 2})}); });
BAD_INPUT("index", "the step of a slice is 0", [] { zeros({3}).index({Slice(None, None, 0)}); });
BAD_INPUT("index", "the list of indices is empty", [] { zeros({3}).index({}); });
BAD_INPUT("index", "an index is an undefined tensor", [] { zeros({3}).index({Tensor()}); });
BAD_INPUT("index", "more than 8 dimensions", [] {
  zeros({1, 1}).index({zeros({1, 1, 1, 1, 1, 1, 1, 1}, kInt64)});
});
BAD_INPUT("index_put", "values of shape [3] do not broadcast to the selected elements, of shape [2]", [] {
  zeros({3}).index_put({tensor({0, 1})}, zeros({3}));
});
BAD_INPUT("index_put", "values has dtype int64", [] { zeros({3}).index_put({tensor({0})}, arange(1)); });
BAD_INPUT("index_put", "index 3 at position 0", [] { zeros({3}).index_put_({tensor({3})}, 1); });
BAD_INPUT("masked_select", "the mask is int64", [] { masked_select(zeros({3}), arange(3)); });
BAD_INPUT("masked_select", "do not broadcast", [] { masked_select(zeros({3}), zeros({2}, kBool)); });
BAD_INPUT("nonzero", "undefined", [] { nonzero(Tensor()); });
BAD_INPUT("one_hot", "does not take float32", [] { one_hot(zeros({3})); });
BAD_INPUT("one_hot", "index 3 at position 1 is outside [0, 3)", [] { one_hot(tensor({0, 3}), 3); });
BAD_INPUT("one_hot", "index -1 at position 0", [] { one_hot(tensor({-1, 3}), 4); });
BAD_INPUT("one_hot", "index -2 is negative", [] { one_hot(tensor({-2, -3})); });
BAD_INPUT("one_hot", "9223372036854775807 classes of an index of shape [1] do not fit",
          [] { one_hot(full({1}, std::numeric_limits<std::int64_t>::max(), kInt64)); });
BAD_INPUT("one_hot", "[3] do not fit in memory", [] { one_hot(zeros({3}, kInt64), std::int64_t{1} << 59); });
BAD_INPUT("one_hot", "the index is empty", [] { one_hot(zeros({0}, kInt64)); });
BAD_INPUT("one_hot", "num_classes is 0", [] { one_hot(tensor({0}), 0); });

TEST_CASE("indices of all integer dtypes select the same elements") {
  const Tensor x = randn({5, 6}), i = tensor({{4, 0, 1}, {2, 2, 3}});
  for (const DType dtype : {kInt32, kUInt8}) {
    CHECK(equal(gather(x, 0, i.to(dtype)), gather(x, 0, i)));
    CHECK(equal(index_select(x, 1, i[0].to(dtype)), index_select(x, 1, i[0])));
    CHECK(equal(embedding(x, i.to(dtype)), embedding(x, i)));
    CHECK(equal(x.scatter(1, i.to(dtype), 0), x.scatter(1, i, 0)));
    CHECK(equal(one_hot(i.to(dtype), 5), one_hot(i, 5)));
  }
  CHECK(equal(x.index({i.to(kInt32)}), x.index({i})));
}

TEST_CASE("an element that is written several times gets the last value") {
  const Tensor to = tensor({1, 0, 1, 1, 0}), values = arange(1, 6);
  CHECK(equal(zeros({2}, kInt64).scatter(0, to, values), tensor({5, 4})));
  CHECK(equal(zeros({2}, kInt64).index_copy(0, to, values), tensor({5, 4})));
  CHECK(equal(zeros({2}, kInt64).index_put({to}, values), tensor({5, 4})));
  CHECK(equal(zeros({2}, kInt64).index_put({to}, values, true), tensor({7, 8})));
}

TEST_CASE("results of index operations do not depend on the number of threads") {
  const Tensor x = randn({300, 400}), src = randn({500, 400}), to = randint(0, 300, {500, 400});
  const Tensor rows = randint(0, 300, {500}), mask = randn({300, 400}) > 0;
  const auto all = [&] {
    return std::vector<Tensor>{x.scatter_add(0, to, src),
                               x.scatter(0, to, src),
                               x.scatter_reduce(0, to, src, "prod"),
                               x.index_put({rows}, src),
                               x.index_put({rows}, src, true),
                               x.reshape(-1).index_put({to}, src, true),
                               x.index_add(0, rows, src),
                               x.gather(0, to),
                               x.masked_select(mask),
                               mask.nonzero(),
                               x.index({Slice(), to[0]})};
  };
  std::vector<Tensor> one;
  {
    const Threads single(1);
    one = all();
  }
  for (const int threads : {2, 3, 7}) {
    const Threads several(threads);
    const std::vector<Tensor> got = all();
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i, threads);
      CHECK(equal(got[i], one[i]));
    }
  }
}

TEST_CASE("an index out of range among many is reported by its position, for any number of threads") {
  Tensor to = zeros({40, 5000}, kInt64);
  to[7][4000].fill_(9);
  to[33][1].fill_(-1);
  for (const int threads : {1, 2, 5}) {
    const Threads several(threads);
    CHECK_THROWS_WITH(zeros({9, 5000}).gather(0, to), ContainsSubstring("index 9 at position 39000"));
    CHECK_THROWS_WITH(zeros({9, 5000}).scatter_add(0, to, zeros({40, 5000})),
                      ContainsSubstring("index 9 at position 39000"));
  }
}

TEST_CASE("index: integers, slices, None and an ellipsis give a view; tensors and bools give a copy") {
  const Tensor x = arange(24).reshape({2, 3, 4});
  for (const Tensor& y : {x.index({1}), x.index({"...", Slice(1, 3)}), x.index({None, 0}),
                          x.index({Ellipsis}), x.index({scalar_tensor(1, kInt64)})})
    CHECK(y.storage() == x.storage());
  for (const Tensor& y : {x.index({tensor({1})}), x.index({true}), x[tensor({0, 1})]})
    CHECK_FALSE(y.storage() == x.storage());
  CHECK(x.index({Slice(None, None, 100), Slice(-100, 100), Slice(3, 1)}).sizes() == Shape{1, 3, 0});
}

TEST_CASE("index_put_ writes to a view's elements only, and to tensors in any layout") {
  const Tensor x = zeros({4, 6});
  x.t().slice(0, 1, 5).index_put_({tensor({0, 3}), Slice(2)}, tensor({1.0, 2.0}));
  CHECK(x.sum().item() == 6);
  CHECK(equal(x.index({Slice(2), tensor({1, 4})}), tensor({{1.0, 1.0}, {2.0, 2.0}})));
}

TEST_CASE("values, indices and the target of an in-place change may share memory") {
  const Tensor x = arange(5);
  x.index_put_({tensor({4, 3, 2, 1, 0})}, x);
  CHECK(equal(x, tensor({4, 3, 2, 1, 0})));
  x.index_put_({x}, arange(5));
  CHECK(equal(x, tensor({4, 3, 2, 1, 0})));
  x.index_put_({Slice(1)}, x.slice(0, 0, 4));
  CHECK(equal(x, tensor({4, 4, 3, 2, 1})));
  x.scatter_add_(0, x.clone(), x);
  CHECK(equal(x, tensor({4, 5, 5, 5, 9})));
}

TEST_CASE("an in-place change of part of a recorded tensor keeps the gradient of the rest") {
  const Tensor x = tensor({1.0, 2.0, 3.0}, kFloat64).set_requires_grad();
  const Tensor v = tensor({5.0}, kFloat64).set_requires_grad();
  const Tensor y = x * 2;
  y.index_put_({Slice(1, 2)}, v);
  y.index_put_({tensor({0, 0})}, v, true);
  y.index_put_({y > 6.5}, 0);
  (y * tensor({1.0, 10.0, 100.0}, kFloat64)).sum().backward();
  CHECK(equal(x.grad(), tensor({0.0, 0.0, 200.0}, kFloat64)));  // y[0] = 2 + 5 + 5 exceeds 6.5
  CHECK(equal(v.grad(), tensor({10.0}, kFloat64)));
}

TEST_CASE("backward of index, gather and masked_select throws after an in-place change of the indices") {
  const Tensor x = ones({3}).set_requires_grad();
  const Tensor i = tensor({0, 1});
  const Tensor y = x.index({i});
  i.fill_(2);
  CHECK_THROWS_AS(y.sum().backward(), AutogradError);
}

TEST_CASE("sums of many elements of half precision are accumulated in f32") {
  const Tensor to = zeros({1000}, kInt64), src = ones({1000}, kBFloat16);
  const Tensor x = zeros({2}, TensorOptions(kBFloat16));
  CHECK(x.scatter_add(0, to, src)[0].item() == 1000);
  CHECK(x.clone().index_add_(0, to, src)[0].item() == 1000);
  CHECK(x.scatter_reduce(0, to, src, "mean", false)[0].item() == 1);
  const Tensor leaf = zeros({2}, TensorOptions(kBFloat16).with_grad());
  leaf.gather(0, to).backward(src);
  CHECK(leaf.grad()[0].item() == 1000);
}

TEST_CASE("integers wrap around when they are added and multiplied") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = tensor(std::vector<std::int64_t>{most}), to = tensor({0, 0}), two = tensor({1, 2});
  CHECK(x.scatter_add(0, to, two)[0].item<std::int64_t>() == std::numeric_limits<std::int64_t>::min() + 2);
  CHECK(x.scatter_reduce(0, to, two, "prod")[0].item<std::int64_t>() == -2);
  CHECK(x.scatter_reduce(0, to, tensor(std::vector<std::int64_t>{most, most - 1}), "amin", false)[0]
            .item<std::int64_t>() == most - 1);
}

TEST_CASE("scatter_reduce: without the old value, an equal old value is not a tie of amax") {
  const Tensor x = tensor({3.0, 1.0}, kFloat64).set_requires_grad();
  const Tensor src = tensor({3.0, 2.0}, kFloat64).set_requires_grad();
  x.scatter_reduce(0, tensor({0, 0}), src, "amax", false).sum().backward();
  CHECK(equal(x.grad(), tensor({0.0, 1.0}, kFloat64)));
  CHECK(equal(src.grad(), tensor({1.0, 0.0}, kFloat64)));
}

TEST_CASE("scatter: a source that is larger than the index is used from its beginning") {
  const Tensor src = arange(6).to(kFloat64).reshape({2, 3}).set_requires_grad();
  const Tensor y = zeros({2, 3}, kFloat64).scatter(1, tensor({{2}}), src);
  CHECK(equal(y, zeros({2, 3}, kFloat64)));
  zeros({2, 3}, kFloat64).scatter_add(0, tensor({{1, 0}}), src).sum().backward();
  CHECK(equal(src.grad(), tensor({{1.0, 1.0, 0.0}, {0.0, 0.0, 0.0}}, kFloat64)));
}

TEST_CASE("masks of more elements than one block, and none or all true") {
  const Tensor x = arange(5000).reshape({50, 100});
  CHECK(equal(x.masked_select(x >= 0), arange(5000)));
  CHECK(x.masked_select(x < 0).numel() == 0);
  const Tensor third = (x.index({Slice(), Slice(None, None, 3)}));
  CHECK(equal(third.masked_select(third >= 2000), third.slice(0, 20).reshape(-1)));
  const Tensor at = (x == 4321).nonzero();
  CHECK(equal(at, tensor({{43, 21}})));
}

TEST_CASE("scatter_reduce_ reads values that share memory with the target before it changes them") {
  const Tensor x = tensor({1.0, 2.0, 3.0});
  x.scatter_reduce_(0, tensor({1, 2, 0}), x, "sum", false);
  CHECK(equal(x, tensor({3.0, 1.0, 2.0})));
  const Tensor half = x.to(kFloat16);
  half.scatter_reduce_(0, tensor({1, 1, 1}), half, "amax");
  CHECK(equal(half, tensor({3.0, 3.0, 2.0}).to(kFloat16)));
}
