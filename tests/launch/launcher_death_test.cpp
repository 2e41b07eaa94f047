// Ranks of mpirun and torchrun end when their launcher is killed by SIGKILL. A shell script stands in for the
// launcher: it sets the launcher's variables and starts the ranks.
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/store.h"
#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using tests::Job;

namespace {

constexpr const char* kRank = "a rank that goes on for a minute";

const std::string kMpirun =
    "OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$r "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=$PORT ";
const std::string kByHand = "RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT ";
const std::string kTorchrun = "TORCHELASTIC_RUN_ID=job " + kByHand;
const std::string kDirectly = "\"$0\" \"$1\"";
const std::string kByScript = "sh -c '\"$0\" \"$1\"; exit $?' \"$0\" \"$1\"";

/// A stand-in launcher with two ranks that have joined their job.
struct Launched {
  Job job;
  Launched(const std::string& variables, const std::string& command, std::vector<std::string> more = {})
      : job({"-c", "for r in 0 1; do " + variables + command + " & done; wait", tests::own_path(), kRank},
            with_port(std::move(more)), "/bin/sh") {
    for (const char* rank : {"up.0", "up.1"}) {
      INFO(job.out() << job.err());
      REQUIRE(job.made(rank));
    }
  }
  static std::vector<std::string> with_port(std::vector<std::string> more) {
    const int port = distributed::start_store_server("127.0.0.1", 0)->port();
    more.insert(more.end(), {"OMP_NUM_THREADS=1", "PORT=" + std::to_string(port)});
    return more;
  }
  void kill_launcher() {
    job.signal(SIGKILL);
    REQUIRE(job.wait(10) == 128 + SIGKILL);
  }
};

}  // namespace

// The ranks run this test case. They communicate at first only, so nothing but the launcher's end ends them.
TEST_CASE("a rank that goes on for a minute", "[.]") {
  if (std::getenv("IGNORES_SIGTERM")) std::signal(SIGTERM, SIG_IGN);
  const auto world = distributed::init_process_group();
  world->barrier().wait();
  tests::write_file(std::string(std::getenv("DIR")) + "/up." + std::to_string(world->rank()), "");
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST_CASE("ranks of mpirun and torchrun end after their launcher was killed") {
  if (!distributed_test::has_gloo()) return;
  for (const std::string& variables : {kMpirun, kTorchrun}) {
    for (const std::string& command : {kDirectly, kByScript}) {
      CAPTURE(variables, command);
      Launched ranks(variables, command);
      ranks.kill_launcher();
      CHECK(ranks.job.all_gone(10));
      CHECK_THAT(ranks.job.err(), ContainsSubstring("the launcher of this rank (") &&
                                      ContainsSubstring("process " + std::to_string(ranks.job.pid())));
    }
  }
}

TEST_CASE("ranks that ignore SIGTERM are killed within the timeout after their launcher") {
  if (!distributed_test::has_gloo()) return;
  Launched ranks(kMpirun, kDirectly, {"IGNORES_SIGTERM=1", "TAPESTRY_TIMEOUT_S=5"});
  ranks.kill_launcher();
  CHECK(ranks.job.all_gone(20));
}

TEST_CASE("other processes outlive the process that started them") {
  if (!distributed_test::has_gloo()) return;
  Launched by_hand(kByHand, kDirectly);
  Launched switched_off(kMpirun, kDirectly, {"TAPESTRY_END_WITH_LAUNCHER=0"});
  by_hand.kill_launcher();
  switched_off.kill_launcher();
  CHECK_FALSE(by_hand.job.all_gone(3));
  CHECK(by_hand.job.processes().size() == 2);
  CHECK(switched_off.job.processes().size() == 2);
}

// The rank waits until its parent has ended, and joins then.
TEST_CASE("a rank that joins late", "[.]") {
  const pid_t parent = getppid();
  tests::write_file(std::string(std::getenv("DIR")) + "/started", "");
  REQUIRE(tests::eventually([&] { return getppid() != parent; }, 30));
  std::string error;
  try {
    distributed::init_process_group();
  } catch (const distributed::DistributedError& e) {
    error = e.what();
  }
  tests::write_file(std::string(std::getenv("DIR")) + "/error", error);
}

TEST_CASE("a rank whose launcher has ended before it joins gets an error") {
  Job job(
      {"-c", "r=0; PORT=1; " + kMpirun + kDirectly + " & wait", tests::own_path(), "a rank that joins late"},
      {"TAPESTRY_TIMEOUT_S=20"}, "/bin/sh");
  REQUIRE(job.made("started"));
  job.signal(SIGKILL);
  REQUIRE(job.made("error"));
  REQUIRE(job.all_gone(10));
  CHECK_THAT(job.file("error"),
             ContainsSubstring("[init_process_group] the launcher of this rank (mpirun, process " +
                               std::to_string(job.pid()) + ") has ended"));
}
