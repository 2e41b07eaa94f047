#include "tapestry/data/dataloader.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "tapestry/core/allocator.h"

#include "tapestry/data/formats/synthetic.h"
#include "tapestry/data/transforms.h"
#include "tests/support/catch.h"
#include "tests/support/fork.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

Tensor scalar(std::int64_t value) {
  Tensor t = empty(Shape{}, DType::i64);
  t.data<std::int64_t>()[0] = value;
  return t;
}

/// Samples contain their index and a random number. Some indices may be slow or throw.
class Numbers : public Dataset<Example> {
 public:
  explicit Numbers(std::int64_t size, std::int64_t broken = -1) : size_(size), broken_(broken) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    check<IoError>(index != broken_, "[Numbers] file ", index, " is unreadable");
    if (index % 7 == 3)
      // The delay lets workers overtake one another.
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    const PhiloxRange range = current_generator(kCPU).take(1);
    const std::uint64_t drawn = philox(range.seed, range.offset).v[0];
    return {scalar(index), scalar(static_cast<std::int64_t>(drawn))};
  }

 private:
  std::int64_t size_, broken_;
};

/// Returns everything that a pass yields, in order.
template <class L>
std::vector<std::int64_t> drain(L& loader, std::int64_t batches = 1 << 20) {
  std::vector<std::int64_t> out;
  for (auto& [input, target] : loader) {
    const std::int64_t n = input.numel();
    out.push_back(n);
    out.insert(out.end(), input.template data<std::int64_t>(), input.template data<std::int64_t>() + n);
    out.insert(out.end(), target.template data<std::int64_t>(), target.template data<std::int64_t>() + n);
    if (--batches == 0) break;
  }
  return out;
}

/// Returns the inputs that a pass yields, in order.
template <class L>
std::vector<std::int64_t> inputs(L& loader, std::int64_t batches = 1 << 20) {
  std::vector<std::int64_t> out;
  for (auto& [input, target] : loader) {
    const auto* const values = input.template data<std::int64_t>();
    out.insert(out.end(), values, values + input.numel());
    if (--batches == 0) break;
  }
  return out;
}

std::size_t threads_now() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

}  // namespace

TEST_CASE("DataLoader yields every sample once, in the sampler's order") {
  DataLoader loader(Numbers(10), {.batch_size = 4});
  CHECK(loader.size() == 3);
  std::vector<std::int64_t> seen;
  std::vector<std::int64_t> sizes;
  for (auto& [input, target] : loader) {
    sizes.push_back(input.size(0));
    CHECK(target.sizes() == input.sizes());
    seen.insert(seen.end(), input.data<std::int64_t>(), input.data<std::int64_t>() + input.numel());
  }
  CHECK(sizes == std::vector<std::int64_t>{4, 4, 2});
  for (std::size_t i = 0; i < 10; ++i) CHECK(seen[i] == static_cast<std::int64_t>(i));
  CHECK(loader.epoch() == 1);

  DataLoader dropping(Numbers(10), {.batch_size = 4, .drop_last = true});
  CHECK(dropping.size() == 2);
  CHECK(drain(dropping).size() == 2 * 9);
  DataLoader nothing(Numbers(0), {.batch_size = 4, .shuffle = true, .num_workers = 2});
  CHECK(drain(nothing).empty());
  CHECK(nothing.epoch() == 1);
}

TEST_CASE("DataLoader yields the same batches for any number of workers") {
  for (bool shuffle : {false, true}) {
    DataLoader reference(Numbers(101), {.batch_size = 8, .shuffle = shuffle, .seed = 5});
    const auto first = drain(reference), second = drain(reference);
    CHECK(first != second);  // other random numbers in get(), and another order if shuffled
    for (int workers : {1, 2, 5}) {
      for (int prefetch : {1, 3}) {
        DataLoader loader(
            Numbers(101),
            {.batch_size = 8, .shuffle = shuffle, .seed = 5, .num_workers = workers, .prefetch = prefetch});
        CHECK(drain(loader) == first);
        CHECK(drain(loader) == second);
        loader.set_epoch(0);
        CHECK(drain(loader) == first);
      }
    }
  }
}

