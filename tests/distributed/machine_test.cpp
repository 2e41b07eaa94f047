// The number of cores and the counters come from the files of control groups (cgroups).
#include "tapestry/distributed/comm/internal/machine.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"

using namespace tapestry::distributed;
using tests::FakeCgroups;

TEST_CASE("the quota of a control group limits the number of cores, rounded up") {
  FakeCgroups system("0::/job\n");
  const int all = available_cores(system.root());
  REQUIRE(all >= 1);
  const auto cores = [&](const std::string& quota) {
    system.set("job/cpu.max", quota);
    return available_cores(system.root());
  };
  CHECK(cores("100000 100000\n") == 1);
  CHECK(cores("5000 100000\n") == 1);
  CHECK(cores("100001 100000\n") == std::min(all, 2));
  CHECK(cores("150000 100000\n") == std::min(all, 2));
  for (const char* none : {"max 100000\n", "", "garbage", "100000", "100000 0\n", "0 100000\n", "-1 100000\n",
                           "1e300 1\n", "100000000000000000000 1\n"}) {
    CAPTURE(none);
    CHECK(cores(none) == all);
  }
}

TEST_CASE("a counter of a control group is read by its key, and a missing one is reported") {
  FakeCgroups system("0::/job\n");
  const auto kills = [&] { return cgroup_counter("memory.events", "oom_kill", system.root()); };
  CHECK(kills() == std::nullopt);
  system.set("job/memory.events", "low 0\nhigh 7\noom 3\noom_kill 2\noom_group_kill 1\n");
  CHECK(kills() == 2);
  system.set("job/memory.events", "low 0\noom_kill many\n");
  CHECK(kills() == std::nullopt);
  system.set("job/memory.events", "oom_kill");
  CHECK(kills() == std::nullopt);
}
