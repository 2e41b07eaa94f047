// Messages about limits of memory, processes and threads give the values of the limits.
#include "tapestry/core/internal/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tapestry/core/error.h"
#include "tapestry/core/storage.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

/// Runs `f` under a soft limit, and returns the text of its exception.
template <class F>
std::string error_under(decltype(RLIMIT_AS) resource, rlim_t value, const F& f) {
  rlimit before{};
  REQUIRE(getrlimit(resource, &before) == 0);
  const rlimit lower{.rlim_cur = value, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(resource, &lower) == 0);
  std::string error;
  try {
    f();
  } catch (const Error& e) {
    error = e.what();
  }
  setrlimit(resource, &before);
  return error;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // sanitizers reserve more than any limit allows
TEST_CASE("an allocation that fails under ulimit -v gives the limit") {
  const std::string error =
      error_under(RLIMIT_AS, rlim_t{1} << 40, [] { Storage::allocate(kCPU, std::size_t{1} << 41); });
  CHECK_THAT(error, ContainsSubstring("could not provide 2199023255552 bytes") &&
                        ContainsSubstring("ulimit -v is 1048576 MiB") && ContainsSubstring("free tensors"));
}
#endif

TEST_CASE("limits that are not set are not listed") {
  rlimit memory{};
  REQUIRE(getrlimit(RLIMIT_AS, &memory) == 0);
  if (memory.rlim_cur == RLIM_INFINITY) CHECK_THAT(detail::memory_limits(), !ContainsSubstring("ulimit -v"));
}

// Root may start any number of processes, so the child becomes another user.
TEST_CASE("child that may not start threads", "[.]") {
  if (geteuid() == 0) REQUIRE(setresuid(65534, 65534, 65534) == 0);
  const std::string error =
      error_under(RLIMIT_NPROC, 1, [] { detail::start_thread("store", [] { usleep(100'000); }).join(); });
  CHECK_THAT(error, ContainsSubstring("[store] cannot start a thread: Resource temporarily unavailable") &&
                        ContainsSubstring("ulimit -u is 1 processes and threads of this user") &&
                        ContainsSubstring("use fewer ranks"));
}

TEST_CASE("a thread that cannot be started gives the limits") {
  const ChildResult child = run_child("child that may not start threads");
  INFO(child.output);
  CHECK(child.status == 0);
}