TEST_CASE("random transforms do not depend on workers, and differ between samples, epochs and places") {
  const RandomDataset images({.size = 24, .channels = 1, .height = 6, .width = 6});
  auto run = [&](int workers, std::uint64_t seed) {
    DataLoader loader(
        images, {.batch_size = 5,
                 .shuffle = true,
                 .seed = seed,
                 .num_workers = workers,
                 .transforms = {random_crop(6, 6, 2), random_horizontal_flip(), random_horizontal_flip()}});
    std::vector<float> out;
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto& [input, target] : loader)
        out.insert(out.end(), input.data<float>(), input.data<float>() + input.numel());
    return out;
  };
  const auto inline_result = run(0, 1);
  CHECK(inline_result.size() == 2 * 24 * 36);
  CHECK(run(1, 1) == inline_result);
  CHECK(run(3, 1) == inline_result);
  CHECK(run(3, 2) != inline_result);
  const std::vector<std::int64_t> indices = {4, 5};
  const BatchContext context{.seed = 1, .epoch = 0, .indices = indices};
  BatchContext other = context;
  other.use = 3;
  CHECK(context.rng(0).next64() != context.rng(1).next64());
  CHECK(context.rng(0).next64() != other.rng(0).next64());
  other = context;
  other.epoch = 1;
  CHECK(context.rng(0).next64() != other.rng(0).next64());
}

TEST_CASE("a worker's exception names the sample and reaches the consumer in order") {
  for (int workers : {0, 1, 3}) {
    DataLoader loader(Numbers(40, 17), {.batch_size = 4, .num_workers = workers});
    std::int64_t batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      FAIL("nothing was thrown");
    } catch (const SampleError& e) {
      CHECK(e.index() == 17);
      CHECK(std::string(e.what()) ==
            "[DataLoader] sample 17 (batch 4 of epoch 0): [Numbers] file 17 is unreadable");
      CHECK_THROWS_AS(std::rethrow_exception(e.cause()), IoError);
    }
    CHECK(batches == 4);
    CHECK(loader.state().sample == 16);
  }
}

TEST_CASE("an exception of a bulk read, a collate or a transform names sample or batch") {
  class Bulk : public Numbers {
   public:
    using Numbers::Numbers;
    std::optional<Example> get_batch(std::span<const std::int64_t> indices) const override {
      for (std::int64_t index : indices)
        if (index == 6) throw std::runtime_error("bulk");
      return std::nullopt;
    }
  };
  DataLoader with_culprit(Bulk(10, 6), {.batch_size = 4, .num_workers = 1});
  CHECK_THROWS_WITH(drain(with_culprit),
                    ContainsSubstring("sample 6 (batch 1 of epoch 0): [Numbers] file 6"));
  DataLoader without(Bulk(10), {.batch_size = 4, .num_workers = 1});
  CHECK_THROWS_WITH(drain(without), ContainsSubstring("batch 1 of epoch 0 (samples 4, 5, 6, 7): bulk"));
  DataLoader transformed(
      Numbers(20),
      {.batch_size = 10, .num_workers = 2, .transforms = {[](Example&, const BatchContext&) { throw 3; }}});
  CHECK_THROWS_WITH(
      drain(transformed),
      ContainsSubstring("batch 0 of epoch 0 (samples 0, 1, 2, 3, 4, 5, 6, 7, ...): something that is not"));
}

TEST_CASE("a break stops the workers, and the next pass is the next epoch") {
  DataLoader reference(Numbers(60), {.batch_size = 2, .shuffle = true});
  drain(reference);
  const auto second = drain(reference);
  const std::size_t before = threads_now();
  for (int workers : {0, 1, 4}) {
    DataLoader loader(Numbers(60), {.batch_size = 2, .shuffle = true, .num_workers = workers});
    drain(loader, 3);
    CHECK(loader.state().epoch == 0);
    CHECK(loader.state().sample == 6);
    CHECK(threads_now() == before);
    CHECK(drain(loader) == second);
    CHECK(loader.epoch() == 2);
  }
  {
    DataLoader loader(Numbers(60), {.batch_size = 2, .num_workers = 3});
    auto unused = loader.begin();
    CHECK(threads_now() == before + 3);
  }
  CHECK(threads_now() == before);
}

