#include "tapestry/core/internal/sched_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <thread>

#include "tests/support/catch.h"

using namespace tapestry;

namespace {

struct Attributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns, deadline_ns, period_ns;
};

Attributes attributes() {
  Attributes a{};
  REQUIRE(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0);
  return a;
}

}  // namespace

TEST_CASE(
    "SchedSliceGuard shortens the slices of its thread and the threads that it starts, and restores them") {
  std::thread([] {  // a new thread, so that the test's own slice stays as it is
    const Attributes before = attributes();
    if (before.runtime_ns == 0) std::puts("skipped: sched_getattr does not report slices before Linux 6.12");
    const std::uint64_t expected = before.runtime_ns == 0 ? 0 : 100'000;
    {
      const SchedSliceGuard at_once;
      const Attributes now = attributes();
      CHECK(now.runtime_ns == expected);
      CHECK(now.policy == before.policy);
      CHECK(now.nice == before.nice);
      std::thread([&] { CHECK(attributes().runtime_ns == expected); }).join();
    }
    CHECK(attributes().runtime_ns == before.runtime_ns);
    CHECK(attributes().policy == before.policy);
    std::thread([&] { CHECK(attributes().runtime_ns == before.runtime_ns); }).join();
  })
      .join();
}
