// Tests jobs on several nodes. Two launchers on this machine act as two nodes.
#include <fstream>
#include <string>

#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/ports.h"

using tests::eventually;
using tests::Job;

namespace {

struct TwoNodes {
  tests::TempDir shared;  // $SHARED for all ranks
  std::string port = std::to_string(tests::free_port());

  Job node(int rank, const std::string& script, std::vector<std::string> options = {},
           std::vector<std::string> variables = {}) const {
    options.insert(options.end(), {"--nnodes=2", "--nproc-per-node=2", "--node-rank=" + std::to_string(rank),
                                   "--rdzv-endpoint=127.0.0.1:" + port, "sh", "-c", script});
    variables.push_back("SHARED=" + shared.path().string());
    return Job(std::move(options), std::move(variables));
  }
  bool made(const std::string& name) const {
    return eventually([&] { return std::filesystem::exists(shared / name); }, 20);
  }
};

/// Returns how often the main thread of the process has begun to wait. Unlike CPU time, this does not depend
/// on the load.
long waits_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  const std::string name = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) return std::stol(line.substr(name.size()));
  return -1;
}

constexpr const char* kWait = "touch $SHARED/up.$RANK; trap 'exit 0' INT TERM; while :; do sleep 0.02; done";

}  // namespace

TEST_CASE("ranks are numbered across nodes, and the launcher with the store exits last") {
  const TwoNodes nodes;
  const char* const script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $NODE_RANK $MASTER_ADDR:$MASTER_PORT\n"
      "if [ $NODE_RANK = 1 ]; then while ! [ -e $SHARED/go ]; do sleep 0.02; done; fi; touch "
      "$SHARED/ended.$RANK";
  Job one = nodes.node(1, script);  // started before node 0, for which it waits
  CHECK(one.wait(0.5) == -1);
  Job zero = nodes.node(0, script);
  REQUIRE((nodes.made("ended.0") && nodes.made("ended.1")));
  const long waits = waits_of(zero.pid());
  CHECK(zero.wait(1) == -1);  // its ranks have exited, but the other node's ranks may need the store
  REQUIRE(waits > 0);
  CHECK(waits_of(zero.pid()) - waits < 200);  // it asks five times per second
  tests::write_file(nodes.shared / "go", "");
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
  for (const std::string& line :
       {"[0] 0 0 4 0 127.0.0.1:" + nodes.port, "[1] 1 1 4 0 127.0.0.1:" + nodes.port})
    CHECK_THAT(zero.out(), ContainsSubstring(line + "\n"));
  for (const std::string& line :
       {"[2] 2 0 4 1 127.0.0.1:" + nodes.port, "[3] 3 1 4 1 127.0.0.1:" + nodes.port})
    CHECK_THAT(one.out(), ContainsSubstring(line + "\n"));
}

TEST_CASE("a launcher that waits for other nodes writes the output that a slow reader had blocked") {
  // Each rank of node 0 prints 80 KB, more than a pipe holds, and exit before anybody reads. The reader must
  // get all of it while the ranks of node 1 still run.
  const TwoNodes nodes;
  const char* const script =
      "if [ $NODE_RANK = 1 ]; then while ! [ -e $SHARED/go ]; do sleep 0.02; done; exit 0; fi\n"
      "i=0; while [ $i -lt 2000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done\n"
      "echo last; touch $SHARED/ended.$RANK";
  Job zero(
      {"-c",
       "\"$0\" \"$@\" | { while ! [ -e $SHARED/read ]; do sleep 0.02; done; grep -m 1 '\\[0\\] last'; touch "
       "$SHARED/got; cat; }",
       tests::launcher_path(), "--nnodes=2", "--nproc-per-node=2", "--node-rank=0",
       "--rdzv-endpoint=127.0.0.1:" + nodes.port, "sh", "-c", script},
      {"SHARED=" + nodes.shared.path().string()}, "/bin/sh");
  Job one = nodes.node(1, script);
  REQUIRE((nodes.made("ended.0") && nodes.made("ended.1")));
  tests::write_file(nodes.shared / "read", "");
  CHECK(nodes.made("got"));
  CHECK(zero.wait(0) == -1);
  tests::write_file(nodes.shared / "go", "");
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
}