TEST_CASE("abandoned batches are freed") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  {
    DataLoader loader(RandomDataset({.size = 64}), {.batch_size = 4, .num_workers = 2, .prefetch = 4});
    for (auto& [images, labels] : loader) {
      CHECK(images.size(0) == 4);
      break;
    }
  }
  CHECK(memory_stats(kCPU).allocated == before);
}

TEST_CASE("a loader continues from a saved position with the same bits") {
  using Options = DataLoaderOptions<>;
  const Options options{.batch_size = 3, .shuffle = true, .seed = 9, .num_workers = 2};
  DataLoader whole(Numbers(20), options);
  std::vector<std::int64_t> expected;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (std::int64_t value : drain(whole)) expected.push_back(value);

  for (std::int64_t stop :
       {1, 4, 7}) {  // with 7 batches per epoch, this stops inside the second epoch, or at its end for 7
    DataLoader first(Numbers(20), options);
    std::vector<std::int64_t> got = drain(first);
    for (std::int64_t value : drain(first, stop)) got.push_back(value);
    const LoaderState state = first.state();
    CHECK(state.epoch == 1);
    CHECK(state.sample == std::min<std::int64_t>(3 * stop, 20));
    Options others = options;
    others.seed = 1;  // the seed in the saved state must have precedence
    others.num_workers = 0;
    DataLoader resumed(Numbers(20), others);
    resumed.load_state(state);
    CHECK(resumed.epoch() == 1);
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t value : drain(resumed)) got.push_back(value);
    CHECK(got == expected);
    CHECK(resumed.epoch() == 3);
  }
  DataLoader other(Numbers(21), options);
  CHECK_THROWS_WITH(other.load_state(whole.state()), ContainsSubstring("20 samples, and this one has 21"));
  LoaderState wrong = whole.state();
  wrong.sample = 21;
  CHECK_THROWS_AS(whole.load_state(wrong), ValueError);
  wrong.sample = -1;
  CHECK_THROWS_AS(whole.load_state(wrong), ValueError);
}

TEST_CASE(
    "an epoch that ranks began is continued by any number of ranks, which read each other sample once") {
  // Rank r of `ranks` reads batches until it has read `batches` of them, or to the end of the epoch.
  struct Read {
    std::vector<std::int64_t> values;
    std::string state;
  };
  const auto read = [](int rank, int ranks, std::int64_t batch_size, const std::string& from, int batches) {
    DataLoader loader(Numbers(54), {.batch_size = batch_size,
                                    .num_workers = rank % 2,
                                    .sampler = std::make_shared<const DistributedSampler>(
                                        54, rank, ranks, DistributedSampler::Options{.seed = 3})});
    loader.set_epoch(1);
    if (!from.empty()) loader.load_state(LoaderState::parse(from));
    Read result{inputs(loader, batches), ""};
    result.state = loader.state().str();
    return result;
  };
  const std::vector<std::int64_t> order = read(0, 1, 54, "", 1).values;
  for (const int stop : {1, 3}) {
    std::set<std::int64_t> seen;
    std::string state;
    for (const int rank : {0, 1}) {
      const Read part = read(rank, 2, 3, "", stop);
      seen.insert(part.values.begin(), part.values.end());
      CHECK((state.empty() || state == part.state));  // the position is that of all ranks
      state = part.state;
    }
    CHECK(state == concat({"seed=0 epoch=1 sample=", 6 * stop, " samples=54 total=54"}));
    REQUIRE(seen.size() == static_cast<std::size_t>(6 * stop));
    // The 48 or 36 samples that are left divide evenly. 6 and 18 samples are not a multiple of what four
    // ranks, or one with another batch size, read in a step.
    for (const auto& [ranks, batch_size] : {std::pair{1, 6}, {1, 5}, {2, 3}, {2, 4}, {4, 2}, {3, 7}}) {
      CAPTURE(stop, ranks, batch_size);
      std::multiset<std::int64_t> all(seen.begin(), seen.end());
      for (int rank = 0; rank < ranks; ++rank) {
        const Read rest = read(rank, ranks, batch_size, state, 100);
        for (std::size_t i = 0; i < rest.values.size(); ++i)
          CHECK(rest.values[i] ==
                order[static_cast<std::size_t>(6 * stop + rank) + i * static_cast<std::size_t>(ranks)]);
        all.insert(rest.values.begin(), rest.values.end());
        CHECK(rest.state == "seed=0 epoch=2 sample=0 samples=54 total=54");
      }
      CHECK(all == std::multiset<std::int64_t>(order.begin(), order.end()));
    }
  }
}

