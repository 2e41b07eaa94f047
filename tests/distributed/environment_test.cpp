// Tests read_environment() with the variables of each launcher, and with invalid variables.
#include "tapestry/distributed/comm/environment.h"

#include <cstdlib>
#include <map>
#include <string>

#include "tapestry/core/error.h"
#include "tests/distributed/environment_support.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using tests::JobVariables;
using Variables = std::map<std::string, std::string>;

namespace {

Environment read(const Variables& variables) {
  const JobVariables set(variables);
  return read_environment();
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

/// `base` with some variables changed. The value "" removes a variable.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

void check_ranks(const Environment& e, int rank, int size, int local_rank, int local_size) {
  CHECK(e.rank == rank);
  CHECK(e.world_size == size);
  CHECK(e.local_rank == local_rank);
  CHECK(e.local_world_size == local_size);
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0.cluster"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "519786c3"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_MAX_RESTARTS", "3"}};

const Variables kOurs = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "41234"},
                         {"TAPESTRY_LAUNCHER", "tapestry-run"},
                         {"TAPESTRY_STORE_RUNNING", "1"},
                         {"TAPESTRY_RESTART", "5"},
                         {"TAPESTRY_MAX_RESTARTS", "6"},
                         {"TAPESTRY_SECRET", "s3cret"}};

// The variables that Open MPI 4.1 (orte) and Open MPI 5 (prte) set.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_MCA_ess_base_jobid", "1700003841"},
                            {"PMIX_NAMESPACE", "1700003841"}};

// The variables of a step with 7 tasks on 4 nodes, as the first task on the last node sees them.
const Variables kSrun = {{"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "6"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "3"},
                         {"SLURM_NTASKS", "7"},
                         {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                         {"MASTER_ADDR", "node0"}};
const Variables kSrunOneHost = {{"SLURM_JOB_ID", "4711"},
                                {"SLURM_STEP_ID", "1"},
                                {"SLURM_PROCID", "2"},
                                {"SLURM_LOCALID", "2"},
                                {"SLURM_NODEID", "0"},
                                {"SLURM_NTASKS", "3"},
                                {"SLURM_STEP_TASKS_PER_NODE", "3"}};

}  // namespace

TEST_CASE("without a launcher the world has one rank") {
  const Environment e = read({});
  check_ranks(e, 0, 1, 0, 1);
  CHECK(e.launcher == "none");
  CHECK(e.master_port == 0);
  CHECK(e.secret == "");
  CHECK(e.restart == 0);
  CHECK(e.max_restarts == 0);
  CHECK_FALSE(e.store_is_running);
  CHECK(read({{"RANK", ""}, {"WORLD_SIZE", ""}}).launcher == "none");  // an empty variable counts as not set
}

TEST_CASE("torchrun's variables are read") {
  const Environment e = read(kTorchrun);
  check_ranks(e, 3, 4, 1, 2);
  CHECK(e.launcher == "torchrun");
  CHECK(e.master_addr == "node0.cluster");
  CHECK(e.master_port == 29501);  // torchrun's agent listens at 29500, so the next port is used
  CHECK(e.restart == 2);
  CHECK(e.max_restarts == 3);
  CHECK_FALSE(e.store_is_running);
  CHECK(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port == 29500);
  CHECK(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).master_port == 29500);
  CHECK(read(with(kTorchrun, {{"TAPESTRY_PORT", "31000"}})).master_port == 31000);
  CHECK_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "65535"}})),
             ContainsSubstring("65535") && ContainsSubstring("TAPESTRY_PORT"));
  CHECK(read(with(kTorchrun, {{"MASTER_PORT", "65535"}, {"TAPESTRY_PORT", "9"}})).master_port == 9);
}

