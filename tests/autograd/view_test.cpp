#include "tapestry/autograd/ops/view.h"

#include <functional>
#include <limits>
#include <vector>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {
std::vector<Tensor> all(const OpCase& c) { return c.inputs(); }
}  // namespace

GOLDEN_OP("view", "view", [](const OpCase& c) { return view(c[0], c.dims("size")); });
GOLDEN_OP("reshape", "view", [](const OpCase& c) { return reshape(c[0], c.dims("shape")); });
GOLDEN_OP("flatten", "view",
          [](const OpCase& c) { return flatten(c[0], c.integer("start_dim"), c.integer("end_dim")); });
GOLDEN_OP("transpose", "view",
          [](const OpCase& c) { return transpose(c[0], c.integer("dim0"), c.integer("dim1")); });
GOLDEN_OP("transpose/t", "view", [](const OpCase& c) { return c[0].t(); });
GOLDEN_OP("permute", "view", [](const OpCase& c) { return permute(c[0], c.dims("dims")); });
GOLDEN_OP("squeeze", "view", [](const OpCase& c) { return squeeze(c[0], c.integer("dim")); });
GOLDEN_OP("squeeze/all", "view", [](const OpCase& c) { return squeeze(c[0]); });
GOLDEN_OP("unsqueeze", "view", [](const OpCase& c) { return unsqueeze(c[0], c.integer("dim")); });
GOLDEN_OP("expand", "view", [](const OpCase& c) { return expand(c[0], c.dims("size")); });
GOLDEN_OP("narrow", "view", [](const OpCase& c) {
  return narrow(c[0], c.integer("dim"), c.integer("start"), c.integer("length"));
});
GOLDEN_OP("slice", "view", [](const OpCase& c) {
  return slice(c[0], c.integer("dim"), c.maybe_integer("start"), c.maybe_integer("end"), c.integer("step"));
});
GOLDEN_OP("select", "view",
          [](const OpCase& c) { return select(c[0], c.integer("dim"), c.integer("index")); });
GOLDEN_OP("split", "view", [](const OpCase& c) { return split(c[0], c.integer("size"), c.integer("dim")); });
GOLDEN_OP("split/sizes", "view",
          [](const OpCase& c) { return split(c[0], c.integers("size"), c.integer("dim")); });
GOLDEN_OP("chunk", "view",
          [](const OpCase& c) { return chunk(c[0], c.integer("chunks"), c.integer("dim")); });
GOLDEN_OP("cat", "view", [](const OpCase& c) { return cat(all(c), c.integer("dim")); });
GOLDEN_OP("stack", "view", [](const OpCase& c) { return stack(all(c), c.integer("dim")); });
GOLDEN_OP("index_select", "view", [](const OpCase& c) { return index_select(c[0], c.integer("dim"), c[1]); });

