// Tests how a job ends: after any failure or kill, no process must stay behind, and the first failure must be
// printed last.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::eventually;
using tests::Job;

namespace {

/// A script for two ranks. Each reports that it runs and then sleeps. Each has a background child that
/// outlives it.
constexpr const char* kWaits = "sleep 300 & echo $$ > $DIR/pid.$RANK; touch $DIR/up.$RANK; wait; sleep 300";

Job waiting(std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--nproc-per-node=2", "sh", "-c", kWaits});
  return Job(std::move(options));
}

bool up(const Job& job) { return job.made("up.0") && job.made("up.1"); }

int rank_pid(const Job& job, int rank) { return std::stoi(job.file("pid." + std::to_string(rank))); }

}  // namespace

TEST_CASE("if all ranks succeed, the exit status is 0 after the last rank has exited") {
  Job job({"--nproc-per-node=2", "sh", "-c", "[ $RANK = 1 ] && sleep 0.5 && touch $DIR/late; exit 0"});
  CHECK(job.wait() == 0);
  CHECK(job.made("late", 0));
  CHECK(job.err().empty());
}

TEST_CASE("the ranks are the launcher's only children") {
  Job job = waiting();
  REQUIRE(up(job));
  CHECK(job.children() == std::set<int>{rank_pid(job, 0), rank_pid(job, 1)});
}

TEST_CASE("a rank that exits with a code ends the job and is printed last with its last lines") {
  Job job({"--nproc-per-node=3", "sh", "-c",
           "trap 'echo rank $RANK: lost my peer >&2; exit 1' TERM; touch $DIR/up.$RANK\n"
           "if [ $RANK = 1 ]; then while ! [ -e $DIR/up.0 -a -e $DIR/up.2 ]; do sleep 0.01; done\n"
           "  for i in $(seq 30); do echo line $i; done; echo the reason >&2; exit 3; fi\n"
           "while :; do sleep 0.05; done"});
  CHECK(job.wait() == 3);
  CHECK(job.seconds() < 20);
  const std::string err = job.err();
  CHECK_THAT(job.err_last_line(), ContainsSubstring("[tapestry-run] rank 1 (pid "));
  CHECK_THAT(job.err_last_line(), ContainsSubstring("exit code 3"));
  // The last twenty lines of rank 1 must be repeated before the final message and after the output of the
  // other ranks.
  const auto at = [&](const char* text) { return err.find(text); };
  CHECK(at("[0] rank 0: lost my peer") < at("the last lines of rank 1:"));
  CHECK(at("[2] rank 2: lost my peer") < at("the last lines of rank 1:"));
  CHECK(at("the last lines of rank 1:") < at("  1 | the reason"));
  CHECK(at("  1 | line 30\n") != std::string::npos);
  CHECK(at("  1 | line 12\n") != std::string::npos);
  CHECK(at("  1 | line 10\n") == std::string::npos);
  CHECK(job.all_gone(0));
}

TEST_CASE("crashes and kills are reported with the signal's name") {
  for (const auto& [name, status, text] : {std::tuple{"SEGV", 139, "killed by SIGSEGV (Segmentation fault)"},
                                           std::tuple{"ABRT", 134, "killed by SIGABRT (Aborted)"},
                                           std::tuple{"KILL", 137, "killed by SIGKILL (Killed)"}}) {
    Job job(
        {"--nproc-per-node=2", "sh", "-c",
         std::string(
             "ulimit -c 0; touch $DIR/up.$RANK; [ $RANK = 0 ] && while ! [ -e $DIR/up.1 ]; do sleep 0.01; "
             "done && kill -") +
             name + " $$; sleep 300"});
    CHECK(job.wait() == status);
    CHECK(job.seconds() < 20);
    CHECK_THAT(job.err_last_line(), ContainsSubstring("rank 0 (pid "));
    CHECK_THAT(job.err_last_line(), ContainsSubstring(text));
    CHECK(job.all_gone());
  }
}

TEST_CASE("kill -9 of a rank from outside ends the job and is reported") {
  Job job = waiting();
  REQUIRE(up(job));
  kill(rank_pid(job, 1), SIGKILL);
  CHECK(job.wait(10) == 137);
  CHECK_THAT(job.err_last_line(), ContainsSubstring("rank 1 (pid "));
  CHECK_THAT(job.err_last_line(), ContainsSubstring("not by tapestry-run"));
  CHECK(job.all_gone());
}

