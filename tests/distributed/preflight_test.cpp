#include "tapestry/distributed/comm/internal/preflight.h"

#include <thread>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed;

namespace {

/// Returns the reports of `size` ranks on one machine without problems. Each rank sees `gpus` GPUs.
std::vector<RankReport> machine(int size, int gpus = 0) {
  std::vector<RankReport> ranks;
  for (int rank = 0; rank < size; ++rank) {
    RankReport r{.rank = rank,
                 .world_size = size,
                 .local_rank = rank,
                 .local_world_size = size,
                 .host = "h",
                 .machine = "m",
                 .backend = gpus > 0 ? "nccl" : "gloo",
                 .version = "0.1.0",
                 .visible_gpus = gpus,
                 .shm_bytes = std::int64_t{1} << 30,
                 .cores = 8,
                 .threads = 2};
    ranks.push_back(r);
  }
  return ranks;
}

/// Checks that exactly one finding is a failure, or a warning if `failure` is false, and that it contains all
/// of `texts`.
void finds(const std::vector<RankReport>& ranks, bool failure, const std::vector<std::string>& texts) {
  const auto findings = preflight(ranks);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].failure == failure);
  for (const std::string& text : texts) CHECK_THAT(findings[0].text, ContainsSubstring(text));
}

}  // namespace

TEST_CASE("a healthy job has no findings") {
  CHECK(preflight({}).empty());
  CHECK(preflight(machine(1)).empty());
  CHECK(preflight(machine(4)).empty());
  CHECK(preflight(machine(4, 4)).empty());
  CHECK(preflight(machine(3, 8)).empty());
  auto two = machine(4, 2);  // two machines whose containers have the same host name
  for (int i = 2; i < 4; ++i) {
    two[i].machine = "other";
    two[i].local_rank -= 2;
  }
  CHECK(preflight(two).empty());
}

TEST_CASE("contradictory ranks and world sizes are failures") {
  auto ranks = machine(3);
  ranks[2].rank = 0;
  finds(ranks, true, {"two processes have rank 0"});
  ranks = machine(3);
  ranks[1].world_size = 2;
  finds(ranks, true, {"rank 1 has WORLD_SIZE 2, rank 0 has 3"});
  ranks = machine(3);
  ranks[2].local_rank = 1;
  finds(ranks, true, {"ranks 1 and 2 both have local rank 1 on h"});
  auto two_nodes = machine(4);  // simulates two nodes on one machine
  for (RankReport& r : two_nodes) r.local_world_size = 2;
  two_nodes[2].local_rank = 0;
  two_nodes[3].local_rank = 1;
  CHECK(preflight(two_nodes).empty());
  ranks = machine(2);
  ranks[1].version = "0.2.0";
  finds(ranks, true, {"runs tapestry 0.2.0, rank 0 0.1.0"});
  ranks = machine(2);
  ranks[1].backend = "mpi";
  finds(ranks, true, {"uses the backend mpi, rank 0 gloo"});
}

TEST_CASE("NCCL of different versions is a failure") {
  auto ranks = machine(3, 3);
  for (RankReport& r : ranks) r.nccl = "2.28.9";
  CHECK(preflight(ranks).empty());
  ranks[2].nccl = "2.27.3";
  finds(ranks, true, {"rank 2 on h has NCCL 2.27.3, rank 0 2.28.9", "install one on all hosts"});
  ranks[2].nccl.clear();  // NCCL's own error will say that it was not found
  CHECK(preflight(ranks).empty());
}

TEST_CASE("ranks in two containers of one machine are warned that NCCL uses the network") {
  for (const bool nccl : {false, true}) {
    auto by_name = machine(4, nccl ? 4 : 0), by_files = by_name;
    for (int i = 2; i < 4; ++i) {
      by_name[i].host = "other";
      by_files[i].shm_device = 7;
      by_name[i].local_rank -= 2;
    }
    for (RankReport& r : by_name) r.cuda_visible_devices = std::to_string(r.rank), r.visible_gpus = nccl;
    for (const auto& ranks : {by_name, by_files}) {
      if (nccl)
        finds(ranks, false, {"ranks 0 and 2 are in two containers of one machine (h and ", "--ipc=host"});
      else CHECK(preflight(ranks).empty());
    }
    for (RankReport& r : by_name)
      if (r.rank > 1) r.machine = "n";  // two machines
    CHECK(preflight(by_name).empty());
  }
}

TEST_CASE("a local rank without a GPU is a failure for nccl, a warning for gloo") {
  finds(machine(3, 2), true,
        {"rank 2 has local rank 2", "2 GPUs", "CUDA_VISIBLE_DEVICES is not set", "no cuda:2"});
  auto ranks = machine(3, 2);
  for (RankReport& r : ranks) r.cuda_visible_devices = "4,5";
  finds(ranks, true, {"CUDA_VISIBLE_DEVICES=4,5"});
  for (RankReport& r : ranks) r.backend = "gloo";  // gloo needs no GPU
  finds(ranks, false, {"rank 2"});
}

