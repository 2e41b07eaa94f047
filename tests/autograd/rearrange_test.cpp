#include "tapestry/autograd/ops/rearrange.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
}  // namespace

GOLDEN_OP("flip", "rearrange", [](const OpCase& c) { return c[0].flip(c.dims("dims")); });
GOLDEN_OP("roll", "rearrange", [](const OpCase& c) { return c[0].roll(c.dims("shifts"), c.dims("dims")); });
GOLDEN_OP("rot90", "rearrange", [](const OpCase& c) { return c[0].rot90(c.integer("k"), c.dims("dims")); });
GOLDEN_OP("repeat", "rearrange", [](const OpCase& c) { return c[0].repeat(c.dims("repeats")); });
GOLDEN_OP("repeat/tile", "rearrange", [](const OpCase& c) { return c[0].tile(c.dims("repeats")); });
GOLDEN_OP("repeat_interleave", "rearrange", [](const OpCase& c) {
  return c[0].repeat_interleave(c.integer("repeats"), c.maybe_integer("dim"));
});
GOLDEN_OP("repeat_interleave/tensor", "rearrange",
          [](const OpCase& c) { return c[0].repeat_interleave(c[1], c.maybe_integer("dim")); });
GOLDEN_OP("diag", "rearrange", [](const OpCase& c) { return c[0].diag(c.integer("diagonal")); });
GOLDEN_OP("diag_embed", "rearrange", [](const OpCase& c) {
  return c[0].diag_embed(c.integer("offset"), c.integer("dim1"), c.integer("dim2"));
});
GOLDEN_OP("tril", "rearrange", [](const OpCase& c) { return c[0].tril(c.integer("diagonal")); });
GOLDEN_OP("tril/in_place", "rearrange",
          [](const OpCase& c) { return c[0].clone().tril_(c.integer("diagonal")); });
GOLDEN_OP("triu/in_place", "rearrange",
          [](const OpCase& c) { return c[0].clone().triu_(c.integer("diagonal")); });
GOLDEN_OP("block_diag", "rearrange", [](const OpCase& c) { return block_diag(c.inputs()); });
BAD_INPUT("block_diag", "at most 2 dimensions", [] { block_diag({zeros({2, 2, 2})}); });
BAD_INPUT("block_diag", "no tensors", [] { block_diag({}); });
GOLDEN_OP("triu", "rearrange", [](const OpCase& c) { return c[0].triu(c.integer("diagonal")); });
GOLDEN_OP("tril_indices", "rearrange", [](const OpCase& c) {
  return tril_indices(c.integer("row"), c.integer("col"), c.integer("offset"), c.dtype("dtype"));
});
GOLDEN_OP("triu_indices", "rearrange", [](const OpCase& c) {
  return triu_indices(c.integer("row"), c.integer("col"), c.integer("offset"), c.dtype("dtype"));
});
NOT_APPLICABLE("tril_indices", strided, "takes no tensor");
NOT_APPLICABLE("triu_indices", strided, "takes no tensor");

BAD_INPUT("flip", "appears twice", [] { zeros({2, 3}).flip({0, -2}); });
BAD_INPUT("flip", "dimension 2", [] { zeros({2, 3}).flip(2); });
BAD_INPUT("roll", "give one shift per dimension", [] { zeros({2, 3}).roll({1, 2}, 0); });
BAD_INPUT("roll", "give one shift per dimension", [] { zeros({2, 3}).roll({1, 2}); });
BAD_INPUT("roll", "leave dims out", [] { zeros({}).roll(1, 0); });
BAD_INPUT("rot90", "name two", [] { zeros({2, 3}).rot90(1, {1, -1}); });
BAD_INPUT("rot90", "name two dimensions", [] { zeros({2}).rot90(1, 0); });
BAD_INPUT("repeat", "give one per dimension", [] { zeros({2, 3}).repeat(2); });
BAD_INPUT("repeat", "-1 repeats", [] { zeros({2}).repeat(-1); });
BAD_INPUT("repeat", "more than 64 bits can count", [] { zeros({2}).repeat(kMost); });
BAD_INPUT("repeat_interleave", "-1 repeats", [] { zeros({2}).repeat_interleave(-1); });
BAD_INPUT("repeat_interleave", "-1 repeats of entry 1", [] {
  zeros({2}).repeat_interleave(tensor({1, -1}));
});
BAD_INPUT("repeat_interleave", "give 2, or one for all", [] {
  zeros({2}).repeat_interleave(tensor({1, 2, 3}));
});
BAD_INPUT("repeat_interleave", "give integers", [] { zeros({2}).repeat_interleave(zeros({2})); });
BAD_INPUT("repeat_interleave", "1-d", [] { zeros({2}).repeat_interleave(tensor({{1, 2}})); });
BAD_INPUT("diag", "a vector or a matrix", [] { zeros({2, 2, 2}).diag(); });
BAD_INPUT("diag_embed", "name two", [] { zeros({2, 2}).diag_embed(0, 1, -2); });
BAD_INPUT("diag_embed", "give 1 to 7", [] { zeros({}).diag_embed(); });
BAD_INPUT("diag_embed", "more elements", [] { zeros({2}).diag_embed(std::int64_t(1) << 40); });
BAD_INPUT("diag_embed", "64 bits cannot count", [] { zeros({2}).diag_embed(kLeast); });
BAD_INPUT("tril", "no matrices", [] { zeros({3}).tril(); });
BAD_INPUT("triu", "no matrices", [] { zeros({3}).triu(); });
BAD_INPUT("tril_indices", "does not take float32", [] { tril_indices(2, 2, 0, kFloat32); });
BAD_INPUT("triu_indices", "size -1", [] { triu_indices(-1, 2); });