TEST_CASE("the first of several deaths is reported although the launcher was stopped meanwhile") {
  // The launcher is stopped while three ranks die: rank 2 first, then rank 0 by exit and rank 1 by a signal.
  // Only the kernel's order tells afterwards which one was first.
  Job job({"--nproc-per-node=3", "sh", "-c",
           "ulimit -c 0; echo $$ > $DIR/pid.$RANK; touch $DIR/up.$RANK; while ! [ -e $DIR/go.$RANK ]; do "
           "sleep 0.01; "
           "done; [ $RANK = 1 ] && kill -SEGV $$; exit 4$RANK"});
  REQUIRE((up(job) && job.made("up.2")));
  job.signal(SIGSTOP);
  REQUIRE(eventually([&] { return tests::state_of(job.pid()) == 'T'; }, 10));
  for (const int rank : {2, 0, 1}) {
    job.write("go." + std::to_string(rank), "");
    REQUIRE(eventually([&] { return tests::state_of(rank_pid(job, rank)) == 'Z'; }, 10));
  }
  job.signal(SIGCONT);
  CHECK(job.wait(10) == 42);
  CHECK_THAT(job.err_last_line(), ContainsSubstring("rank 2 (pid "));
}

TEST_CASE("the first of several deaths is reported although the launcher is still starting ranks") {
  Job job(
      {"--nproc-per-node=24", "sh", "-c",
       "ulimit -c 0; echo $$ > $DIR/pid.$RANK; [ $RANK = 0 ] && exit 40; [ $RANK = 1 ] && { until [ "
       "\"$(cut -d ' ' -f 3 /proc/$(cat $DIR/pid.0)/stat)\" = Z ]; do sleep 0.002; done; kill -SEGV $$; }; "
       "sleep 300"});
  CHECK(job.wait() == 40);
  CHECK_THAT(job.err_last_line(), ContainsSubstring("rank 0 (pid "));
  CHECK(job.all_gone());
}

TEST_CASE("SIGINT, SIGTERM and SIGHUP reach the ranks, which may handle them") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Job job(
        {"--nproc-per-node=2", "sh", "-c",
         "trap 'echo saved $RANK; exit 0' INT TERM HUP; touch $DIR/up.$RANK; while :; do sleep 0.05; done"});
    REQUIRE(up(job));
    job.signal(signal);
    CHECK(job.wait(10) == 128 + signal);
    CHECK_THAT(job.out(), ContainsSubstring("[0] saved 0\n"));
    CHECK_THAT(job.out(), ContainsSubstring("[1] saved 1\n"));
    CHECK_THAT(job.err_last_line(), ContainsSubstring("ended by SIG"));
    CHECK(job.all_gone(0));
  }
}

TEST_CASE(
    "SIGINT and SIGHUP stay ignored, by the ranks too, if they were ignored when the launcher started") {
  for (const int signal : {SIGINT, SIGHUP}) {
    Job job({"-c", "trap '' INT HUP; exec \"$0\" \"$@\"", tests::launcher_path(), "--nproc-per-node=1", "sh",
             "-c", "touch $DIR/up.$RANK; until [ -e $DIR/go ]; do sleep 0.02; done; echo done"},
            {}, "/bin/sh");
    REQUIRE(job.made("up.0"));
    for (const int process : job.processes())
      if (tests::name_of(process) == "sh") kill(process, signal);
    job.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    job.write("go", "");
    CHECK(job.wait(10) == 0);
    CHECK_THAT(job.out(), ContainsSubstring("[0] done\n"));
  }
}

TEST_CASE("signals that follow each other at once are one request") {
  Job job({"--nproc-per-node=1", "sh", "-c",
           "trap 'sleep 0.5; echo saved; exit 0' HUP; touch $DIR/up.$RANK; while :; do sleep 0.05; done"});
  REQUIRE(job.made("up.0"));
  job.signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  job.signal(SIGHUP);  // a closed terminal sends the second one
  CHECK(job.wait(10) == 128 + SIGHUP);
  CHECK_THAT(job.out(), ContainsSubstring("[0] saved\n"));
  CHECK(job.all_gone(0));
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace period") {
  Job job({"--nproc-per-node=2", "--grace=0.5", "sh", "-c",
           "trap '' INT TERM; touch $DIR/up.$RANK; while :; do sleep 0.05; done"});
  REQUIRE(up(job));
  const double before = job.seconds();
  job.signal(SIGTERM);
  CHECK(job.wait(10) == 143);
  CHECK(job.seconds() - before > 0.45);
  CHECK(job.all_gone(0));
}