TEST_CASE("tapestry-run's variables are read") {
  const Environment e = read(kOurs);
  check_ranks(e, 1, 2, 1, 2);
  CHECK(e.launcher == "tapestry-run");
  CHECK(e.store_is_running);
  CHECK(e.secret == "s3cret");
  CHECK(e.restart == 5);
  CHECK(e.max_restarts == 6);
  CHECK(e.master_port == 41234);
  // The launcher runs the store, so the two variables that choose the port of a store on rank 0 must be
  // ignored.
  CHECK(read(with(kOurs, {{"TAPESTRY_PORT", "31000"}})).master_port == 41234);
  CHECK(read(with(kOurs, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).master_port == 41234);
  CHECK_FALSE(read(with(kOurs, {{"TAPESTRY_STORE_RUNNING", "0"}})).store_is_running);
  CHECK_THAT(error_of(with(kOurs, {{"TAPESTRY_STORE_RUNNING", "yes"}})),
             ContainsSubstring("TAPESTRY_STORE_RUNNING is \"yes\""));
  CHECK_THAT(error_of(with(kOurs, {{"MASTER_PORT", ""}})), ContainsSubstring("MASTER_PORT is not set"));
  CHECK_THAT(error_of(with(kOurs, {{"MASTER_ADDR", ""}})), ContainsSubstring("MASTER_ADDR is not set"));
}

TEST_CASE("variables set by hand are completed") {
  const Variables two = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  // If only RANK and WORLD_SIZE are set, both ranks must be on this host, and the port must be 0, which means
  // that it is missing.
  Environment e = read(two);
  check_ranks(e, 1, 2, 1, 2);
  CHECK(e.launcher == "variables");
  CHECK(e.master_addr == "127.0.0.1");
  CHECK(e.master_port == 0);
  for (const char* here : {"localhost", "127.0.0.1", "127.8.8.8", "::1"})
    check_ranks(read(with(two, {{"MASTER_ADDR", here}})), 1, 2, 1, 2);
  // If the address is that of another host, each host must have one rank, as in Kubernetes.
  e = read(with(two, {{"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}}));
  check_ranks(e, 1, 2, 0, 1);
  CHECK(e.master_addr == "job-master-0");
  CHECK(e.master_port == 23456);
  CHECK(read(with(two, {{"MASTER_PORT", "23456"}, {"TAPESTRY_PORT", "31000"}})).master_port == 31000);
  check_ranks(read(with(two, {{"MASTER_ADDR", "h"}, {"LOCAL_WORLD_SIZE", "2"}})), 1, 2, 1, 2);
  check_ranks(read(with(two, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}})), 1, 2, 0, 1);
  // If there are several hosts and no address, master_addr must be empty.
  CHECK(read(with(two, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}})).master_addr == "");
  CHECK_THAT(error_of(with(two, {{"MASTER_ADDR", "h"}, {"LOCAL_RANK", "0"}})),
             ContainsSubstring("LOCAL_WORLD_SIZE is not set"));
  CHECK_THAT(error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}),
             ContainsSubstring("LOCAL_RANK is not set"));
}

