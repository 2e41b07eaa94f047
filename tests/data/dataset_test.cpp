#include "tapestry/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tapestry/data/formats/synthetic.h"
#include "tapestry/data/sampler.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

/// Creates f32 [rows, columns] with values 10 * row + column, and i64 labels equal to the row.
TensorDataset numbered(std::int64_t rows, std::int64_t columns = 2) {
  Tensor input = empty({rows, columns}), target = empty({rows}, DType::i64);
  for (std::int64_t i = 0; i < rows; ++i) {
    target.data<std::int64_t>()[i] = i;
    for (std::int64_t j = 0; j < columns; ++j)
      input.data<float>()[i * columns + j] = static_cast<float>(10 * i + j);
  }
  return TensorDataset(input, target);
}

std::vector<std::int64_t> labels(const Tensor& t) {
  return std::vector<std::int64_t>(t.data<std::int64_t>(), t.data<std::int64_t>() + t.numel());
}

bool is_permutation_of(std::vector<std::int64_t> order, std::int64_t size) {
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < size; ++i)
    if (order[static_cast<std::size_t>(i)] != i) return false;
  return static_cast<std::int64_t>(order.size()) == size;
}

}  // namespace

TEST_CASE("TensorDataset gives rows as views and gathers batches") {
  const TensorDataset dataset = numbered(5);
  CHECK(dataset.size() == 5);
  const Example third = dataset.get(3);
  CHECK(third.input.sizes() == Shape{2});
  CHECK(third.input.data<float>()[1] == 31);
  CHECK(third.input.storage().get() == dataset.input().storage().get());
  CHECK(third.target.dim() == 0);
  CHECK(third.target.data<std::int64_t>()[0] == 3);
  const std::vector<std::int64_t> indices = {4, 0, 4};
  const Example batch = *dataset.get_batch(indices);
  CHECK(batch.input.sizes() == Shape{3, 2});
  CHECK(labels(batch.target) == indices);
  CHECK(batch.input.data<float>()[4] == 40);
  CHECK((*dataset.get_batch({})).input.sizes() == Shape{0, 2});
  CHECK_THROWS_AS(dataset.get(5), IndexError);
  CHECK_THROWS_AS(dataset.get(-1), IndexError);
  const std::vector<std::int64_t> bad = {0, 5};
  CHECK_THROWS_WITH(dataset.get_batch(bad), ContainsSubstring("index 5 is out of range for 5 rows"));
}

TEST_CASE("TensorDataset accepts strided tensors and refuses scalars and mismatched sizes") {
  Tensor base = empty({3, 4});
  for (int i = 0; i < 12; ++i) base.data<float>()[i] = static_cast<float>(i);
  const TensorDataset columns(tapestry::detail::raw_view(base, {4, 3}, {1, 4}, 0));
  const std::vector<std::int64_t> indices = {3, 1};
  const Tensor batch = columns.get_batch(indices)->input;
  const float expected[] = {3, 7, 11, 1, 5, 9};
  CHECK(std::equal(expected, expected + 6, batch.data<float>()));
  CHECK_FALSE(columns.get(0).target.defined());
  CHECK_THROWS_WITH(TensorDataset(empty({3, 2}), empty({4}, DType::i64)),
                    ContainsSubstring("different numbers of samples"));
  CHECK_THROWS_WITH(TensorDataset(empty(Shape{})), ContainsSubstring("no dimension"));
  CHECK_THROWS_WITH(TensorDataset(Tensor()), ContainsSubstring("undefined"));
  CHECK(TensorDataset(empty({0, 3})).size() == 0);
}

TEST_CASE("stack_samples refuses samples of different shape or dtype") {
  Tensor base = empty({2, 3});
  for (int i = 0; i < 6; ++i) base.data<float>()[i] = static_cast<float>(i);
  const std::vector<Tensor> columns = {tapestry::detail::raw_view(base, Shape{2}, Shape{3}, 1),
                                       row(dense(base), 0)};
  CHECK_THROWS_WITH(stack_samples(columns), ContainsSubstring("sample 1 of the batch is float32 [3]"));
  const std::vector<Tensor> same = {columns[0], columns[0]};
  const Tensor stacked = stack_samples(same);
  CHECK(stacked.sizes() == Shape{2, 2});
  CHECK(stacked.data<float>()[1] == 4);
  CHECK(stacked.data<float>()[2] == 1);
  const std::vector<Example> half = {{base, base}, {base, Tensor()}};
  CHECK_THROWS_WITH(collate(half), ContainsSubstring("1 of 2 samples have a target"));
  CHECK_THROWS_AS(stack_samples({}), ValueError);
}