TEST_CASE("DataLoader uses custom collate functions, example types and samplers") {
  class Words : public Dataset<std::string> {
   public:
    std::int64_t size() const override { return 3; }
    std::string get(std::int64_t index) const override {
      return std::string(static_cast<std::size_t>(index + 1), 'x');
    }
  };
  DataLoader words(Words(), {.batch_size = 2, .num_workers = 1});
  std::vector<std::vector<std::string>> batches;
  for (auto& batch : words) batches.push_back(batch);
  CHECK(batches == std::vector<std::vector<std::string>>{{"x", "xx"}, {"xxx"}});

  DataLoader<std::string, std::size_t> lengths(
      Words(), {.batch_size = 3, .collate = [](std::vector<std::string>&& all) {
                  std::size_t sum = 0;
                  for (const auto& word : all) sum += word.size();
                  return sum;
                }});
  for (std::size_t sum : lengths) CHECK(sum == 6);
  DataLoader<std::string, int> no_collate(Words(), {});
  CHECK_THROWS_WITH(no_collate.begin(), ContainsSubstring("need a collate"));

  class Reverse : public Sampler {
   public:
    std::int64_t size() const override { return 4; }
    std::vector<std::int64_t> indices(std::int64_t) const override { return {3, 2, 1, 9}; }
  };
  DataLoader reversed(Numbers(4), {.batch_size = 3, .sampler = std::make_shared<const Reverse>()});
  CHECK((*reversed.begin()).input.data<std::int64_t>()[0] == 3);
  DataLoader out_of_range(RandomDataset({.size = 4}),
                          {.batch_size = 4, .num_workers = 1, .sampler = std::make_shared<const Reverse>()});
  CHECK_THROWS_WITH(out_of_range.begin(), ContainsSubstring("sample 9 (batch 0 of epoch 0)"));

  class Pairs : public BatchSampler {
   public:
    std::int64_t size() const override { return 2; }
    std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const override {
      return {{epoch}, {2, 3}};
    }
  };
  DataLoader grouped(Numbers(4), {.batch_sampler = std::make_shared<const Pairs>()});
  CHECK(drain(grouped).size() == 3 + 5);
  for (const std::int64_t first : {1, 2}) {
    grouped.load_state({.epoch = 3, .sample = first, .samples = 4});
    if (first == 1) CHECK(inputs(grouped) == std::vector<std::int64_t>{2, 3});
    else CHECK_THROWS_WITH(grouped.begin(), ContainsSubstring("inside a batch"));
  }
}

TEST_CASE("batches do not depend on the caller's grad mode, device or generator") {
  class Modes : public Dataset<Tensor> {
   public:
    std::int64_t size() const override { return 2; }
    Tensor get(std::int64_t) const override { return scalar(current_context().inference || grad_enabled()); }
  };
  for (int workers : {0, 1}) {
    const InferenceMode mode;
    DataLoader loader(Modes(), {.batch_size = 2, .num_workers = workers});
    for (const Tensor& batch : loader) CHECK(batch.data<std::int64_t>()[0] == 0);
    CHECK(current_context().inference);
  }
}

