#include "tapestry/autograd/ops/embedding_bag.h"

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

constexpr EmbeddingBagMode kModes[] = {EmbeddingBagMode::sum, EmbeddingBagMode::mean, EmbeddingBagMode::max};
const Tensor& table() {
  static const Tensor t = zeros({5, 3});
  return t;
}

}  // namespace

GOLDEN_OP("embedding_bag", "embedding_bag", [](const OpCase& c) {
  const std::string mode = c.text("mode");
  return embedding_bag(c[0], c[1],
                       {.mode = kModes[mode == "sum"    ? 0
                                       : mode == "mean" ? 1
                                                        : 2],
                        .offsets = c[2],
                        .include_last_offset = c.flag("include_last_offset", false),
                        .per_sample_weights = c[3],
                        .padding_idx = c.maybe_integer("padding_idx")});
});

BAD_INPUT("embedding_bag", "index 5 at position 1 is outside [0, 5)", [] {
  embedding_bag(table(), tensor({0, 5}), {.offsets = tensor({0})});
});
BAD_INPUT("embedding_bag", "index -1", [] { embedding_bag(table(), tensor({{0, -1}})); });
BAD_INPUT("embedding_bag", "indices are float32", [] { embedding_bag(table(), zeros({2, 2})); });
BAD_INPUT("embedding_bag", "without offsets", [] { embedding_bag(table(), tensor({0, 1})); });
BAD_INPUT("embedding_bag", "leave the offsets out", [] {
  embedding_bag(table(), tensor({{0, 1}}), {.offsets = tensor({0})});
});
BAD_INPUT("embedding_bag", "indices have shape [1, 1, 1]", [] {
  embedding_bag(table(), zeros({1, 1, 1}, kInt64));
});
BAD_INPUT("embedding_bag", "2 dimensions", [] { embedding_bag(zeros({5}), tensor({{0}})); });
BAD_INPUT("embedding_bag", "does not take int64", [] {
  embedding_bag(zeros({5, 3}, kInt64), tensor({{0}}));
});
BAD_INPUT("embedding_bag", "padding_idx 5",
          [] { embedding_bag(table(), tensor({{0}}), {.padding_idx = 5}); });
BAD_INPUT("embedding_bag", "per_sample_weights with a mode other than sum", [] {
  embedding_bag(table(), tensor({{0}}), {.per_sample_weights = ones({1, 1})});
});
BAD_INPUT("embedding_bag", "per_sample_weights have shape [1]", [] {
  embedding_bag(table(), tensor({{0}}), {.mode = EmbeddingBagMode::sum, .per_sample_weights = ones({1})});
});
BAD_INPUT("embedding_bag", "per_sample_weights has dtype float64", [] {
  embedding_bag(table(), tensor({{0}}),
                {.mode = EmbeddingBagMode::sum, .per_sample_weights = ones({1, 1}, kFloat64)});
});
BAD_INPUT("embedding_bag", "offsets are float32",
          [] { embedding_bag(table(), tensor({0}), {.offsets = zeros({1})}); });
BAD_INPUT("embedding_bag", "include_last_offset without offsets",
          [] { embedding_bag(table(), tensor({{0}}), {.include_last_offset = true}); });
BAD_INPUT("embedding_bag", "2 indices without a bag", [] {
  embedding_bag(table(), tensor({0, 1}), {.offsets = zeros({0}, kInt64)});
});
BAD_INPUT("embedding_bag", "offset at position 0 is out of order", [] {
  embedding_bag(table(), tensor({0, 1}), {.offsets = tensor({1})});
});
BAD_INPUT("embedding_bag", "offset at position 2 is out of order", [] {
  embedding_bag(table(), tensor({0, 1, 2}), {.offsets = tensor({0, 2, 1})});
});
BAD_INPUT("embedding_bag", "offset at position 1 is out of order", [] {
  embedding_bag(table(), tensor({0, 1, 2}), {.offsets = tensor({0, 4})});
});
BAD_INPUT("embedding_bag", "offset at position 1 is out of order", [] {
  embedding_bag(table(), tensor({0, 1, 2}), {.offsets = tensor({0, 2}), .include_last_offset = true});
});

TEST_CASE("embedding_bag: results and gradients have the same bits for every number of threads") {
  const Tensor weight = randn({50, 40}), at = randint(0, 50, {200, 30});
  for (const EmbeddingBagMode mode : kModes) {
    const auto run = [&](int threads) {
      set_num_threads(threads);
      const Tensor leaf = weight.clone().set_requires_grad();
      const Tensor y = embedding_bag(leaf, at, {.mode = mode});
      y.backward(y.detach());
      return std::pair(y.detach(), leaf.grad());
    };
    const int before = get_num_threads();
    const auto one = run(1), three = run(3);
    set_num_threads(before);
    CHECK(equal(one.first, three.first));
    CHECK(equal(one.second, three.second));
  }
}

TEST_CASE("embedding_bag: long bags in half precision are summed in f32") {
  const Tensor weight = ones({3, 2}, TensorOptions(kBFloat16).with_grad());
  const Tensor at = zeros({1, 1000}, kInt64);
  const Tensor y = embedding_bag(weight, at, {.mode = EmbeddingBagMode::sum});
  CHECK(equal(y.detach().to(kFloat32), full({1, 2}, 1000.0)));
  y.backward(ones({1, 2}, kBFloat16));
  CHECK(equal(weight.grad().to(kFloat32), tensor({{1000.0, 1000.0}, {0.0, 0.0}, {0.0, 0.0}})));
}
