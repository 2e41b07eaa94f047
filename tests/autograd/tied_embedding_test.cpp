// The gradient of an embedding whose weight is also that of the head: the embedding's rows are added to the
// head's dense gradient, which is the only tensor of that size beside the weight.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

constexpr std::int64_t kWords = 2000, kWidth = 128;
constexpr std::int64_t kDense = kWords * kWidth * 4;

Tensor ids_of(std::int64_t seed) { return (arange(8) * (seed * 2 + 7) + seed).remainder(6).reshape({2, 4}); }

Tensor loss_of(const Tensor& weight, std::int64_t seed) {
  const Tensor ids = ids_of(seed), x = embedding(weight, ids) * 2;
  return linear_cross_entropy(x, weight, (ids + 1400).contiguous());
}

// The same by operations of which each has a gradient of its own.
Tensor expected_gradient(const Tensor& weight, const std::vector<std::int64_t>& seeds, double scale) {
  const Tensor leaf = weight.detach().clone().set_requires_grad();
  for (const std::int64_t seed : seeds) {
    const Tensor ids = ids_of(seed), x = leaf.index_select(0, ids.flatten()) * 2;
    (cross_entropy(linear(x, leaf), (ids + 1400).flatten()) * scale).backward();
  }
  return leaf.grad();
}

Tensor make_weight(DType dtype = DType::f32) {
  manual_seed(2);
  return randn({kWords, kWidth}).to(dtype).set_requires_grad();
}

std::int64_t peak(const MemoryRecord& record) {
  std::int64_t most = 0;
  for (const MemorySample& s : record.samples(kCPU)) most = (std::max)(most, s.total());
  return most;
}

}  // namespace

TEST_CASE("tied embeddings: the gradient is the sum of both parts") {
  for (const double scale : {1.0, 0.25}) {
    const Tensor weight = make_weight(DType::f64);
    (loss_of(weight, 1) * scale).backward();
    CHECK(allclose(weight.grad(), expected_gradient(weight, {1}, scale), 1e-12, 1e-15));
    (loss_of(weight, 2) * scale).backward();  // accumulates
    CHECK(allclose(weight.grad(), expected_gradient(weight, {1, 2}, scale), 1e-12, 1e-15));
  }
}

TEST_CASE("tied embeddings: gradients that others can see are not changed") {
  const Tensor weight = make_weight(DType::f64);
  // The embedding's gradient arrives where the caller's is.
  const Tensor table = weight * 1, mine = ones({kWords, kWidth}, kFloat64);
  const Tensor looked_up = embedding(table, ids_of(3)).sum();
  autograd::backward({table, looked_up}, {mine, ones({}, kFloat64)});
  CHECK(mine.equal(ones({kWords, kWidth}, kFloat64)));
  CHECK(weight.grad().sum().item() == Approx(static_cast<double>((kWords + 8) * kWidth)));
  // A view of a gradient that another branch still needs: transpose() passes on the memory.
  const Tensor a = make_weight(DType::f64), doubled = a * 2;
  const Tensor square = doubled.t().t();
  (embedding(doubled, ids_of(1)).sum() + square.pow(2).sum()).backward();
  Tensor expected = a.detach() * 8;
  expected.index_add_(0, ids_of(1).flatten(), full({8, kWidth}, 2.0, kFloat64));
  CHECK(allclose(a.grad(), expected, 1e-12, 1e-12));
}

TEST_CASE("tied embeddings: a retained graph gives the same gradient twice") {
  for (const double scale : {1.0, 0.5}) {
    const Tensor weight = make_weight(DType::f64), loss = loss_of(weight, 1) * scale;
    loss.backward({}, true);
    const Tensor first = weight.grad().clone();
    weight.grad().mul_(3);  // the gradient shares no memory with the graph
    weight.zero_grad();
    loss.backward();
    CHECK(weight.grad().equal(first));
    CHECK(allclose(first, expected_gradient(weight, {1}, scale), 1e-12, 1e-15));
  }
  const Tensor weight = make_weight(DType::f64);
  const Tensor twice = loss_of(weight, 1);
  const std::vector<Tensor> d = autograd::grad({twice}, {weight}, {.create_graph = true});
  CHECK(allclose(d[0], expected_gradient(weight, {1}, 1), 1e-12, 1e-15));
}

TEST_CASE("tied embeddings: one dense gradient exists beside the weight") {
  const Tensor weight = make_weight();
  MemoryRecord record;
  loss_of(weight, 1).backward();
  // The weight is older than the record and counts as other; the logits of a chunk and the rest are small.
  const std::int64_t before = record.samples(kCPU).front().total();
  const std::int64_t logits = 8 * kWords * 4;
  CHECK(peak(record) - before < kDense + 6 * logits);
  CHECK(weight.grad().defined());
}
