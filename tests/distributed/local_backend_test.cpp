// The transport between threads, and the helper that starts them.
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;

TEST_CASE("run_local_ranks runs every rank") {
  std::atomic<int> seen{0};
  run_local_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    CHECK(group->size() == 3);
    CHECK(group->backend() == "local");
    CHECK(group->name() == "world");
    CHECK(compute_threads() == 1);
    Tensor x = empty({2});
    x.data<float>()[0] = static_cast<float>(group->rank());
    x.data<float>()[1] = 1;
    group->all_reduce(x).wait();
    CHECK(x.data<float>()[0] == 3);
    CHECK(x.data<float>()[1] == 3);
    seen += 1 << group->rank();
  });
  CHECK(seen == 7);
}
