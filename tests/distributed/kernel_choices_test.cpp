// Tests that the ranks of a job compute by the same implementations of kernels.
#include "tapestry/distributed/common/kernel_choices.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tapestry/core/kernel_policy.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/kernels/policy.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;
using kernels::Candidate;

namespace {

const kernels::ChoicePoint point("test_ranks");
[[maybe_unused]] const int kNoFile = setenv("TAPESTRY_CACHE_DIR", "", 1);

/// Chooses between an own kernel (0) and the libraries 1 and 2, of which `fastest` is the fastest here.
std::size_t choose(const char* key, std::size_t fastest, std::atomic<int>& trials) {
  const std::array candidates{Candidate{.name = "own"}, Candidate{.name = "one", .vendor = true},
                              Candidate{.name = "two", .vendor = true}};
  return kernels::choose(
      point, {kCPU}, candidates, [&] { return std::string(key); },
      [&](std::size_t i) {
        ++trials;
        if (i != fastest) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      });
}

}  // namespace

TEST_CASE("child of a job that shares kernel choices", "[.]") {
  const auto self = child_rank();
  const auto group = make_process_group(gloo_backend(self.store, self.rank, self.size, 20s),
                                        prefix_store("group/", self.store), kBounded);
  const std::size_t fastest = self.rank == 0 ? 1 : 2;
  std::atomic<int> trials = 0;
  CHECK(choose("before", fastest, trials) == fastest);  // before the job begins, ranks decide alone
  const int before = trials;
  share_kernel_choices(*group);
  CHECK(choose("before", fastest, trials) == 1);
  CHECK(choose("new", fastest, trials) == 0);
  CHECK((trials > before) == (self.rank == 0));
  CHECK(choose("new", fastest, trials) == 0);
  share_kernel_choices(*group);
  const int after = trials;
  CHECK(choose("new", fastest, trials) == 1);
  CHECK(choose("before", fastest, trials) == 1);
  CHECK(trials == after);
  group->barrier().wait();
}

TEST_CASE("all ranks of a job use rank 0's choices of kernels, from the same call on") {
  if (!has_gloo()) return;
  RankProcesses ranks("child of a job that shares kernel choices", 2);
  for (int rank = 0; rank < 2; ++rank) {
    const Ended& end = ranks.wait(rank);
    CAPTURE(rank, end.output, end.signal);
    CHECK(end.well());
  }
}

TEST_CASE("ranks that are threads of one process choose at once") {
  kernels::reset_policy();
  std::array<std::atomic<int>, 2> trials{};
  const auto got = on_ranks<std::size_t>(2, [&](const Group& group) {
    share_kernel_choices(*group);
    return choose("threads", 1, trials[static_cast<std::size_t>(group->rank())]);
  });
  CHECK(got == std::vector<std::size_t>{1, 1});
  CHECK((trials[0] == 0 || trials[1] == 0));
  kernels::reset_policy();
}

TEST_CASE("sharded checkpoints keep the choices of kernels") {
  const tests::TempDir folder;
  std::atomic<int> trials = 0;
  kernels::reset_policy();
  CHECK(choose("saved", 2, trials) == 2);
  const std::string saved = kernel_choices();
  test::Mixed net;
  save_sharded(folder / "a", nullptr, {&net}, {.step = 3, .extra = {{"loader", "x"}}});
  kernels::reset_policy();
  CHECK(choose("saved", 1, trials) == 1);
  const nn::Progress progress = load_sharded(folder / "a", {&net});
  CHECK(kernel_choices() == saved);
  CHECK(choose("saved", 1, trials) == 2);
  CHECK(progress.extra == StringMap{{"loader", "x"}});
  kernels::reset_policy();
}