TEST_CASE("rearrangements are copies, also when every element keeps its place") {
  const Tensor x = arange(6).view({2, 3});
  for (const Tensor& y : {x.flip({}), x.roll(0), x.rot90(0), x.repeat({1, 1}), x.tile({}), x.diag(),
                          x.repeat_interleave(1, 0), x.tril(100), x.repeat({2, 1, 1})}) {
    CHECK_FALSE(y.storage() == x.storage());
    CHECK_NOTHROW(y.add_(1));
  }
  CHECK(equal(x, arange(6).view({2, 3})));
}

TEST_CASE("flip and roll keep the layout of a dense input") {
  const Tensor x = rand({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  CHECK(x.flip({1, 2}).memory_format() == MemoryFormat::channels_last);
  CHECK(x.roll({1, 2}, {1, 3}).memory_format() == MemoryFormat::channels_last);
  CHECK(equal(x.flip({1, 2}), x.contiguous().flip({1, 2})));
  CHECK(equal(x.roll({1, 2}, {1, 3}), x.contiguous().roll({1, 2}, {1, 3})));
}

TEST_CASE("flip reverses rows of every length and element size, whole vectors and their tails") {
  for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::f64, DType::boolean})
    for (const std::int64_t n : {1, 15, 16, 33, 100}) {
      const Tensor x = arange(2 * n).to(dtype).view({2, n});
      for (std::int64_t i = 0; i < n; ++i) {
        INFO(dtype << ", element " << i << " of " << n);
        CHECK(equal(x.flip(1).select(1, i), x.select(1, n - 1 - i)));
      }
    }
}

TEST_CASE("flip reverses arrays that several threads copy") {
  const std::int64_t n = 300001;
  CHECK(equal(arange(n).flip(0), arange(n - 1, -1, -1)));
  const Tensor x = arange(n - 1).view({1000, 300});
  CHECK(equal(x.flip({0, 1}).flatten(), x.flatten().flip(0)));
}

TEST_CASE("extreme diagonals and shifts do not overflow") {
  const Tensor x = arange(1, 7).view({2, 3});
  CHECK(equal(x.tril(kMost), x));
  CHECK(equal(x.triu(kLeast), x));
  CHECK(equal(x.tril(kLeast), zeros_like(x)));
  CHECK(equal(x.triu(kMost), zeros_like(x)));
  CHECK(equal(x.roll({kMost, kLeast}, {0, 1}), x.roll({1, kLeast % 3}, {0, 1})));
  CHECK(x.rot90(kLeast).sizes() == Shape{2, 3});
  CHECK(tril_indices(2, 2, kLeast).sizes() == Shape{2, 0});
}

TEST_CASE("tril sets NaNs above the diagonal to 0, and gives them no gradient") {
  const Tensor x = full({2, 2}, std::numeric_limits<double>::quiet_NaN(), DType::f64);
  const Tensor kept = x.clone().set_requires_grad(), y = kept.tril(-1);
  CHECK(y[0][1].item() == 0);
  CHECK(y[1][1].item() == 0);
  y.sum().backward();
  CHECK(equal(kept.grad(), tensor({{0, 0}, {1, 0}}, DType::f64)));
}

TEST_CASE("fill_diagonal_ fills PyTorch's elements, also wrapped, and passes gradients to the others") {
  CHECK(equal(zeros({2, 3}).fill_diagonal_(5), tensor({{5.0, 0.0, 0.0}, {0.0, 5.0, 0.0}})));
  const Tensor tall = zeros({7, 3});
  CHECK(tall.fill_diagonal_(1).sum().item() == 3);
  tall.fill_diagonal_(2, true);
  for (int i = 0; i < 7; ++i)
    for (int j = 0; j < 3; ++j) CHECK(tall[i][j].item() == (i % 4 == j ? 2 : 0));
  CHECK(equal(zeros({3, 7}).t().fill_diagonal_(2, true), tall));
  const Tensor cube = zeros({3, 3, 3}).fill_diagonal_(1);
  CHECK(cube.sum().item() == 3);
  CHECK(cube[2][2][2].item() == 1);
  const Tensor x = ones({2, 2}).requires_grad_(), y = x * 3;
  y.fill_diagonal_(0);
  y.sum().backward();
  CHECK(equal(x.grad(), tensor({{0.0, 3.0}, {3.0, 0.0}})));
  CHECK_THROWS_WITH(zeros({3}).fill_diagonal_(1), ContainsSubstring("at least 2 dimensions"));
  CHECK_THROWS_WITH(zeros({2, 2, 3}).fill_diagonal_(1), ContainsSubstring("must be equal"));
}

TEST_CASE("repeat_interleave takes counts of every integer dtype") {
  const Tensor x = arange(3), counts = tensor({2, 0, 1});
  for (const DType dtype : {DType::i32, DType::u8, DType::i16, DType::i8, DType::u16})
    CHECK(equal(x.repeat_interleave(counts.to(dtype)), tensor({0, 0, 2})));
}