TEST_CASE("a failure on one node ends all nodes, and every launcher names the rank") {
  for (const std::string failing : {"0", "3"}) {
    const TwoNodes nodes;
    const std::string script =
        "touch $SHARED/up.$RANK; if [ $RANK = " + failing +
        " ]; then for r in 0 1 2 3; do while ! [ -e $SHARED/up.$r ]; do sleep 0.02; done; done; "
        "echo why; exit 7; fi; sleep 300";
    Job zero = nodes.node(0, script);
    Job one = nodes.node(1, script);
    CHECK(zero.wait() == 7);
    CHECK(one.wait() == 7);
    const std::string node = failing == "0" ? "node 0" : "node 1";
    for (const Job* job : {&zero, &one}) {
      CHECK_THAT(job->err_last_line(), ContainsSubstring(node + ": rank " + failing + " (pid "));
      CHECK_THAT(job->err_last_line(), ContainsSubstring("exit code 7"));
      CHECK(job->all_gone());
    }
    CHECK_THAT((failing == "0" ? zero : one).err(), ContainsSubstring("  " + failing + " | why\n"));
  }
}

TEST_CASE("all nodes restart together") {
  const TwoNodes nodes;
  const char* const script =
      "echo attempt $TAPESTRY_RESTART; [ $TAPESTRY_RESTART = 1 ] && exit 0; touch $SHARED/up.$RANK\n"
      "if [ $RANK = 2 ]; then for r in 0 1 3; do while ! [ -e $SHARED/up.$r ]; do sleep 0.02; done; done; "
      "exit 5; fi\n"
      "sleep 300";
  Job zero = nodes.node(0, script, {"--max-restarts=2"});
  Job one = nodes.node(1, script, {"--max-restarts=2"});
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
  for (const Job* job : {&zero, &one}) {
    CHECK_THAT(job->err(), ContainsSubstring("node 1: rank 2 (pid "));
    CHECK_THAT(job->err(), ContainsSubstring("restart 1 of 2"));
    CHECK_THAT(job->out(), ContainsSubstring("attempt 1\n"));
    CHECK(job->all_gone());
  }
}

TEST_CASE("Ctrl-C at one launcher ends the other") {
  const TwoNodes nodes;
  Job zero = nodes.node(0, kWait, {"--max-restarts=3"});
  Job one = nodes.node(1, kWait, {"--max-restarts=3"});
  for (const char* up : {"up.0", "up.1", "up.2", "up.3"}) REQUIRE(nodes.made(up));
  one.signal(SIGINT);
  CHECK(one.wait() == 130);
  CHECK(zero.wait() == 130);
  CHECK_THAT(zero.err_last_line(), ContainsSubstring("node 1: ended by SIGINT"));
}

TEST_CASE("if node 0's launcher is killed, the other launcher reports it and exits") {
  const TwoNodes nodes;
  Job zero = nodes.node(0, kWait);
  Job one = nodes.node(1, kWait);
  for (const char* up : {"up.0", "up.1", "up.2", "up.3"}) REQUIRE(nodes.made(up));
  zero.signal(SIGKILL);
  CHECK(one.wait(20) == 1);
  CHECK_THAT(one.err_last_line(), ContainsSubstring("the launcher of node 0 does not answer"));
  CHECK(zero.wait() == 137);
  CHECK(zero.all_gone());
  CHECK(one.all_gone());
}

