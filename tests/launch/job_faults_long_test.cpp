// Kills a job a hundred times, in every phase of a step.
#include "tests/launch/job.h"
#include "tests/launch/training.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using tests::Fault;
using tests::Job;

TEST_CASE("a job killed and restarted a hundred times ends with the bits of an undisturbed job") {
  if (!distributed_test::has_gloo()) return;
  constexpr int kCycles = 100;
  // The job saves after every second step, so each start gets two steps further than the one before.
  std::vector<Fault> faults;
  for (int i = 0; i < kCycles; ++i) {
    const int rank = i / 4 % 2, step = 2 * i + 2;
    switch (i % 4) {
      case 0:
        faults.push_back({"KILL", "forward", step, rank});
        break;
      case 1:
        faults.push_back({"KILL", "backward", step + 1, rank});
        break;
      case 2:
        faults.push_back({"KILL", "reduce", step, rank});
        break;
      case 3:  // rank 0 is killed while it writes the checkpoint of this step
        faults.push_back({"KILL", "save", step, 0});
        break;
    }
  }
  // In two of the starts, a rank is stopped (SIGSTOP) and not killed. The other rank's timeout must end this
  // attempt.
  faults[16].what = faults[61].what = "STOP";
  constexpr int kSteps = 2 * kCycles + 5;
  const std::string restarts = std::to_string(kCycles);
  Job job({"--nproc-per-node=2", "--max-restarts", restarts, tests::own_path(), tests::kTrainingRank},
          {"JOB_STEPS=" + std::to_string(kSteps), "JOB_FAULTS=" + to_text(faults), "OMP_NUM_THREADS=1",
           "TAPESTRY_TIMEOUT_S=4"});
  const int status = job.wait(280);
  INFO(job.err());
  REQUIRE(status == 0);
  CHECK_THAT(job.err(), ContainsSubstring("restart " + restarts + " of " + restarts));
  CHECK(job.all_gone());
  const auto& weights = tests::undisturbed_weights(2, kSteps);
  for (int rank = 0; rank < 2; ++rank)
    CHECK((job.file("weights." + std::to_string(rank)) == weights[static_cast<std::size_t>(rank)]));
  tests::check_checkpoints(job.path(""));
}