TEST_CASE("DataLoader refuses invalid options") {
  CHECK_THROWS_WITH(DataLoader(Numbers(4), {.batch_size = 0}), ContainsSubstring("batch_size is 0"));
  CHECK_THROWS_WITH(DataLoader(Numbers(4), {.num_workers = -1}), ContainsSubstring("num_workers is -1"));
  CHECK_THROWS_WITH(DataLoader(Numbers(4), {.prefetch = 0}), ContainsSubstring("prefetch is 0"));
  const auto sampler = std::make_shared<const SequentialSampler>(4);
  CHECK_THROWS_WITH(DataLoader(Numbers(4), {.shuffle = true, .sampler = sampler}),
                    ContainsSubstring("both sampler and shuffle"));
  CHECK_THROWS_WITH(
      DataLoader(Numbers(4),
                 {.batch_size = 2, .batch_sampler = std::make_shared<const BatchSampler>(sampler, 2)}),
      ContainsSubstring("batch_sampler excludes"));
  CHECK_THROWS_WITH(DataLoader<Example>(std::shared_ptr<const Dataset<Example>>()),
                    ContainsSubstring("null"));
}

TEST_CASE("LoaderState round-trips through text and refuses other text") {
  const LoaderState state{.seed = ~std::uint64_t{0}, .epoch = 2, .sample = 5120, .samples = 60000};
  CHECK(state.str() == "seed=18446744073709551615 epoch=2 sample=5120 samples=60000");
  const LoaderState parsed = LoaderState::parse(state.str());
  CHECK(parsed.seed == state.seed);
  CHECK(parsed.str() == state.str());
  for (const char* text :
       {"", "seed=", "seed=1 epoch=2", "seed=1 epoch=2 sample=3 samples=4 batches=5",
        "seed=1 epoch=2 sample=-3x samples=4", "seed=1 epoch=2 batch=3 samples=4 batches=5 ",
        "seed=-1 epoch=2 batch=3 samples=4 batches=5",
        "seed=1 epoch=2 batch=3 samples=4 batches=99999999999999999999",
        "epoch=2 seed=1 batch=3 samples=4 batches=5"})
    CHECK_THROWS_AS(LoaderState::parse(text), ValueError);
  // Earlier versions counted the batches of each rank.
  const auto sampler = std::make_shared<const DistributedSampler>(21, 0, 2);
  DataLoader loader(Numbers(21), {.batch_size = 4, .sampler = sampler});
  loader.load_state(LoaderState::parse("seed=1 epoch=2 batch=2 samples=21 batches=3"));
  CHECK(loader.state().str() == "seed=1 epoch=2 sample=16 samples=21 total=21");
  loader.load_state(LoaderState::parse("seed=1 epoch=2 batch=3 samples=21 batches=3"));
  CHECK(loader.state().str() == "seed=1 epoch=2 sample=21 samples=21 total=21");
  for (const char* text : {"batch=4 samples=21 batches=3", "batch=2 samples=21 batches=4"})
    CHECK_THROWS_AS(loader.load_state(LoaderState::parse(concat({"seed=1 epoch=2 ", text}))), ValueError);
}

TEST_CASE("a pass over a loader that began before fork() throws in the child, and a new pass works there") {
  const auto numbers = std::make_shared<Numbers>(64);
  DataLoader loader(numbers, {.batch_size = 4, .num_workers = 2});
  DataLoader serial(numbers, {.batch_size = 4, .num_workers = 0});
  auto pass = loader.begin();
  const tests::Forked child = tests::in_fork([&]() -> std::string {
    std::int64_t batches = 0;
    for ([[maybe_unused]] auto& batch : serial) ++batches;
    if (batches != 16) return "serial pass";
    auto moved = std::move(pass);  // destroyed here, whatever happens
    for (int i = 0; i < 16; ++i) ++moved;
    return "the pass went on";
  });
  CHECK(child.ended);
  CHECK_THAT(child.message,
             ContainsSubstring("[DataLoader] the workers of this loop were started before fork()"));
  int batches = 1;
  while (++pass != loader.end()) ++batches;
  CHECK(batches == 16);
}
