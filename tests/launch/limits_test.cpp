// Limits of the system end tapestry-run with a message that names the limit and its value.
#include <unistd.h>

#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::Job;

namespace {

/// Runs tapestry-run under a limit of prlimit(1). Root is exempt from some limits, so the launcher runs as
/// another user then.
Job under(const std::string& limit, const std::string& ranks) {
  const std::string user = geteuid() == 0 ? "setpriv --reuid 65534 --clear-groups " : "";
  return Job({"-c", "exec " + user + "prlimit " + limit + " \"$0\" \"$@\"", tests::launcher_path(),
              "--nproc-per-node=" + ranks, "sleep", "60"},
             {}, "/bin/sh");
}

bool started(Job& job) {
  const int status = job.wait(30);
  INFO(job.out() << job.err());
  CHECK(status > 0);
  if (status == 126 || status == 127) WARN("skipped: another user cannot run " << tests::launcher_path());
  return status != 126 && status != 127;
}

}  // namespace

TEST_CASE("ulimit -u is named if the launcher cannot start a process") {
  Job job = under("--nproc=1", "1");
  if (!started(job)) return;
  CHECK_THAT(job.err(), ContainsSubstring("Resource temporarily unavailable") &&
                            ContainsSubstring("ulimit -u is 1 processes and threads of this user"));
}

TEST_CASE("ulimit -n is named if the launcher cannot open pipes for its ranks") {
  for (const char* files : {"8", "12", "20"}) {
    CAPTURE(files);
    Job job = under(std::string("--nofile=") + files, "10");
    if (!started(job)) return;
    CHECK_THAT(job.err(), ContainsSubstring("Too many open files") && ContainsSubstring("ulimit -n"));
    CHECK(job.all_gone());
  }
}
