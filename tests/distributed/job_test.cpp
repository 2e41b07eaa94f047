// Tests rank_seed(), GlobalMean and Checkpointer.
#include <cmath>
#include <set>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded;

}  // namespace

TEST_CASE("the seeds of ranks differ from each other and from the common seed") {
  std::set<std::uint64_t> seeds{0, 1, 2};
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (int rank = 0; rank < 100; ++rank) seeds.insert(rank_seed(seed, rank));
  CHECK(seeds.size() == 303);
  CHECK(rank_seed(7, 3) == rank_seed(7, 3));
  // A run that another version of the library resumes must draw the same numbers. The values are those of
  // philox4x32-10 with the key `seed` and the counter (rank, 2^64 - 1).
  CHECK(rank_seed(0, 0) == 0x81d075e2d68421a3);
  CHECK(rank_seed(42, 3) == 0xe9ddc1d5dba9c84b);
  CHECK(rank_seed(~std::uint64_t{0}, 7) == 0x9a1bcb231cac5cf1);
}

TEST_CASE("a mean over ranks is weighted by counts") {
  std::vector<std::vector<double>> means(3);
  run_local_ranks(
      3,
      [&](const Group& group) {
        GlobalMean mean;
        auto& mine = means[static_cast<std::size_t>(group->rank())];
        for (int i = 0; i <= group->rank(); ++i) mean.add(group->rank(), 2);  // 2, 4 and 6 samples
        mean.add(NAN, 0);                                                     // an empty batch
        mine.push_back(mean.reduce(*group));
        if (group->rank() == 1) mean.add(5);
        mine.push_back(mean.reduce(*group));  // the sums were reset
        mine.push_back(mean.reduce(*group));  // no rank has samples
      },
      kBounded);
  for (const auto& m : means) {
    CHECK(m[0] == Approx((4 * 1 + 6 * 2) / 12.0));
    CHECK(m[1] == 5);
    CHECK(std::isnan(m[2]));
  }
}

namespace {

// Trains with dropout, whose masks differ between ranks. Saves a checkpoint after `save_at` steps unless that
// is 0.
StateDictCopy train(const Group& group, const std::string& folder, int first_rank_count, int steps,
                    int save_at) {
  Generator generator(rank_seed(3, group->rank()));
  Context context = current_context();
  context.generator = &generator;  // ranks are threads here and would share the default generator
  const ContextGuard guard(context);
  SmallCnn net;
  fill_by_formula(net);
  DistributedDataParallel ddp(net, {.process_group = group});
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  Checkpointer checkpoints(folder, group);
  const nn::Training training{&net, &optimizer, nullptr};
  nn::Progress progress = checkpoints.resume(training).value_or(nn::Progress{});
  check(first_rank_count == 0 || progress.extra.empty(), "extra has what the caller did not put there");
  for (; progress.step < steps;) {
    const auto [x, labels] = formula_batch(static_cast<int>(progress.step), 3 * group->rank(), 3);
    optimizer.zero_grad();
    cross_entropy(ddp(dropout(x.to(DType::f32), 0.5, true)), labels).backward();
    optimizer.step();
    if (++progress.step == save_at) checkpoints.save(training, progress);
  }
  return copy_state(net);
}

std::vector<StateDictCopy> train_ranks(int ranks, const std::string& folder, int steps, int save_at) {
  std::vector<StateDictCopy> states(static_cast<std::size_t>(ranks));
  run_local_ranks(
      ranks,
      [&](const Group& group) {
        states[static_cast<std::size_t>(group->rank())] = train(group, folder, ranks, steps, save_at);
      },
      kBounded);
  return states;
}

}  // namespace

TEST_CASE(
    "a resumed job continues bit for bit with the same number of ranks, and works with another number") {
  const tests::TempDir folder;
  const auto whole = train_ranks(2, folder / "whole", 6, 3);
  const auto half = train_ranks(2, folder / "half", 3, 3);
  CHECK(distance(half[0], whole[0]) > 0);
  const auto resumed = train_ranks(2, folder / "half", 6, 0);
  // Ranks are compared one by one, because their running statistics differ.
  for (std::size_t r = 0; r < 2; ++r) CHECK(distance(resumed[r], whole[r]) == 0);
  for (const int ranks : {1, 3}) {
    const auto other = train_ranks(ranks, folder / "half", 6, 0);
    for (const auto& state : other) {
      CHECK(state.at("conv1.weight") == other[0].at("conv1.weight"));
      CHECK(distance(state, whole[0]) > 0);
      CHECK(distance(state, whole[0]) < 1);
    }
  }
}

