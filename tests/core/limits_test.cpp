// Messages about limits of memory, processes and threads give the values of the limits.
#include "tapestry/core/internal/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tapestry/core/error.h"
#include "tapestry/core/storage.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cgroups.h"

using namespace tapestry;
using detail::cgroup_file;
using detail::memory_limits;
using detail::process_limits;
using tests::FakeCgroups;

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

std::string memory_max(const FakeCgroups& system) {
  const std::string text = memory_limits(system.root()), name = "memory.max of its control group is ";
  const auto at = text.find(name);
  return at == std::string::npos ? "none"
                                 : text.substr(at + name.size(), text.find(" MiB", at) - at - name.size());
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
  if (memory.rlim_cur == RLIM_INFINITY) CHECK_THAT(memory_limits(), !ContainsSubstring("ulimit -v"));
}

TEST_CASE("the limit of a control group is the smallest one of the group and its ancestors") {
  FakeCgroups system("0::/user.slice/job\n");
  CHECK(memory_max(system) == "none");
  system.set("user.slice/job/memory.max", "1073741824\n");
  CHECK(memory_max(system) == "1024");
  system.set("user.slice/memory.max", "536870912\n");
  CHECK(memory_max(system) == "512");
  system.set("user.slice/memory.max", "max\n");
  CHECK(memory_max(system) == "1024");
  system.set("memory.max", "268435456\n");  // only a container has this file in the topmost group
  CHECK(memory_max(system) == "256");
  system.set("user.slice/job/pids.max", "64\n");
  CHECK_THAT(process_limits(system.root()), ContainsSubstring("pids.max of its control group is 64"));
}

TEST_CASE("a limit of a control group that is no number counts as none") {
  FakeCgroups system("0::/job\n");
  for (const char* text : {"max\n", "", "\n", "-1\n", "12abc\n", " 7", "0x10\n", "1 2\n",
                           "99999999999999999999\n", "1e9\n", "\xff\xfe"}) {
    CAPTURE(text);
    system.set("job/memory.max", text);
    system.set("job/pids.max", text);
    CHECK(memory_max(system) == "none");
    CHECK_THAT(process_limits(system.root()), !ContainsSubstring("pids.max"));
  }
  system.set("job/memory.max", "0\n");
  CHECK(memory_max(system) == "0");
  system.set("job/memory.max", "9223372036854775807");
  CHECK(memory_max(system) == "8796093022207");
}

TEST_CASE("control groups of version 1 and a system without control groups have no limits") {
  FakeCgroups first("12:memory:/docker/1\n3:pids:/docker/1\n1:name=systemd:/docker/1\n");
  first.set("memory/docker/1/memory.limit_in_bytes", "1048576\n");
  first.set("pids/docker/1/pids.max", "64\n");
  CHECK(memory_max(first) == "none");
  CHECK(cgroup_file("pids.max", first.root()).empty());
  FakeCgroups hybrid("12:memory:/docker/1\n0::/docker/1\n");
  hybrid.set("unified/docker/1/cgroup.procs", "1\n");
  CHECK(memory_max(hybrid) == "none");
  for (const char* membership :
       {"", "garbage", "0::", "0::relative\n", "0::/gone\n", "0::/..\n", "0:://\n"}) {
    CAPTURE(membership);
    const FakeCgroups system(membership);
    CHECK(memory_max(system) == "none");
    CHECK(cgroup_file("cpu.max", system.root()).empty());
  }
  const tests::TempDir nothing;
  CHECK_THAT(memory_limits(nothing.path().string()), !ContainsSubstring("control group"));
}

TEST_CASE("a file of a control group is the own one, or else the one of the topmost group") {
  FakeCgroups system("0::/job\n");
  system.set("cpu.max", "top\n");
  CHECK(cgroup_file("cpu.max", system.root()) == "top\n");
  system.set("job/cpu.max", "own\n");
  CHECK(cgroup_file("cpu.max", system.root()) == "own\n");
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