TEST_CASE("a second Ctrl-C kills the ranks without waiting for the grace period") {
  Job job({"--nproc-per-node=2", "--grace=3600", "sh", "-c",
           "trap 'touch $DIR/asked.$RANK' INT; touch $DIR/up.$RANK; while :; do sleep 0.05; done"});
  REQUIRE(up(job));
  job.signal(SIGINT);
  REQUIRE((job.made("asked.0") && job.made("asked.1")));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // signals within 250 ms are one request
  job.signal(SIGINT);
  CHECK(job.wait(10) == 130);
  CHECK(job.all_gone(0));
}

TEST_CASE("a stopped rank ends with the others before the grace period is over") {
  Job job = waiting({"--grace=3600"});
  REQUIRE(up(job));
  kill(rank_pid(job, 0), SIGSTOP);
  REQUIRE(eventually([&] { return tests::state_of(rank_pid(job, 0)) == 'T'; }, 10));
  kill(rank_pid(job, 1), SIGKILL);
  CHECK(job.wait(10) == 137);
  CHECK_THAT(job.err_last_line(), ContainsSubstring("rank 1 (pid "));
  CHECK(job.all_gone());
}

TEST_CASE("SIGKILL of the launcher also ends the ranks and their children") {
  Job job = waiting();
  REQUIRE(up(job));
  // These are the launcher, its guard, two shells, and their children.
  REQUIRE(eventually([&] { return job.processes().size() == 6; }, 10));
  job.signal(SIGKILL);
  CHECK(job.wait(10) == 137);
  CHECK(job.all_gone(5));
}

TEST_CASE("without the guard, the kernel still ends ranks together with their launcher") {
  Job job({"--nproc-per-node=2", "sh", "-c", "touch $DIR/up.$RANK; exec sleep 300"});
  REQUIRE(up(job));
  const auto kill_guard = [&] {
    for (const int pid : job.processes()) {
      if (tests::name_of(pid) == "tapestry-guard") return kill(pid, SIGKILL) == 0;
    }
    return false;
  };
  REQUIRE(eventually(kill_guard, 10));
  REQUIRE(eventually([&] { return job.processes().size() == 3; }, 10));
  job.signal(SIGKILL);
  CHECK(job.wait(10) == 137);
  CHECK(job.all_gone(5));
}

TEST_CASE("background processes of a rank end with the rank") {
  Job job({"--nproc-per-node=2", "sh", "-c", "sleep 300 & exit 0"});
  CHECK(job.wait(10) == 0);
  CHECK(job.all_gone());
}

TEST_CASE("a background process in its own session outlives the job, as docs/reference/limits.md says") {
  Job job({"--nproc-per-node=1", "sh", "-c", "setsid sleep 300 & sleep 0.5; exit 0"});
  CHECK(job.wait(10) == 0);
  CHECK_FALSE(job.all_gone(1));
}

TEST_CASE("the launcher keeps watching the ranks if nobody reads its output") {
  // The launcher's stdout is a pipe that nobody reads, and the ranks write without end. If one of them is
  // killed, the launcher must still end the other one.
  Job job({"sh", "-c", "\"$0\" \"$@\" | { touch $DIR/reader; sleep 300; }", tests::launcher_path(),
           "--nproc-per-node=2", "sh", "-c",
           "echo $$ > $DIR/pid.$RANK; touch $DIR/up.$RANK; while :; do echo "
           "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"});
  REQUIRE(up(job));
  usleep(
      300'000);  // time for the pipe and the queue to fill; a shorter time makes the test weaker, not wrong
  const int victim = rank_pid(job, 1), other = rank_pid(job, 0);
  kill(victim, SIGKILL);
  CHECK(eventually([&] { return tests::state_of(other) == 0 || tests::state_of(other) == 'Z'; }, 10));
}

TEST_CASE("a reader that closes the pipe does not end the job") {
  Job job({"sh", "-c", "\"$0\" \"$@\" | head -1 > $DIR/first", tests::launcher_path(), "sh", "-c",
           "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done; sleep 0.2; echo more; touch "
           "$DIR/finished"});
  CHECK(job.wait(20) == 0);
  CHECK(job.file("first") == "[0] 0\n");
  CHECK(job.made("finished", 0));
}