BAD_INPUT("view", "shape [4] has 4 elements, the tensor of shape [2, 3] 6", [] { zeros({2, 3}).view({4}); });
BAD_INPUT("view", "only one can be worked out", [] { zeros({2, 3}).view({-1, -1}); });
BAD_INPUT("view", "size -2", [] { zeros({2, 3}).view({-2, 3}); });
BAD_INPUT("view", "do not fill shape [4, -1]", [] { zeros({2, 3}).view({4, -1}); });
BAD_INPUT("view", "beside a size of 0", [] { zeros({0, 3}).view({0, -1}); });
BAD_INPUT("view", "more elements than 64 bits can count", [] {
  zeros({2, 3}).view({std::int64_t(1) << 40, std::int64_t(1) << 40});
});
BAD_INPUT("view", "more elements than 64 bits can count", [] {
  zeros({0}).view({0, std::int64_t(1) << 62, 8});  // there are no elements, but the strides would overflow
});
BAD_INPUT("view", "use reshape()", [] { zeros({2, 3}).t().view({6}); });
BAD_INPUT("view", "undefined", [] { Tensor().view({1}); });
BAD_INPUT("reshape", "shape [5] has 5 elements", [] { zeros({2, 3}).reshape({5}); });
BAD_INPUT("flatten", "start 1 comes after end 0", [] { zeros({2, 3}).flatten(1, 0); });
BAD_INPUT("flatten", "dimension 2", [] { zeros({2, 3}).flatten(2); });
BAD_INPUT("transpose", "dimension 3", [] { zeros({2, 3}).transpose(0, 3); });
BAD_INPUT("transpose", "transpose(a, b)", [] { zeros({2, 3, 4}).t(); });
BAD_INPUT("permute", "appears twice", [] { zeros({2, 3}).permute({1, -1}); });
BAD_INPUT("permute", "name each of its dimensions once", [] { zeros({2, 3}).permute({0}); });
BAD_INPUT("squeeze", "dimension 2", [] { zeros({2, 3}).squeeze(2); });
BAD_INPUT("unsqueeze", "dimension 4", [] { zeros({2, 3}).unsqueeze(4); });
BAD_INPUT("unsqueeze", "no room", [] { zeros({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0); });
BAD_INPUT("expand", "size 3 does not repeat to 4", [] { zeros({2, 3}).expand({2, 4}); });
BAD_INPUT("expand", "fewer dimensions", [] { zeros({2, 3}).expand({3}); });
BAD_INPUT("expand", "-1 keeps a size that exists", [] { zeros({3}).expand({-1, 3}); });
BAD_INPUT("expand", "more elements than 64 bits can count", [] {
  zeros({1, 1}).expand({std::int64_t(1) << 40, std::int64_t(1) << 40});
});
BAD_INPUT("narrow", "at most 1 elements are left", [] { zeros({3}).narrow(0, 2, 2); });
BAD_INPUT("narrow", "start 4 is out of range", [] { zeros({3}).narrow(0, 4, 0); });
BAD_INPUT("narrow", "length -1 is negative", [] { zeros({3}).narrow(0, 0, -1); });
BAD_INPUT("narrow", "0-d tensor", [] { zeros({}).narrow(0, 0, 1); });
TEST_CASE("slice: a step beyond the end leaves the strides alone") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = arange(12).view({3, 4});
  const Tensor y = x.slice(0, 1, most, most);
  CHECK(equal(y, tensor({{4, 5, 6, 7}})));
  CHECK(y.strides() == x.strides());
  CHECK(x.slice(1, most, -most, most).numel() == 0);
}

BAD_INPUT("slice", "step 0", [] { zeros({3}).slice(0, 0, 2, 0); });
BAD_INPUT("slice", "0-d tensor", [] { zeros({}).slice(0); });
BAD_INPUT("select", "index 3 is out of range for dimension 0 of shape [3]", [] { zeros({3})[3]; });
BAD_INPUT("select", "index -4", [] { zeros({3})[-4]; });
BAD_INPUT("select", "0-d tensor", [] { zeros({})[0]; });
BAD_INPUT("split", "size 0", [] { zeros({3}).split(0); });
BAD_INPUT("split", "add up to 2", [] { zeros({3}).split(std::vector<std::int64_t>{1, 1}); });
BAD_INPUT("split", "add up to more than", [] { zeros({3}).split(std::vector<std::int64_t>{2, 2}); });
BAD_INPUT("split", "size -1 is negative", [] { zeros({3}).split(std::vector<std::int64_t>{-1, 4}); });
BAD_INPUT("chunk", "0 chunks", [] { zeros({3}).chunk(0); });
BAD_INPUT("chunk", "0-d tensor", [] { zeros({}).chunk(1); });
BAD_INPUT("cat", "empty list", [] { cat({}); });
BAD_INPUT("cat", "tensor 1 has shape [3, 3], the first [2, 2]", [] { cat({zeros({2, 2}), zeros({3, 3})}); });
BAD_INPUT("cat", "tensor 1 is 0-d", [] { cat({zeros({2}), zeros({})}); });
BAD_INPUT("cat", "undefined", [] { cat({zeros({2}), Tensor()}); });
BAD_INPUT("cat", "dimension 1", [] { cat({zeros({2}), zeros({2})}, 1); });
BAD_INPUT("stack", "tensor 1 has shape [3], the first [2]", [] { stack({zeros({2}), zeros({3})}); });
BAD_INPUT("stack", "empty list", [] { stack({}); });
BAD_INPUT("index_select", "index 4 at position 1 is outside [0, 4)", [] {
  index_select(zeros({4, 2}), 0, tensor({0, 4, 5}));
});
BAD_INPUT("index_select", "index -1 at position 0", [] { index_select(zeros({4, 2}), 0, tensor({-1})); });
BAD_INPUT("index_select", "indices are integers", [] { index_select(zeros({4}), 0, zeros({2})); });
BAD_INPUT("index_select", "1-d", [] { index_select(zeros({4}), 0, tensor({{0, 1}})); });

