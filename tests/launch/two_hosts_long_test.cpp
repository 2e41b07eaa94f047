// Tests a job on two hosts whose connection breaks.
#include "tests/launch/hosts.h"
#include "tests/support/catch.h"

using tests::Job;

TEST_CASE("a job over two hosts ends on both when the wire is cut") {
  if (!tests::has_hosts()) return;
  Job job = tests::hosts(
      "run 1 $on_b & one=$!\n"
      "(until ls $DIR/checkpoints/step-* > $DIR/seen 2>&1; do sleep 0.05; done; ip link set wire0 down; date "
      "+%s > $DIR/cut) &\n"
      "run 0; date +%s > $DIR/ended; wait $one; kill $b",
      {"TAPESTRY_SECRET=ours", "TAPESTRY_TIMEOUT_S=3", "JOB_STEPS=1000000"});
  CHECK(job.wait(60) == 0);
  INFO(job.file("out.0") << job.file("out.1"));
  for (const char* status : {"status.0", "status.1"}) CHECK(job.file(status) == "1\n");
  CHECK_THAT(job.file("out.0"), ContainsSubstring("rank 1 is silent (frozen, dead or cut off)"));
  CHECK_THAT(job.file("out.1"), ContainsSubstring("the launcher of node 0 does not answer"));
  // Bounds the time until the launcher of node 0 exits: 3 s for the collective's timeout, 3 s to ask rank 1
  // for its state, 4 s in which the launcher waits in vain for node 1 to learn that the job has ended, and a
  // reserve.
  CHECK(std::stoi(job.file("ended")) - std::stoi(job.file("cut")) <= 14);
  CHECK(job.all_gone());
}

TEST_CASE("after a cut, the launchers of both hosts meet again and the job goes on with one restart") {
  if (!tests::has_hosts()) return;
  Job job = tests::hosts(
      "run 1 $on_b & one=$!\n"
      "(until ls $DIR/checkpoints/step-* > $DIR/seen 2>&1; do sleep 0.05; done; ip link set wire0 down; "
      "sleep 8\n"
      " ip link set wire0 up) &\n"
      "run 0; wait $one; kill $b",
      {"OPTIONS=--max-restarts=2", "TAPESTRY_SECRET=ours", "TAPESTRY_TIMEOUT_S=30", "JOB_STEPS=300"});
  CHECK(job.wait(120) == 0);
  INFO(job.file("out.0") << job.file("out.1"));
  for (const char* status : {"status.0", "status.1"}) CHECK(job.file(status) == "0\n");
  CHECK_THAT(job.file("out.0"), ContainsSubstring("restart 1 of 2") && !ContainsSubstring("restart 2 of 2"));
  CHECK_THAT(job.file("out.1"), ContainsSubstring("the launcher of node 0 does not answer"));
  CHECK(job.all_gone());
}