TEST_CASE("Open MPI's variables are read") {
  Environment e = read(kOpenMpi);
  check_ranks(e, 1, 2, 1, 2);
  CHECK(e.launcher == "mpirun");
  CHECK(e.master_addr == "127.0.0.1");
  const int port = e.master_port;
  CHECK(port >= 20000);
  CHECK(port < 29000);
  // All ranks of a job must compute the same port from PMIX_NAMESPACE, or from the older
  // OMPI_MCA_ess_base_jobid if the former is not set. Another job must get another port.
  CHECK(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
            .master_port == port);
  CHECK(read(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}})).master_port == port);
  CHECK(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "1700069377"}})).master_port != port);
  CHECK(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-812@1"}})).master_port >= 20000);
  CHECK(read(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", ""}})).master_port == 0);
  CHECK(read(with(kOpenMpi, {{"TAPESTRY_PORT", "31000"}})).master_port == 31000);
  CHECK(read(with(kOpenMpi, {{"MASTER_PORT", "31001"}})).master_port == 31001);
  // If there are two hosts, the address of rank 0 must be given.
  const Variables hosts =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  CHECK(read(hosts).master_addr == "");
  CHECK(read(with(hosts, {{"MASTER_ADDR", "node0"}})).master_addr == "node0");
  CHECK_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", ""}})),
             ContainsSubstring("OMPI_COMM_WORLD_SIZE is not set"));
}

TEST_CASE("Slurm's variables are read") {
  Environment e = read(kSrun);
  check_ranks(e, 6, 7, 0, 1);
  CHECK(e.launcher == "srun");
  CHECK(e.master_addr == "node0");
  CHECK(e.master_port >= 20000);
  CHECK(e.master_port < 29000);
  check_ranks(read(with(kSrun, {{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"}})), 3, 7,
              1, 2);
  CHECK(read(with(kSrun, {{"SLURM_STEP_ID", "1"}})).master_port != e.master_port);
  CHECK(read(with(kSrun, {{"SLURM_JOB_ID", ""}})).master_port == 0);
  CHECK(read(with(kSrun, {{"MASTER_ADDR", ""}})).master_addr == "");

  e = read(kSrunOneHost);
  check_ranks(e, 2, 3, 2, 3);
  CHECK(e.master_addr == "127.0.0.1");
  check_ranks(read(with(kSrunOneHost, {{"SLURM_STEP_ID", ""}, {"SLURM_STEPID", "1"}})), 2, 3, 2, 3);

  // The step has fewer tasks than the job, so the variables that count the job's tasks must not be used.
  const Variables small =
      with(kSrunOneHost, {{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_TASKS_PER_NODE", "8(x2)"}});
  check_ranks(read(with(small, {{"SLURM_NTASKS_PER_NODE", "3"}})), 2, 3, 2, 3);
  CHECK_THAT(error_of(small), ContainsSubstring("--ntasks-per-node"));

  for (const char* bad : {"2(x3),", ",2", "2(x", "2(x)", "(x2)", "2(x-1)", "0", "-1", "a", "2 ,1",
                          "2(x999999999)", "999999999", "2(x3)(x2)"}) {
    INFO(bad);
    CHECK_THAT(error_of(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", bad}})),
               ContainsSubstring("SLURM_STEP_TASKS_PER_NODE is \"" + std::string(bad) + "\""));
  }
}

TEST_CASE("a Slurm script or shell outside of srun is a world of one rank") {
  // sbatch sets these variables for the script itself. They must not make the script a rank.
  const Variables batch = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_NTASKS_PER_NODE", "4"},
                           {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  CHECK(read(batch).launcher == "none");
  check_ranks(read(batch), 0, 1, 0, 1);
  // Some versions of Slurm set these reserved step numbers for the batch step and the interactive step. They
  // do not come from srun and must be ignored.
  for (const char* step : {"4294967291", "4294967290", "batch", "interactive"})
    CHECK(read(with(batch, {{"SLURM_STEP_ID", step}})).launcher == "none");
  // The shell of salloc has no SLURM_PROCID. It must also be a world of one rank.
  CHECK(read(with(batch, {{"SLURM_PROCID", ""}, {"SLURM_STEP_ID", "0"}})).launcher == "none");
  // If tapestry-run is started in a batch script, its variables must be used.
  check_ranks(read(with(batch, kOurs)), 1, 2, 1, 2);
}

TEST_CASE("of several launchers the innermost one counts") {
  CHECK(read(with(with(kSrun, kOpenMpi), kTorchrun)).launcher == "torchrun");
  check_ranks(read(with(with(kSrun, kOpenMpi), kTorchrun)), 3, 4, 1, 2);
  CHECK(read(with(kSrun, kOpenMpi)).launcher == "mpirun");
  check_ranks(read(with(kSrun, kOpenMpi)), 1, 2, 1, 2);
  CHECK(read(with(kTorchrun, kOurs)).launcher == "tapestry-run");
}

TEST_CASE("contradictory and malformed variables are errors that name the variable and its value") {
  struct Case {
    Variables changes;
    const char* says;
  };
  const Case cases[] = {
      {{{"WORLD_SIZE", ""}}, "WORLD_SIZE is not set"},
      {{{"RANK", ""}}, "RANK is not set"},
      {{{"RANK", "4"}}, "rank 4 of world size 4"},
      {{{"RANK", "-1"}}, "RANK is \"-1\""},
      {{{"RANK", "3x"}}, "RANK is \"3x\""},
      {{{"RANK", "3.0"}}, "RANK is \"3.0\""},
      {{{"RANK", " 3"}}, "RANK is \" 3\""},
      {{{"RANK", "+3"}}, "RANK is \"+3\""},
      {{{"RANK", "99999999999999999999"}}, "RANK is \"99999999999999999999\""},
      {{{"WORLD_SIZE", "0"}}, "WORLD_SIZE is \"0\""},
      {{{"WORLD_SIZE", "99999999"}}, "WORLD_SIZE is \"99999999\""},
      {{{"LOCAL_RANK", "2"}}, "local rank 2 of local world size 2"},
      {{{"LOCAL_RANK", "one"}}, "LOCAL_RANK is \"one\""},
      {{{"LOCAL_WORLD_SIZE", "5"}}, "local world size 5 of world size 4"},
      {{{"MASTER_PORT", "0"}}, "MASTER_PORT is \"0\""},
      {{{"MASTER_PORT", "65536"}}, "MASTER_PORT is \"65536\""},
      {{{"MASTER_PORT", "tcp://10.0.0.1:6379"}}, "MASTER_PORT is \"tcp"},
      {{{"TAPESTRY_PORT", "http"}}, "TAPESTRY_PORT is \"http\""},
      {{{"TORCHELASTIC_RESTART_COUNT", "many"}}, "TORCHELASTIC_RESTART_COUNT is \"many\""},
      {{{"TAPESTRY_RESTART", "-1"}}, "TAPESTRY_RESTART is \"-1\""},
      {{{"TAPESTRY_MAX_RESTARTS", "-1"}}, "TAPESTRY_MAX_RESTARTS is \"-1\""},
  };
  for (const Case& c : cases) {
    const std::string message = error_of(with(kTorchrun, c.changes));
    CHECK_THAT(message, ContainsSubstring(c.says));
    CHECK_THAT(message,
               ContainsSubstring("[environment]") && (ContainsSubstring(";") || ContainsSubstring(":")));
  }
  CHECK_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}})),
             ContainsSubstring("rank 2 of world size 2 (from mpirun)"));
  CHECK_THAT(error_of(with(kSrun, {{"SLURM_PROCID", "x"}})), ContainsSubstring("SLURM_PROCID is \"x\""));
}

TEST_CASE("TAPESTRY_TIMEOUT_S sets the default timeout") {
  const auto milliseconds = [](const std::string& text) {
    const JobVariables set({{"TAPESTRY_TIMEOUT_S", text}});
    return default_timeout().count();
  };
  CHECK(milliseconds("") == 300'000);
  CHECK(milliseconds("5") == 5000);
  CHECK(milliseconds("0.25") == 250);
  CHECK(milliseconds("10000000") == 10'000'000'000);
  for (const char* bad : {"0", "-5", "5s", "five", "nan", "inf", "1e300", " 5", "0.0001", "20000000"}) {
    INFO(bad);
    CHECK_THROWS_WITH(milliseconds(bad),
                      ContainsSubstring("TAPESTRY_TIMEOUT_S is \"" + std::string(bad) + "\""));
  }
}

TEST_CASE("ranks end with their launcher unless TAPESTRY_END_WITH_LAUNCHER is 0") {
  const auto read = [](const char* value) {
    const JobVariables set(Variables{{"TAPESTRY_END_WITH_LAUNCHER", value}});
    return ends_with_launcher();
  };
  CHECK(read(""));
  CHECK(read("1"));
  CHECK_FALSE(read("0"));
  CHECK_THROWS_WITH(read("yes"),
                    ContainsSubstring("TAPESTRY_END_WITH_LAUNCHER is \"yes\"; set it to 0 or 1"));
}