TEST_CASE("several ranks on one GPU are a failure for nccl, a warning for gloo") {
  auto ranks = machine(2, 1);
  finds(ranks, true, {"ranks 0 and 1 on h use the same GPU 0", "NCCL does not support"});
  for (RankReport& r : ranks) r.backend = "gloo";
  finds(ranks, false, {"share its time"});
  // If each rank sees only its own GPU, as in some batch systems, there must be no finding.
  ranks = machine(2, 1);
  ranks[0].cuda_visible_devices = "0";
  ranks[1].cuda_visible_devices = "1";
  CHECK(preflight(ranks).empty());
  ranks[1].cuda_visible_devices = "0";
  finds(ranks, true, {"same GPU 0"});
  // The same GPU number on another machine is another GPU, so there must be no finding.
  ranks[1].machine = "other";
  ranks[1].local_rank = 0;
  CHECK(preflight(ranks).empty());
  // Local rank 0 uses the first GPU of the list 3,2 and local rank 1 the second GPU of the list 2,3. Both are
  // GPU 3, which must be a failure.
  ranks = machine(2, 2);
  ranks[0].cuda_visible_devices = "3,2";
  ranks[1].cuda_visible_devices = "2,3";
  finds(ranks, true, {"same GPU 3"});
}

TEST_CASE("nccl without a visible GPU is a failure") {
  auto ranks = machine(1, 1);
  ranks[0].visible_gpus = 0;
  finds(ranks, true, {"rank 0 on h sees no GPU", "--gpus all"});
  ranks[0].cuda_visible_devices = "0,1";
  finds(ranks, true, {"though CUDA_VISIBLE_DEVICES=0,1"});
  ranks[0].cuda_visible_devices = "0,1,0";
  finds(ranks, true, {"names 0 twice"});
  ranks[0].cuda_visible_devices = "0,1";
  ranks[0].backend = "gloo";
  CHECK(preflight(ranks).empty());
}

TEST_CASE("a small /dev/shm is reported with Docker's option") {
  for (const std::int64_t size : {std::int64_t{64} << 20, std::int64_t{0}}) {
    for (const bool nccl : {false, true}) {
      auto ranks = machine(2, nccl ? 2 : 0);
      for (RankReport& r : ranks) r.shm_bytes = size;
      finds(ranks, nccl, {size > 0 ? "only 64 MB" : "no /dev/shm", "--shm-size=1g", "--ipc=host"});
    }
  }
  auto alone = machine(1);
  alone[0].shm_bytes = 0;
  CHECK(preflight(alone).empty());  // one rank shares memory with nobody
}

TEST_CASE("a host name without an address and too many threads are warnings") {
  auto ranks = machine(2);
  for (RankReport& r : ranks) r.host_resolves = false;
  finds(ranks, false, {"the host name h has no address", "/etc/hosts"});

  ranks = machine(4);
  for (RankReport& r : ranks) r.threads = 8;
  finds(ranks, false, {"4 ranks on h compute with 32 threads on 8 cores", "OMP_NUM_THREADS=2"});
  finds(machine(9), false, {"18 threads on 8 cores", "start fewer"});
}

TEST_CASE("reports are converted to text and back") {
  RankReport r = machine(2, 3)[1];
  r.host = "odd = name\nwith a line";
  r.nccl = "2.28.9";
  r.shm_device = 7;
  CHECK_FALSE(rank_report_from(to_text(r)).cuda_visible_devices);
  for (const char* devices : {"", "0,1", "GPU-1=2"}) {
    r.cuda_visible_devices = devices;
    CHECK(rank_report_from(to_text(r)).cuda_visible_devices == devices);
  }
  r.host_resolves = false;
  const RankReport back = rank_report_from(to_text(r));
  CHECK(back.host == "odd = name with a line");
  CHECK(to_text(back) == to_text(rank_report_from(to_text(back))));
  CHECK_FALSE(back.host_resolves);
  CHECK(back.rank == 1);
  CHECK(back.world_size == 2);
  CHECK(back.local_rank == 1);
  CHECK(back.local_world_size == 2);
  CHECK(back.machine == "m");
  CHECK(back.backend == "nccl");
  CHECK(back.version == "0.1.0");
  CHECK(back.visible_gpus == 3);
  CHECK(back.nccl == "2.28.9");
  CHECK(back.shm_bytes == std::int64_t{1} << 30);
  CHECK(back.shm_device == 7);
  CHECK(back.cores == 8);
  CHECK(back.threads == 2);
  CHECK(rank_report_from("new_field=1\nrank=3\n").rank ==
        3);  // unknown fields of a later version are ignored
  CHECK_THROWS_WITH(rank_report_from("garbage"), ContainsSubstring("not a line of a rank's report"));
  CHECK_THROWS_WITH(rank_report_from("rank=3x\n"), ContainsSubstring("'3x' instead of a number"));
}

TEST_CASE("inspect_rank() reports this machine") {
  Environment e;
  e.rank = 1;
  e.world_size = 3;
  const RankReport r = inspect_rank(e, "gloo");
  CHECK(r.rank == 1);
  CHECK(r.world_size == 3);
  CHECK_FALSE(r.host.empty());
  CHECK_FALSE(r.machine.empty());
  CHECK(r.cores >= 1);
  CHECK(r.threads >= 1);
}

TEST_CASE("failures reach all ranks, and without failures all continue") {
  for (const bool healthy : {true, false}) {
    const auto store = memory_store();
    auto ranks = machine(3, 3);
    if (!healthy) ranks[2].local_rank = 1;
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        try {
          preflight(*store, ranks[i], Milliseconds(20'000));
        } catch (const DistributedError& e) {
          errors[i] = e.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) {
      if (healthy) CHECK(error.empty());
      else CHECK_THAT(error, ContainsSubstring("both have local rank 1"));
    }
  }
}

TEST_CASE("a rank without a report is named") {
  const auto store = memory_store();
  const auto ranks = machine(2);
  CHECK_THROWS_AS(preflight(*store, ranks[0], Milliseconds(50)), TimeoutError);
  CHECK_THROWS_WITH(preflight(*store, ranks[0], Milliseconds(50)), ContainsSubstring("preflight/1"));
}