TEST_CASE("an error on rank 0 is thrown on all ranks") {
  const tests::TempDir folder;
  tests::write_file(folder / "file", "not a folder");
  std::vector<std::string> texts(2);
  run_local_ranks(
      2,
      [&](const Group& group) {
        try {
          Checkpointer checkpoints(folder / "file", group);
        } catch (const Error& e) {
          texts[static_cast<std::size_t>(group->rank())] = e.what();
        }
      },
      kBounded);
  CHECK_THAT(texts[0], ContainsSubstring("file"));
  CHECK_THAT(texts[1], ContainsSubstring("failed on rank 0"));
  CHECK_THAT(texts[1], ContainsSubstring(texts[0]));
}

TEST_CASE("a truncated checkpoint is an error on all ranks") {
  const tests::TempDir folder;
  train_ranks(2, folder / "run", 2, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "run")) {
    std::string bytes = tests::read_file(entry.path().string());
    tests::write_file(entry.path().string(), bytes.substr(0, bytes.size() / 2));
  }
  CHECK_THROWS_AS(train_ranks(2, folder / "run", 4, 0), Error);
}

TEST_CASE("a checkpoint with a corrupt generator state is an error on all ranks") {
  const tests::TempDir folder;
  train_ranks(2, folder / "run", 2, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "run")) {
    std::string bytes = tests::read_file(entry.path().string());
    const std::size_t at = bytes.find("generators of rank 1");
    if (at == std::string::npos) continue;
    bytes[bytes.find(' ', bytes.find("cpu:0 ", at) + 6)] = '0';  // joins seed and offset into one number
    tests::write_file(entry.path().string(), bytes);
  }
  std::vector<std::string> texts(2);
  run_local_ranks(
      2,
      [&](const Group& group) {
        try {
          train(group, folder / "run", 2, 4, 0);
        } catch (const Error& e) {
          texts[static_cast<std::size_t>(group->rank())] = e.what();
        }
      },
      kBounded);
  CHECK_THAT(texts[0], ContainsSubstring("none of the 1 checkpoints") && ContainsSubstring("rank 1: ") &&
                           ContainsSubstring("not device, seed and offset in turn"));
  CHECK_THAT(texts[1], ContainsSubstring("failed on rank 0: " + texts[0]));
}

TEST_CASE("a checkpoint without the generator state of a rank is an error on all ranks") {
  const tests::TempDir folder;
  train_ranks(2, folder / "run", 2, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "run")) {
    std::string bytes = tests::read_file(entry.path().string());
    const std::size_t at = bytes.find("generators of rank 1");
    if (at == std::string::npos) continue;
    bytes[at] = 'G';
    tests::write_file(entry.path().string(), bytes);
  }
  for (const int ranks : {1, 2, 3})
    CHECK_THROWS_WITH(train_ranks(ranks, folder / "run", 4, 0),
                      ContainsSubstring("generator states of 1 ranks and says that 2 ranks saved theirs"));
}

TEST_CASE("a checkpoint of nn::Checkpointer is resumed with its generator on rank 0") {
  const tests::TempDir folder;
  SmallCnn net;
  const nn::Training training{&net, nullptr, nullptr};
  manual_seed(8);
  rand({3});
  nn::Checkpointer(folder / "run").save(training, {.step = 1});
  const Tensor expected = rand({3});
  manual_seed(9);
  Checkpointer checkpoints(folder / "run", init_process_group());
  CHECK(checkpoints.resume(training)->step == 1);
  CHECK(to_vector(rand({3})) == to_vector(expected));
}

TEST_CASE("texts of any length reach all ranks") {
  std::vector<std::vector<std::string>> all(3);
  std::vector<std::string> from_1(3);
  run_local_ranks(
      3,
      [&](const Group& group) {
        const auto r = static_cast<std::size_t>(group->rank());
        const std::string mine =
            r == 0 ? std::string() : std::string(r * 1000, static_cast<char>('a' + r)) + '\0';
        all[r] = all_gather_text(*group, mine);
        from_1[r] = broadcast_text(*group, mine, 1);
      },
      kBounded);
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(all[r] == all[0]);
    CHECK(all[r][0].empty());
    CHECK(all[r][2].size() == 2001);
    CHECK(from_1[r] == all[0][1]);
  }
}
