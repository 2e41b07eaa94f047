// Runs one program under each launcher. The program joins its job through the launcher's variables and sums
// the ranks.
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "tapestry/autograd/ops.h"
#include "tapestry/distributed/comm/init.h"
#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using tests::Job;

namespace {

constexpr const char* kRank = "a rank of a job";

/// Returns the path of the program on PATH, or "" if there is none.
std::string on_path(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  }
  WARN(name << " is not on PATH: skipped");
  return "";
}

/// Returns what the ranks wrote to $DIR: "launcher size sum", in rank order.
void check_ranks(Job& job, int size, const std::string& launcher) {
  const int status = job.wait(120);
  INFO(job.out() << job.err());
  REQUIRE(status == 0);
  for (int rank = 0; rank < size; ++rank) {
    std::ostringstream expected;
    expected << launcher << " " << size << " " << size * (size + 1) / 2;
    REQUIRE(job.made("rank." + std::to_string(rank), 0));
    CHECK(job.file("rank." + std::to_string(rank)) == expected.str());
  }
  CHECK(job.all_gone());
}

const std::vector<std::string> kLimits = {"TAPESTRY_TIMEOUT_S=60", "OMP_NUM_THREADS=1"};

}  // namespace

// The launchers below run this test case.
TEST_CASE("a rank of a job", "[.]") {
  const auto world = distributed::init_process_group();
  const Tensor sum = tensor({world->rank() + 1.0});
  world->all_reduce(sum).wait();
  const distributed::Environment e = distributed::read_environment();
  if (const char* const dies = std::getenv("DIES"); dies && e.restart == 0 && std::to_string(e.rank) == dies)
    raise(SIGKILL);
  world->barrier().wait();
  std::ostringstream result;
  result << e.launcher << " " << world->size() << " " << sum.item();
  tests::write_file(std::string(std::getenv("DIR")) + "/rank." + std::to_string(world->rank()), result.str());
}

TEST_CASE("three ranks join and reduce under tapestry-run") {
  if (!distributed_test::has_gloo()) return;
  Job job({"--nproc-per-node=3", tests::own_path(), kRank}, kLimits);
  check_ranks(job, 3, "tapestry-run");
}

TEST_CASE("after tapestry-run has restarted a job because a rank was killed, the ranks join and reduce") {
  if (!distributed_test::has_gloo()) return;
  auto variables = kLimits;
  variables.push_back("DIES=1");
  Job job({"--nproc-per-node=2", "--max-restarts=1", tests::own_path(), kRank}, variables);
  check_ranks(job, 2, "tapestry-run");
  CHECK_THAT(job.err(), ContainsSubstring("rank 1 (pid "));
  CHECK_THAT(job.err(), ContainsSubstring("killed by SIGKILL"));
}

TEST_CASE("a program without a launcher is a job of one rank") {
  Job job({kRank}, kLimits, tests::own_path());
  check_ranks(job, 1, "none");
}

TEST_CASE("ranks that a shell starts with RANK and WORLD_SIZE join and reduce") {
  if (!distributed_test::has_gloo()) return;
  Job first({"sh", "-c", "echo $MASTER_PORT > $DIR/port"});
  REQUIRE(first.wait() == 0);
  Job job({"-c",
           "for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(cat $1) \"$0\" \"$2\" "
           "& done; wait",
           tests::own_path(), first.path("port"), kRank},
          kLimits, "/bin/sh");
  check_ranks(job, 2, "variables");
}

TEST_CASE("ranks with Slurm's variables join and reduce") {
  if (!distributed_test::has_gloo()) return;
  Job job({"-c",
           "for r in 0 1; do SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=$$ "
           "SLURM_STEP_TASKS_PER_NODE=2 \"$0\" \"$1\" & done; wait",
           tests::own_path(), kRank},
          kLimits, "/bin/sh");
  check_ranks(job, 2, "srun");
}

TEST_CASE("two ranks join and reduce under mpirun") {
  if (!distributed_test::has_gloo()) return;
  const std::string mpirun = on_path("mpirun");
  if (mpirun.empty()) return;
  Job job(
      {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", tests::own_path(), kRank},
      kLimits, mpirun);
  check_ranks(job, 2, "mpirun");
}

TEST_CASE("two ranks join and reduce under torchrun, whose agent owns MASTER_PORT") {
  if (!distributed_test::has_gloo()) return;
  const std::string torchrun = on_path("torchrun");
  if (torchrun.empty()) return;
  Job job({"--no-python", "--standalone", "--nproc-per-node", "2", tests::own_path(), kRank}, kLimits,
          torchrun);
  check_ranks(job, 2, "torchrun");
}
