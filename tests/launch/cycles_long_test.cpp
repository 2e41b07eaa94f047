// Runs many jobs one after another, because processes are left behind only rarely, if at all.
#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::Job;

TEST_CASE("of a hundred jobs, successful or failing, none leaves a process behind") {
  for (int i = 0; i < 100; ++i) {
    const bool fails = i % 3 == 0;
    Job job({"--nproc-per-node=4", "sh", "-c",
             std::string("echo line $RANK; ") + (fails ? "[ $RANK = 2 ] && exit 5; sleep 300" : "exit 0")});
    REQUIRE(job.wait(20) == (fails ? 5 : 0));
    if (!fails) REQUIRE(job.out().size() == 4 * std::string("[0] line 0\n").size());
    REQUIRE(job.all_gone());
  }
}

TEST_CASE("a hundred launchers that are killed during their start leave no process behind") {
  for (int i = 0; i < 100; ++i) {
    Job job({"--nproc-per-node=4", "sh", "-c", "sleep 300 & sleep 300"});
    usleep(static_cast<useconds_t>(300 * i));
    job.signal(SIGKILL);
    REQUIRE(job.wait(20) == 137);
    REQUIRE(job.all_gone());
  }
}