TEST_CASE("a launcher that was killed is started again, and the job goes on with one restart") {
  for (const int killed : {1, 0}) {
    const TwoNodes nodes;
    // The ranks of the other node would not notice.
    const std::string script =
        "[ -e $SHARED/again ] && exit 0; touch $SHARED/up.$RANK; while :; do sleep 0.02; done";
    const std::vector<std::string> options = {"--max-restarts=3"};
    Job zero = nodes.node(0, script, options);
    Job one = nodes.node(1, script, options);
    for (const char* up : {"up.0", "up.1", "up.2", "up.3"}) REQUIRE(nodes.made(up));
    Job &dead = killed ? one : zero, &other = killed ? zero : one;
    dead.signal(SIGKILL);
    CHECK(dead.wait() == 137);
    const std::string found =
        killed ? "node 1: its launcher has ended, or node 0 cannot reach it; restart 1 of 3\n"
               : "s for it to return\n";
    REQUIRE(eventually([&] { return other.err().find(found) != std::string::npos; }, 30));
    CHECK(other.wait(0.5) == -1);  // it waits
    tests::write_file(nodes.shared / "again", "");
    Job again = nodes.node(killed, script, options);
    CHECK(again.wait() == 0);
    CHECK(other.wait() == 0);
    CHECK_THAT(other.err(), !ContainsSubstring("restart 2 of 3"));
    for (const Job* job : {&zero, &one, &again}) CHECK(job->all_gone());
  }
}

TEST_CASE("a launcher that does not come back in time ends the job") {
  const TwoNodes nodes;
  const std::vector<std::string> options = {"--max-restarts=3"}, variables = {"TAPESTRY_TIMEOUT_S=1"};
  Job zero = nodes.node(0, kWait, options, variables);
  Job one = nodes.node(1, kWait, options, variables);
  for (const char* up : {"up.0", "up.1", "up.2", "up.3"}) REQUIRE(nodes.made(up));
  one.signal(SIGKILL);
  CHECK(zero.wait() == 1);
  CHECK_THAT(zero.err_last_line(), ContainsSubstring("the launchers of node 1 have not come within 1 s"));
  CHECK_THAT(zero.err(), ContainsSubstring("restart 1 of 3") && !ContainsSubstring("restart 2 of 3"));
  CHECK(zero.all_gone());
}

TEST_CASE("node 0's launcher does not wait for a stopped launcher") {
  const TwoNodes nodes;
  const std::string script =
      "touch $SHARED/up.$RANK; if [ $RANK = 0 ]; then until [ -e $SHARED/go ]; do sleep 0.02; done; exit 7; "
      "fi; "
      "sleep 300";
  Job zero = nodes.node(0, script);
  Job one = nodes.node(1, script);
  for (const char* up : {"up.0", "up.1", "up.2", "up.3"}) REQUIRE(nodes.made(up));
  one.signal(SIGSTOP);
  const double before = zero.seconds();
  tests::write_file(nodes.shared / "go", "");
  CHECK(zero.wait() == 7);
  CHECK(zero.seconds() - before < 9);  // it would wait 15 s for a slow launcher
  one.signal(SIGKILL);
}

TEST_CASE("launchers with different options or equal node ranks are refused") {
  const TwoNodes nodes;
  Job zero = nodes.node(0, kWait, {}, {"TAPESTRY_SECRET=right"});
  Job stranger = nodes.node(1, kWait, {}, {"TAPESTRY_SECRET=wrong"});
  CHECK(stranger.wait(20) == 1);
  CHECK_THAT(stranger.err(), ContainsSubstring("secret"));
  Job other = nodes.node(1, kWait, {"--max-restarts=4"}, {"TAPESTRY_SECRET=right"});
  CHECK(other.wait(20) == 2);
  CHECK_THAT(other.err(), ContainsSubstring("must be the same on all nodes"));
  Job twin = nodes.node(0, kWait, {}, {"TAPESTRY_SECRET=right"});
  CHECK(twin.wait(20) == 1);
  CHECK_THAT(twin.err(), ContainsSubstring(nodes.port));
  for (const char* up : {"up.0", "up.2"}) CHECK_FALSE(std::filesystem::exists(nodes.shared / up));
  zero.signal(SIGTERM);
  CHECK(zero.wait(20) == 143);
}

TEST_CASE("Ctrl-C ends a launcher that waits for node 0") {
  const TwoNodes nodes;
  Job one = nodes.node(1, kWait);
  CHECK(one.wait(0.3) == -1);
  one.signal(SIGINT);
  CHECK(one.wait(10) == 130);
}