TEST_CASE("views share storage and copies do not") {
  const Tensor x = arange(24).reshape({2, 3, 4});
  for (const Tensor& y :
       {x.view({6, 4}), x.reshape({24}), x.flatten(1), x.transpose(0, 2), x.permute({2, 0, 1}), x[0].t(),
        x.unsqueeze(1).squeeze(1), x.narrow(1, 1, 2), x.slice(2, 1, {}, 2), x.select(1, 2), x[1],
        x.split(2, 1)[1], x.chunk(2, 2)[1], x.unsqueeze(0).expand({3, 2, 3, 4})})
    CHECK(y.storage() == x.storage());
  CHECK_FALSE(cat({x}).storage() == x.storage());
  CHECK_FALSE(x.transpose(0, 1).reshape({24}).storage() == x.storage());
}

OP_TEST("view", strided, "takes the strides that allow it") {
  const Tensor x = arange(24).reshape({2, 3, 4});
  // There is a gap after every row. So a row cannot be merged with the next one, but the dimensions before it
  // can be regrouped.
  const Tensor gaps = x.narrow(2, 0, 2);
  CHECK(gaps.view({6, 2}).strides() == Shape{4, 1});
  CHECK(gaps.view({3, 2, 2}).strides() == Shape{8, 4, 1});
  CHECK_THROWS_AS(gaps.view({12}), ValueError);
  // Transposed dimensions cannot be merged. Sizes of 1 can be inserted anywhere.
  CHECK_THROWS_AS(x.transpose(0, 1).view({6, 4}), ValueError);
  CHECK(x.transpose(0, 1).view({3, 2, 2, 2}).strides() == Shape{4, 12, 2, 1});
  CHECK(equal(x.transpose(0, 1).view({3, 1, 2, 2, 1, 2}), x.transpose(0, 1).reshape({3, 1, 2, 2, 1, 2})));
  // An expanded dimension can be split, but it cannot be merged with a dimension of another stride.
  const Tensor repeated = arange(3).unsqueeze(0).expand({4, 3});
  CHECK(repeated.view({2, 2, 3}).strides() == Shape{0, 0, 1});
  CHECK_THROWS_AS(repeated.view({12}), ValueError);
  CHECK(repeated.reshape({12})[5].item<int>() == 2);
  // A single element, which is not the first of its storage, can be viewed as 0-d.
  CHECK(x.slice(0, 1).slice(1, 2).slice(2, 3).view({}).item<int>() == 23);
}

TEST_CASE("an in-place change through a view is one of the base, and counted") {
  const Tensor x = zeros({2, 3});
  const auto before = x.version();
  x[1].fill_(7);
  CHECK(x.version() > before);
  CHECK(x.sum().item() == 21);
}

TEST_CASE("gradients of pieces that were not used are zero") {
  const Tensor x = arange(6, DType::f64).set_requires_grad();
  const std::vector<Tensor> parts = x.split(2);
  parts[1].sum().backward();
  CHECK(equal(x.grad(), tensor({0.0, 0.0, 1.0, 1.0, 0.0, 0.0}, DType::f64)));
}

