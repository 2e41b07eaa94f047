#include "tapestry/distributed/launch/internal/failure.h"

#include <cerrno>
#include <csignal>

#include "tests/support/catch.h"

using namespace tapestry::distributed::launch;

TEST_CASE("Failure::status returns the exit status that a shell would report") {
  CHECK(Failure{.exit_code = 3}.status() == 3);
  CHECK(Failure{.signal = SIGSEGV}.status() == 139);
  CHECK(Failure{.signal = SIGKILL}.status() == 137);
  CHECK(Failure{.start_error = ENOENT}.status() == 127);
  CHECK(Failure{.start_error = ENOEXEC}.status() == 126);
}

TEST_CASE("describe names the rank, the kind of failure and a probable cause") {
  const auto says = [](const Failure& failure, const char* text) {
    CHECK_THAT(describe(failure), ContainsSubstring(text));
  };
  says({.rank = 4, .pid = 77, .exit_code = 3}, "rank 4 (pid 77) failed first: it ended with exit code 3");
  says({.pid = 1, .signal = SIGSEGV}, "killed by SIGSEGV (Segmentation fault)");
  says({.pid = 1, .signal = SIGRTMIN + 3}, "killed by signal");
  says({.pid = 1, .signal = SIGBUS}, "--shm-size");
  says({.pid = 1, .signal = SIGKILL}, "not by tapestry-run");
  says({.pid = 1, .signal = SIGKILL}, "out-of-memory killer");
  says({.pid = 1, .signal = SIGKILL, .oom_kills = 0}, "dmesg");
  says({.pid = 1, .signal = SIGKILL, .oom_kills = 2}, "by the kernel, out of memory (2 such");
  says({.rank = 0, .pid = 77, .exit_code = 1, .ended_before = {3, 1}},
       "rank 0 (pid 77) failed first: it ended with exit code 1; ranks 1, 3 had ended before with exit code "
       "0: if "
       "that was too early, look at the output of ranks 1, 3");
  says({.rank = 2, .start_error = EACCES}, "rank 2 failed first: it could not be started: Permission denied");
  says({.start_error = ENOEXEC}, "begins with #!");
  CHECK_THAT(describe({.pid = 1, .signal = SIGTERM, .oom_kills = 2}), !ContainsSubstring("memory"));
}