TEST_CASE(
    "Subset, ConcatDataset and random_split select the right samples, and refuse bad indices and sizes") {
  const auto base = std::make_shared<const TensorDataset>(numbered(10));
  const Subset<Example> subset(base, {7, 2, 2});
  CHECK(subset.size() == 3);
  CHECK(subset.get(0).target.data<std::int64_t>()[0] == 7);
  const std::vector<std::int64_t> last_first = {2, 0};
  CHECK(labels(subset.get_batch(last_first)->target) == std::vector<std::int64_t>{2, 7});
  CHECK_THROWS_AS(subset.get(3), IndexError);
  CHECK_THROWS_AS(Subset<Example>(base, {10}), ValueError);
  CHECK_THROWS_WITH(Subset<Example>(nullptr, {}), ContainsSubstring("null"));
  CHECK_THROWS_WITH(ConcatDataset<Example>({base, nullptr}), ContainsSubstring("null"));

  const ConcatDataset<Example> both({base, std::make_shared<const TensorDataset>(numbered(0)), base});
  CHECK(both.size() == 20);
  CHECK(both.get(9).target.data<std::int64_t>()[0] == 9);
  CHECK(both.get(10).target.data<std::int64_t>()[0] == 0);
  CHECK_THROWS_AS(both.get(20), IndexError);

  const auto parts = random_split(*base, std::vector<std::int64_t>{7, 3}, 5);
  std::vector<std::int64_t> all = parts[0].indices();
  all.insert(all.end(), parts[1].indices().begin(), parts[1].indices().end());
  CHECK(parts[0].size() == 7);
  CHECK(is_permutation_of(all, 10));
  CHECK(random_split(*base, std::vector<std::int64_t>{7, 3}, 5)[1].indices() == parts[1].indices());
  CHECK(random_split(*base, std::vector<std::int64_t>{7, 3}, 6)[0].indices() != parts[0].indices());
  CHECK(random_split(*base, {7, 3}, 5)[1].indices() == parts[1].indices());
  CHECK(random_split(base, {7, 3}, 5)[1].indices() ==
        parts[1].indices());  // as a shared_ptr, which DataLoader also takes
  CHECK(random_split(base, {0.7, 0.3}, 5)[1].indices() == parts[1].indices());
  const auto thirds = random_split(*base, std::vector<double>{1.0 / 3, 1.0 / 3, 1.0 / 3});
  CHECK(thirds[0].size() == 4);
  CHECK(thirds[1].size() == 3);
  CHECK(thirds[2].size() == 3);
  CHECK_THROWS_AS(random_split(*base, std::vector<std::int64_t>{7, 2}), ValueError);
  CHECK_THROWS_AS(random_split(*base, std::vector<std::int64_t>{11, -1}), ValueError);
  CHECK_THROWS_AS(random_split(*base, std::vector<double>{0.5, 0.4}), ValueError);
  CHECK_THROWS_AS(random_split(*base, std::vector<double>{}), ValueError);
  const std::shared_ptr<const TensorDataset> none;
  CHECK_THROWS_WITH(random_split(none, {7, 3}), ContainsSubstring("null"));
  CHECK_THROWS_WITH(random_split(none, {0.7, 0.3}), ContainsSubstring("null"));
}

TEST_CASE("samplers depend only on seed and epoch") {
  CHECK(SequentialSampler(3).indices(8) == std::vector<std::int64_t>{0, 1, 2});
  CHECK(SequentialSampler(0).indices(0).empty());
  const RandomSampler random(100, 3);
  CHECK(is_permutation_of(random.indices(0), 100));
  CHECK(random.indices(0) == RandomSampler(100, 3).indices(0));
  CHECK(random.indices(0) != random.indices(1));
  CHECK(random.indices(0) != RandomSampler(100, 4).indices(0));
  CHECK(RandomSampler(100, 3, {.num_samples = 10}).indices(0).size() == 10);
  CHECK_THROWS_AS(RandomSampler(3, 0, {.num_samples = 4}), ValueError);
  CHECK_THROWS_AS(RandomSampler(0, 0, {.replacement = true, .num_samples = 4}), ValueError);
  CHECK(RandomSampler(0).indices(0).empty());

  SECTION("each of the 6 permutations of 3 is equally likely in 6000 epochs") {
    const RandomSampler three(3, 1);
    std::map<std::vector<std::int64_t>, int> count;
    for (int epoch = 0; epoch < 6000; ++epoch) ++count[three.indices(epoch)];
    CHECK(count.size() == 6);
    // The expected count is 1000 with a standard deviation of sqrt(6000 * 1/6 * 5/6) = 29; the tolerance is
    // five of them.
    for (const auto& [order, times] : count) CHECK(std::abs(times - 1000) < 145);
  }
  SECTION("with replacement") {
    const auto drawn = RandomSampler(10, 1, {.replacement = true, .num_samples = 1000}).indices(0);
    std::set<std::int64_t> seen(drawn.begin(), drawn.end());
    CHECK(drawn.size() == 1000);
    CHECK(seen.size() == 10);
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == 9);
  }
}