TEST_CASE("gradients of pieces that lie in one tensor") {
  const auto numbers = [] { return arange(8, DType::f32).view({4, 2}); };
  const Tensor g = numbers();
  // The gradient of x if the halves of x are joined like this, and the result has the gradient g.
  const auto gradient = [&g](int dim, const std::function<std::vector<Tensor>(std::vector<Tensor>)>& order) {
    const Tensor x = zeros({4, 2}).set_requires_grad();
    cat(order(x.chunk(2, dim)), dim).backward(g);
    return x.grad();
  };
  for (const int dim : {0, 1}) {
    const auto halves = g.chunk(2, dim);
    const Tensor same = gradient(dim, [](auto p) { return p; });
    CHECK(same.equal(g));
    same.fill_(-1);
    CHECK(g.equal(numbers()));  // the caller's tensor is no part of it
    CHECK(gradient(dim, [](auto p) {
            return std::vector{p[1], p[0]};
          }).equal(cat({halves[1], halves[0]}, dim)));
    CHECK(gradient(dim, [](auto p) {
            return std::vector{p[0], p[0]};
          }).equal(cat({halves[0] + halves[1], zeros_like(halves[0])}, dim)));
  }
  // Each gradient begins at its place, but is transposed.
  CHECK(gradient(0, [](auto p) {
          return std::vector{p[0].t(), p[1].t()};
        }).equal(cat({g.narrow(0, 0, 2).t(), g.narrow(0, 2, 2).t()}, 0)));
}

TEST_CASE("cat keeps channels-last") {
  const Tensor x = rand({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  const Tensor y = cat({x, x}, 1);
  CHECK(y.memory_format() == MemoryFormat::channels_last);
  CHECK(equal(y.narrow(1, 3, 3), x));
  CHECK(cat({x, x.contiguous()}, 1).memory_format() == MemoryFormat::contiguous);
}

TEST_CASE("cat skips tensors of shape [0], as PyTorch does") {
  const Tensor none = zeros({0}).set_requires_grad(), x = rand({2, 3}).set_requires_grad();
  const Tensor y = cat({none, x}, 1);
  CHECK(equal(y, x));
  y.sum().backward();
  CHECK(equal(x.grad(), ones({2, 3})));
}

TEST_CASE("index_select adds up the gradients of an index that comes twice, in f32 for bf16") {
  // Adds 300 ones. A sum in bf16 would stop at 256.
  const Tensor x = zeros({2, 3}, DType::bf16).set_requires_grad();
  index_select(x, 0, zeros({300}, DType::i64)).sum().backward();
  CHECK(x.grad()[0][0].item() == 300);
  CHECK(x.grad()[1][0].item() == 0);
}

TEST_CASE("index_select: the gradient of repeated indices is the same for any number of threads") {
  const int before = get_num_threads();
  struct Case {
    Shape sizes;
    int dim;
  };
  // Threads share the 200,000 columns of the one outer slice, or the outer slices of the others.
  for (const Case& c : {Case{{3, 200'000}, 0}, {{4, 3, 50'001}, 1}, {{50'001, 3}, 1}, {{1, 3, 1}, 1}}) {
    CAPTURE(c.sizes);
    const std::vector<std::int64_t> at{2, 0, 2, 2, 0};
    const Tensor x = zeros(c.sizes, DType::f64), index = tensor(at);
    Shape sizes = c.sizes;
    sizes[c.dim] = 5;
    const Tensor dy = rand(sizes, DType::f64) + 0.5;
    const Tensor wanted = zeros(c.sizes, DType::f64);
    for (int i = 0; i < 5; ++i)
      wanted.select(c.dim, at[static_cast<std::size_t>(i)]).add_(dy.select(c.dim, i));
    for (const int threads : {1, 2, 3, 7}) {
      CAPTURE(threads);
      set_num_threads(threads);
      const Tensor leaf = x.clone().set_requires_grad();
      const Tensor y = index_select(leaf, c.dim, index);
      y.backward(dy);
      CHECK(allclose(leaf.grad(), wanted, 1e-14, 0));
    }
  }
  set_num_threads(before);
}

TEST_CASE("nine dimensions are refused") {
  const Tensor x = zeros({1, 1, 1, 1, 1, 1, 1, 1});
  CHECK_THROWS_AS(stack({x, x}), ValueError);
}
