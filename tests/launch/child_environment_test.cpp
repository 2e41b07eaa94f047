#include "tapestry/distributed/launch/internal/child_environment.h"

#include "tests/support/catch.h"

using namespace tapestry::distributed::launch;

TEST_CASE("child_environment sets the variables that identify a rank") {
  const Job job{.nnodes = 3,
                .node_rank = 2,
                .nproc_per_node = 2,
                .master_addr = "host0",
                .master_port = 1234,
                .secret = "s3cret",
                .cores = 9,
                .max_restarts = 6};
  const Variables v = child_environment({{"HOME", "/home/me"}, {"RANK", "77"}}, job, 1, 4);
  CHECK(v.at("HOME") == "/home/me");
  CHECK(v.at("RANK") == "5");
  CHECK(v.at("LOCAL_RANK") == "1");
  CHECK(v.at("WORLD_SIZE") == "6");
  CHECK(v.at("LOCAL_WORLD_SIZE") == "2");
  CHECK(v.at("NODE_RANK") == "2");
  CHECK(v.at("GROUP_RANK") == "2");
  CHECK(v.at("MASTER_ADDR") == "host0");
  CHECK(v.at("MASTER_PORT") == "1234");
  CHECK(v.at("TAPESTRY_LAUNCHER") == "tapestry-run");
  CHECK(v.at("TAPESTRY_STORE_RUNNING") == "1");
  CHECK(v.at("TAPESTRY_SECRET") == "s3cret");
  CHECK(v.at("TAPESTRY_RESTART") == "4");
  CHECK(v.at("TAPESTRY_MAX_RESTARTS") == "6");
  CHECK(v.at("OMP_NUM_THREADS") == "4");  // 9 cores for 2 ranks
}

TEST_CASE("OMP_NUM_THREADS is the rank's share of the cores unless the user sets it") {
  const auto threads = [](int cores, int ranks, const Variables& base) {
    return child_environment(base, {.nproc_per_node = ranks, .cores = cores}, 0, 0).at("OMP_NUM_THREADS");
  };
  CHECK(threads(8, 1, {}) == "8");
  CHECK(threads(8, 3, {}) == "2");
  CHECK(threads(2, 5, {}) == "1");
  CHECK(threads(8, 1, {{"OMP_NUM_THREADS", "3"}}) == "3");
  CHECK(threads(8, 1, {{"OMP_NUM_THREADS", " 2,1"}}) == " 2,1");
  CHECK(threads(8, 2, {{"OMP_NUM_THREADS", ""}}) == "4");
  for (const std::string bad : {"0", "-3", "abc", "2x"})
    CHECK_THROWS_WITH(threads(8, 1, {{"OMP_NUM_THREADS", bad}}),
                      ContainsSubstring("OMP_NUM_THREADS is \"" + bad + "\""));
}

TEST_CASE("variables of an outer launcher are removed") {
  const Variables v = child_environment({{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                         {"TORCHELASTIC_RESTART_COUNT", "5"},
                                         {"PET_NNODES", "2"},
                                         {"TAPESTRY_PORT", "9"},
                                         {"TAPESTRY_TIMEOUT_S", "5"}},
                                        {}, 0, 0);
  CHECK(v.count("TORCHELASTIC_USE_AGENT_STORE") == 0);
  CHECK(v.count("TORCHELASTIC_RESTART_COUNT") == 0);
  CHECK(v.count("PET_NNODES") == 0);
  CHECK(v.count("TAPESTRY_PORT") == 0);
  CHECK(v.at("TAPESTRY_TIMEOUT_S") == "5");
}