TEST_CASE("BatchSampler groups, the last batch is partial or dropped") {
  const auto order = std::make_shared<const SequentialSampler>(5);
  CHECK(BatchSampler(order, 2).batches(0) == std::vector<std::vector<std::int64_t>>{{0, 1}, {2, 3}, {4}});
  CHECK(BatchSampler(order, 2).size() == 3);
  CHECK(BatchSampler(order, 2, true).batches(0) == std::vector<std::vector<std::int64_t>>{{0, 1}, {2, 3}});
  CHECK(BatchSampler(order, 2, true).size() == 2);
  CHECK(BatchSampler(order, 5, true).size() == 1);
  CHECK(BatchSampler(order, 6, true).batches(0).empty());
  CHECK(BatchSampler(order, 6).size() == 1);
  CHECK_THROWS_AS(BatchSampler(order, 0), ValueError);
  CHECK_THROWS_AS(BatchSampler(nullptr, 1), ValueError);
}

TEST_CASE("DistributedSampler gives every sample to one rank, padded or truncated to equal sizes") {
  for (std::int64_t size : {0, 1, 3, 7, 12}) {
    for (int world : {1, 2, 3, 5}) {
      for (bool drop_last : {false, true}) {
        std::multiset<std::int64_t> seen;
        for (int rank = 0; rank < world; ++rank) {
          const DistributedSampler sampler(size, rank, world,
                                           {.shuffle = true, .seed = 2, .drop_last = drop_last});
          const auto mine = sampler.indices(1);
          CHECK(static_cast<std::int64_t>(mine.size()) == sampler.size());
          seen.insert(mine.begin(), mine.end());
        }
        const std::int64_t share = drop_last ? size / world : (size + world - 1) / world;
        CHECK(static_cast<std::int64_t>(seen.size()) == share * world);
        if (!drop_last)
          for (std::int64_t i = 0; i < size; ++i) CHECK(seen.count(i) >= 1);
        else
          for (std::int64_t i = 0; i < size; ++i) CHECK(seen.count(i) <= 1);
      }
    }
  }
  CHECK_THROWS_AS(DistributedSampler(3, 2, 2), ValueError);
}

TEST_CASE("RandomDataset is normal noise, the same for one seed") {
  const RandomDataset dataset({.size = 50});
  CHECK(dataset.input().sizes() == Shape{50, 3, 32, 32});
  const std::int64_t n = dataset.input().numel();
  const float* x = dataset.input().data<float>();
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += x[i];
    squares += x[i] * x[i];
  }
  // The tolerance is five standard errors: 1 / sqrt(n) for the mean, sqrt(2 / n) for the variance.
  CHECK(std::abs(sum / static_cast<double>(n)) < 5 / std::sqrt(static_cast<double>(n)));
  CHECK(std::abs(squares / static_cast<double>(n) - 1) < 5 * std::sqrt(2 / static_cast<double>(n)));
  for (std::int64_t label : labels(dataset.target())) CHECK(label == 0);
  CHECK(RandomDataset({.size = 50}).input().data<float>()[n - 1] == x[n - 1]);
  CHECK(RandomDataset({.size = 50, .seed = 1}).input().data<float>()[n - 1] != x[n - 1]);
  const auto classes =
      labels(RandomDataset({.size = 200, .channels = 1, .height = 1, .width = 1, .num_classes = 4}).target());
  CHECK(std::set<std::int64_t>(classes.begin(), classes.end()).size() == 4);
  CHECK_THROWS_AS(RandomDataset({.size = -1}), ValueError);
  CHECK_THROWS_AS(RandomDataset({.num_classes = 0}), ValueError);
}
