// Tests restarts: after a failure all ranks must start again, at most --max-restarts times.
#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::Job;

TEST_CASE("ranks restart until they succeed") {
  Job job({"--nproc-per-node=2", "--max-restarts=5", "sh", "-c",
           "touch $DIR/ran.$RANK.$TAPESTRY_RESTART; echo attempt $TAPESTRY_RESTART; [ $TAPESTRY_RESTART = 2 "
           "] && exit 0; "
           "[ $RANK = 1 ] && exit 3; sleep 300"});
  CHECK(job.wait() == 0);
  for (const char* ran : {"ran.0.2", "ran.1.0", "ran.1.1", "ran.1.2"}) CHECK(job.made(ran, 0));
  CHECK_FALSE(job.made("ran.0.3", 0));
  CHECK_THAT(job.err(), ContainsSubstring("exit code 3; restart 1 of 5\n"));
  CHECK_THAT(job.err(), ContainsSubstring("exit code 3; restart 2 of 5\n"));
  CHECK(job.err().find("restart 3") == std::string::npos);
  CHECK_THAT(job.out(), ContainsSubstring("[0] attempt 2\n"));
  CHECK(job.all_gone());
}

TEST_CASE("ranks restart at most --max-restarts times") {
  for (const int restarts : {0, 1, 3}) {
    Job job({"--max-restarts", std::to_string(restarts), "sh", "-c", "echo x >> $DIR/attempts; exit 9"});
    CHECK(job.wait() == 9);
    CHECK(job.file("attempts").size() == 2 * (static_cast<std::size_t>(restarts) + 1));
    CHECK_THAT(job.err_last_line(), ContainsSubstring("exit code 9"));
    CHECK(job.err_last_line().find("restart") == std::string::npos);
  }
}

TEST_CASE("no process of an attempt is alive when the next attempt starts") {
  // In the first attempt, rank 1 fails while rank 0 and its child ignore SIGTERM. In the second attempt,
  // neither of the two may still have a command line in /proc; zombies have none.
  Job job({"--nproc-per-node=2", "--max-restarts=1", "--grace=0.3", "sh", "-c",
           "if [ $TAPESTRY_RESTART = 1 ]; then [ $RANK = 1 ] && exit 0\n"
           "  for i in $(seq 500); do\n"
           "    left=$(cat /proc/$(cat $DIR/rank)/cmdline /proc/$(cat $DIR/child)/cmdline 2>/dev/null | tr "
           "-d '\\0')\n"
           "    [ -z \"$left\" ] && touch $DIR/clean && exit 0; sleep 0.01\n"
           "  done; exit 0\n"
           "fi\n"
           "[ $RANK = 1 ] && { while ! [ -e $DIR/up ]; do sleep 0.01; done; exit 1; }\n"
           "trap '' TERM; sleep 300 & echo $! > $DIR/child; echo $$ > $DIR/rank; touch $DIR/up; wait; sleep "
           "300"});
  CHECK(job.wait() == 0);
  CHECK(job.made("clean", 0));
}

TEST_CASE("Ctrl-C does not cause a restart") {
  Job job({"--max-restarts=3", "sh", "-c",
           "echo x >> $DIR/attempts; trap 'exit 1' INT; touch $DIR/up; while :; do sleep 0.05; done"});
  REQUIRE(job.made("up"));
  job.signal(SIGINT);
  CHECK(job.wait(10) == 130);
  CHECK(job.file("attempts") == "x\n");
}

TEST_CASE("each attempt writes its own logs") {
  const tests::TempDir folder;
  Job job({"--nproc-per-node=1", "--max-restarts=1", "--log-dir", folder.path().string(), "sh", "-c",
           "echo attempt $TAPESTRY_RESTART; [ $TAPESTRY_RESTART = 1 ]"});
  CHECK(job.wait() == 0);
  CHECK(tests::read_file(folder / "rank_0.log") == "attempt 0\n");
  CHECK(tests::read_file(folder / "rank_0.restart1.log") == "attempt 1\n");
}
