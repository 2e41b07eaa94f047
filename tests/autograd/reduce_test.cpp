#include "tapestry/autograd/ops/reduce.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Dims dims(const OpCase& c) { return c.dims("dim", Shape()); }
bool keepdim(const OpCase& c) { return c.flag("keepdim", false); }

struct Threads {
  explicit Threads(int n) : before(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

}  // namespace

GOLDEN_OP("sum", "reduce", [](const OpCase& c) { return sum(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("mean", "reduce", [](const OpCase& c) { return mean(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("aminmax", "reduce",
          [](const OpCase& c) { return c[0].aminmax(c.maybe_integer("dim"), keepdim(c)); });
BAD_INPUT("aminmax", "undefined", [] { aminmax(Tensor()); });
BAD_INPUT("aminmax", "dimension 2", [] { zeros({2, 3}).aminmax(2); });
GOLDEN_OP("var", "reduce",
          [](const OpCase& c) { return var(c[0], dims(c), c.flag("unbiased", true), keepdim(c)); });
GOLDEN_OP("logsumexp", "reduce", [](const OpCase& c) { return logsumexp(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("norm", "reduce", [](const OpCase& c) { return norm(c[0], c.real("p"), dims(c), keepdim(c)); });
GOLDEN_OP("max", "reduce", [](const OpCase& c) { return max(c[0], c.integer("dim"), keepdim(c)); });
GOLDEN_OP("amax", "reduce", [](const OpCase& c) { return amax(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("amin", "reduce", [](const OpCase& c) { return amin(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("max/all", "reduce", [](const OpCase& c) { return max(c[0]); });
GOLDEN_OP("min", "reduce", [](const OpCase& c) { return min(c[0], c.integer("dim"), keepdim(c)); });
GOLDEN_OP("min/all", "reduce", [](const OpCase& c) { return min(c[0]); });
GOLDEN_OP("argmax", "reduce",
          [](const OpCase& c) { return argmax(c[0], c.maybe_integer("dim"), keepdim(c)); });
GOLDEN_OP("argmin", "reduce",
          [](const OpCase& c) { return argmin(c[0], c.maybe_integer("dim"), keepdim(c)); });
GOLDEN_OP("std", "reduce",
          [](const OpCase& c) { return c[0].std(dims(c), c.flag("unbiased", true), keepdim(c)); });
GOLDEN_OP("prod", "reduce", [](const OpCase& c) { return prod(c[0], c.integer("dim"), keepdim(c)); });
GOLDEN_OP("prod/all", "reduce", [](const OpCase& c) { return prod(c[0]); });
GOLDEN_OP("nansum", "reduce", [](const OpCase& c) { return nansum(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("nanmean", "reduce", [](const OpCase& c) { return nanmean(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("any", "reduce", [](const OpCase& c) { return any(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("all", "reduce", [](const OpCase& c) { return all(c[0], dims(c), keepdim(c)); });
GOLDEN_OP("count_nonzero", "reduce", [](const OpCase& c) { return count_nonzero(c[0], dims(c)); });

BAD_INPUT("std", "int64", [] { arange(3).std(); });
BAD_INPUT("std", "dimension 1", [] { zeros({3}).std(1); });
BAD_INPUT("prod", "dimension 2", [] { zeros({2, 3}).prod(2); });
BAD_INPUT("prod", "undefined", [] { Tensor().prod(); });
BAD_INPUT("nansum", "dimension 2", [] { zeros({2, 3}).nansum(2); });
BAD_INPUT("nanmean", "int64", [] { arange(3).nanmean(); });
BAD_INPUT("any", "dimension 1 appears twice", [] { zeros({2, 3}).any({1, -1}); });
BAD_INPUT("all", "dimension 2", [] { zeros({2, 3}).all(2); });
BAD_INPUT("count_nonzero", "dimension 2", [] { zeros({2, 3}).count_nonzero(2); });
BAD_INPUT("sum", "dimension 2", [] { zeros({2, 3}).sum(2); });
BAD_INPUT("sum", "dimension 1 appears twice in [1, -1]", [] { zeros({2, 3}).sum({1, -1}); });
BAD_INPUT("sum", "undefined", [] { Tensor().sum(); });
BAD_INPUT("mean", "int64", [] { arange(3).mean(); });
BAD_INPUT("mean", "dimension -3", [] { zeros({2, 3}).mean(-3); });
BAD_INPUT("var", "int64", [] { arange(3).var(); });
BAD_INPUT("var", "dimension 1", [] { zeros({3}).var(1); });
BAD_INPUT("logsumexp", "int64", [] { arange(3).logsumexp(0); });
BAD_INPUT("norm", "not a number", [] { zeros({3}).norm(std::nan("")); });
BAD_INPUT("norm", "no elements (shape [0, 3])", [] { zeros({0, 3}).norm(kInf, 0); });
BAD_INPUT("norm", "no elements", [] { zeros({0}).norm(-1); });
BAD_INPUT("norm", "int64", [] { arange(3).norm(); });
BAD_INPUT("max", "no elements to choose from in a tensor of shape [0, 3]", [] { zeros({0, 3}).max(0); });
BAD_INPUT("max", "no elements", [] { zeros({0}).max(); });
BAD_INPUT("amax", "no elements", [] { zeros({0, 3}).amax({0}); });
BAD_INPUT("amin", "dimension 1 appears twice in [1, -1]", [] { zeros({2, 3}).amin({1, -1}); });
BAD_INPUT("min", "no elements", [] { zeros({2, 0}).min(); });
BAD_INPUT("min", "dimension 2", [] { zeros({2, 3}).min(2); });
BAD_INPUT("argmax", "no elements", [] { zeros({0}).argmax(); });
BAD_INPUT("argmax", "dimension 5", [] { zeros({2}).argmax(5); });
BAD_INPUT("argmin", "no elements", [] { argmin(zeros({2, 0}), 1); });

TEST_CASE("f32 sums are as exact as their inputs, over rows, columns and everything") {
  // Sums 0.1f a million times. One running f32 sum would be wrong by 1%, and 32 partial f32 sums still by
  // 1e-4.
  const double each = static_cast<double>(0.1f);
  const std::int64_t n = 1 << 20;
  const double eps = std::numeric_limits<float>::epsilon();
  // The bound counts roundings in f32. Each SIMD lane adds up 32 elements before it is merged into an f64
  // total. The lanes of a block are added in 5 steps.
  const double bound = (32 + 5 + 1) * eps;
  CHECK(full({n}, 0.1f).sum().item() == Approx(n * each).epsilon(bound));
  CHECK(full({n, 3}, 0.1f).sum(0)[1].item() == Approx(n * each).epsilon(bound));
  CHECK(full({2, n}, 0.1f).sum(1)[1].item() == Approx(n * each).epsilon(bound));
  CHECK(full({n}, 0.1f).slice(0, {}, {}, 2).sum().item() == Approx(n / 2 * each).epsilon(bound));
  CHECK(full({n}, 0.1f).mean().item() == Approx(each).epsilon(bound));
}

TEST_CASE("sums of f16 and bf16 are taken in f32") {
  CHECK(ones({3000}, DType::bf16).sum().item() ==
        3008);  // 3000 rounds to 3008 in bf16; a sum accumulated in bf16 would stop at 256
  CHECK(ones({3001}, DType::f16).mean().item() == 1);  // a sum accumulated in f16 would stop at 2048
  CHECK(ones({3000, 2}, DType::bf16).sum(0)[1].item() == 3008);
}

TEST_CASE("results do not depend on the number of threads") {
  for (const Shape& shape :
       {Shape{300000}, Shape{100000, 3}, Shape{3, 100000}, Shape{40, 70, 90}, Shape{2000, 300}}) {
    const Tensor x = randn(shape);
    std::vector<Tensor> one, several;
    for (auto* const out : {&one, &several}) {
      const Threads threads(out == &one ? 1 : 3);
      *out = {x.sum(),         x.sum(0),     x.sum(-1), x.var(),   x.norm(),
              x.logsumexp({}), x.norm(3, 0), x.max(),   x.argmax()};
    }
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], several[i]));
  }
}

// Inputs with every kind of stride reach every branch of the loops. The results must agree with plain loops.
TEST_CASE("reductions over any dimensions of any strides agree with plain loops") {
  const Tensor base = randn({3, 5, 37, 8}, DType::f64);
  const std::vector<Tensor> layouts = {base,
                                       base.permute({0, 3, 1, 2}),
                                       base.permute({3, 2, 1, 0}),
                                       base.slice(3, 1, {}, 3),
                                       base.narrow(2, 3, 33),
                                       base.select(0, 1).unsqueeze(0).expand({4, 5, 37, 8}),
                                       base.permute({2, 0, 3, 1}).narrow(0, 30, 1)};
  for (const Tensor& x : layouts)
    for (unsigned mask = 1; mask < 16; ++mask) {
      Dims reduced;
      for (int d = 0; d < 4; ++d)
        if (mask >> d & 1) reduced.push_back(d);
      const Tensor got = x.sum(reduced, true);
      const Tensor expected = zeros(got.sizes(), DType::f64);
      for (std::int64_t a = 0; a < x.size(0); ++a)
        for (std::int64_t b = 0; b < x.size(1); ++b)
          for (std::int64_t c = 0; c < x.size(2); ++c)
            for (std::int64_t d = 0; d < x.size(3); ++d) {
              const std::int64_t index[] = {a, b, c, d};
              std::int64_t from = 0, to = 0;
              for (int k = 0; k < 4; ++k) {
                from += index[k] * x.strides()[k];
                if (!(mask >> k & 1)) to += index[k] * expected.strides()[k];
              }
              expected.data<double>()[to] += x.data<double>()[from];
            }
      INFO("strides " << x.strides().str() << ", dimensions " << reduced.str());
      CHECK(allclose(got, expected, 1e-12, 1e-11));
    }
}

TEST_CASE("long reductions find the maximum in every block and the first of equals") {
  const Tensor x = zeros({100000});
  for (const std::int64_t at : {0, 1, 31, 32, 16383, 16384, 65535, 99999}) {
    x.zero_();
    x[at].fill_(1);
    x[99999].fill_(1);
    CHECK(x.argmax().item<std::int64_t>() == at);
    CHECK(x.max().item() == 1);
    x.neg_();
    CHECK(argmin(x).item<std::int64_t>() == at);
    CHECK(x.min().item() == -1);
    x[at].fill_(std::nan(""));
    CHECK(std::isnan(x.max().item()));
    CHECK(x.argmax().item<std::int64_t>() == at);
  }
}

TEST_CASE("integers are summed in i64") {
  CHECK(full({3}, 2147483647, DType::i32).sum().item<std::int64_t>() == 6442450941);
  CHECK(full({1000}, 255, DType::u8).sum().item<std::int64_t>() == 255000);
  CHECK(ones({1000}, DType::boolean).sum().dtype() == DType::i64);
}

TEST_CASE("a sum of integers beyond i64 wraps around") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t n : {2, 100, 70000}) {
    const auto expected =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(most) * static_cast<std::uint64_t>(n));
    CHECK(full({n}, most).sum().item<std::int64_t>() == expected);
    CHECK(full({n, 3}, most).sum(0)[1].item<std::int64_t>() == expected);
  }
}

TEST_CASE("the variance of values far from zero keeps its digits in f32") {
  const Tensor x = arange(0, 1000, 1, DType::f32) + 1e6;
  CHECK(x.var().item() == Approx(1000.0 * 1001 / 12).epsilon(1e-6));
}

TEST_CASE("the gradient of a norm at zero is zero") {
  for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInf}) {
    const Tensor x = zeros({3}, DType::f64).set_requires_grad();
    x.norm(p).backward();
    CHECK(equal(x.grad(), zeros({3}, DType::f64)));
  }
}

TEST_CASE("prod: factors whose partial products leave the range of f32 give a product within it") {
  // 40 factors of 1e3 and 40 of 1e-3 in f32, so that blocks and lanes meet both orders.
  std::vector<float> factors;
  for (int i = 0; i < 40; ++i) factors.push_back(1e3f);
  for (int i = 0; i < 40; ++i) factors.push_back(1e-3f);
  const Tensor x = tensor(factors);
  CHECK(prod(x).item() == Approx(1).epsilon(1e-5));
  const Tensor many = x.unsqueeze(1).expand({80, 3});
  CHECK(allclose(prod(many, 0), ones({3}), 1e-5));
  // A product that is recorded is computed by cumprod and must agree.
  const Tensor leaf = x.clone().set_requires_grad();
  CHECK(prod(leaf).item() == Approx(prod(x).item()).epsilon(1e-6));
  // A long row is divided into blocks; integers wrap.
  CHECK(prod(ones({100000})).item() == 1);
  CHECK(prod(full({64}, std::int64_t{3})).item<std::int64_t>() == [] {
    std::uint64_t power = 1;
    for (int i = 0; i < 64; ++i) power *= 3;
    return static_cast<std::int64_t>(power);
  }());
}
