// Ranks that print go on although nobody reads the launcher's output.
#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::Job;

TEST_CASE("ranks that print 6 MB each finish although nobody reads the launcher's output") {
  Job job({"sh", "-c", "\"$0\" \"$@\" | { touch $DIR/reader; sleep 300; }", tests::launcher_path(),
           "--nproc-per-node=2", "sh", "-c",
           "line=$(printf '%0100d' 0); i=0; while [ $i -lt 60000 ]; do echo $line; i=$((i+1)); done; touch "
           "$DIR/done.$RANK"});
  REQUIRE(job.made("reader"));
  CHECK_FALSE(job.made("done.0", 10));  // the launcher waits for a reader first
  CHECK(job.made("done.0", 120));
  CHECK(job.made("done.1", 120));
}
