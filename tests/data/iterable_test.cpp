#include "tapestry/data/iterable.h"

#include <atomic>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

/// The numbers 0 .. size - 1, each with a random number. Number `broken` throws.
class Numbers : public IterableDataset<std::pair<std::int64_t, std::int64_t>> {
 public:
  explicit Numbers(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  Stream iterate(const Shard& shard) const override {
    return [this_size = size_, broken = broken_, shard,
            n = std::int64_t{0}]() mutable -> std::optional<std::pair<std::int64_t, std::int64_t>> {
      for (; n < this_size; ++n) {
        if (!shard.takes(n)) continue;
        check<IoError>(n != broken, "number ", n, " is unreadable");
        const PhiloxRange range = current_generator(kCPU).take(1);
        const std::int64_t drawn = philox(range.seed, range.offset).v[0];
        return std::pair(n++, drawn + shard.epoch);
      }
      return std::nullopt;
    };
  }

 private:
  std::int64_t size_, broken_;
};

using Batches = std::vector<std::vector<std::int64_t>>;

/// The numbers of each batch; `random`, if given, gets the random numbers.
template <class L>
Batches drain(L& loader, Batches* random = nullptr) {
  const auto list = [](const Tensor& t) {
    return std::vector<std::int64_t>(t.data<std::int64_t>(), t.data<std::int64_t>() + t.numel());
  };
  Batches out;
  for (auto& [numbers, drawn] : loader) {
    out.push_back(list(numbers));
    if (random) random->push_back(list(drawn));
  }
  return out;
}

}  // namespace

TEST_CASE("IterableLoader alternates between shards, each of which takes its part") {
  IterableLoader one(Numbers(5), {.batch_size = 2});
  CHECK(drain(one) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(one.epoch() == 1);
  IterableLoader two(Numbers(9), {.batch_size = 2, .shards = 2});
  CHECK(drain(two) == Batches{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8}});
  IterableLoader dropping(Numbers(9), {.batch_size = 2, .shards = 2, .drop_last = true});
  CHECK(drain(dropping) == Batches{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  IterableLoader few(Numbers(2), {.shards = 4, .num_workers = 3});
  CHECK(drain(few) == Batches{{0}, {1}});
  IterableLoader nothing(Numbers(0), {.num_workers = 2});
  CHECK(drain(nothing).empty());
  IterableLoader some(Numbers(100), {.batch_size = 3, .num_workers = 2, .max_batches = 3});
  CHECK(drain(some) == Batches{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}});
  CHECK(drain(some).size() == 3);
}

TEST_CASE("the batches of shards do not depend on the number of workers") {
  for (const std::int64_t shards : {1, 3, 5}) {
    IterableLoader reference(Numbers(41), {.batch_size = 3, .seed = 8, .shards = shards});
    Batches random[2], numbers[2];
    for (int epoch = 0; epoch < 2; ++epoch) numbers[epoch] = drain(reference, &random[epoch]);
    CHECK(random[0] != random[1]);
    for (const int workers : {1, 2, 4}) {
      for (const int prefetch : {1, 3}) {
        IterableLoader loader(
            Numbers(41),
            {.batch_size = 3, .seed = 8, .shards = shards, .num_workers = workers, .prefetch = prefetch});
        for (int epoch = 0; epoch < 2; ++epoch) {
          Batches drawn;
          CHECK(drain(loader, &drawn) == numbers[epoch]);
          CHECK(drawn == random[epoch]);
        }
        loader.set_epoch(0);
        CHECK(drain(loader) == numbers[0]);
      }
    }
  }
}

TEST_CASE("the shards of all ranks are disjoint and complete") {
  std::multiset<std::int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    IterableLoader loader(Numbers(50),
                          {.batch_size = 4, .shards = 2, .num_workers = 2, .rank = rank, .world_size = 3});
    for (const auto& batch : drain(loader)) {
      for (const std::int64_t n : batch) CHECK(n % 6 / 2 == rank);
      seen.insert(batch.begin(), batch.end());
    }
  }
  CHECK(seen.size() == 50);
  CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == 50);
}

TEST_CASE("an exception in a stream names the shard, and the loop can be started again") {
  for (const int workers : {0, 2}) {
    IterableLoader loader(Numbers(20, 13), {.batch_size = 2, .shards = 2, .num_workers = workers});
    std::int64_t batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      FAIL("nothing was thrown");
    } catch (const SampleError& e) {
      CHECK(std::string(e.what()) ==
            "[IterableLoader] shard 1 of rank 0, after 6 samples of epoch 0: number 13 is unreadable");
      CHECK_THROWS_AS(std::rethrow_exception(e.cause()), IoError);
    }
    CHECK(batches == 7);
    for ([[maybe_unused]] auto& batch : loader) break;
  }
  const auto refused = [](IterableLoaderOptions<std::pair<std::int64_t, std::int64_t>> options) {
    CHECK_THROWS_AS(IterableLoader(Numbers(1), std::move(options)), ValueError);
  };
  refused({.batch_size = 0});
  refused({.shards = -1});
  refused({.num_workers = -1});
  refused({.prefetch = 0});
  refused({.rank = 2, .world_size = 2});
}

TEST_CASE("IterableLoader applies transforms and copies to a device") {
  class Images : public IterableDataset<Tensor> {
   public:
    Stream iterate(const Shard& shard) const override {
      return [shard, n = 0]() mutable -> std::optional<Tensor> {
        while (n < 7)
          if (shard.takes(n++)) return full({2}, static_cast<float>(n - 1));
        return std::nullopt;
      };
    }
  };
  tapestry::testing::FakeGpus gpus;
  const Device device{DeviceType::cuda, 0};
  std::atomic<std::int64_t> sum = 0;
  IterableLoader loader(Images(),
                        {.batch_size = 2,
                         .shards = 2,
                         .num_workers = 2,
                         .transforms = {[&](Tensor& batch, const BatchContext& context) {
                           CHECK(batch.size(0) == static_cast<std::int64_t>(context.indices.size()));
                           for (const std::int64_t n : context.indices) sum += n;
                         }},
                         .device = device});
  std::vector<float> first;
  for (Tensor& batch : loader) {
    CHECK(batch.device() == device);
    const Stream stream = current_stream(device);
    gpus.launch(stream, [&, from = batch.data<float>()] { first.push_back(*from); });
    stream.synchronize();
  }
  CHECK(first == std::vector<float>{0, 1, 4, 5});
  CHECK(sum == 21);
}
