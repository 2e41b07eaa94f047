#pragma once
// A training job into which tests inject faults. It trains a small model with dropout and batch norm under
// DDP, saves a checkpoint after every second step, and resumes from the latest one. Each rank is a process
// that runs this test program. tapestry-run or RankProcesses starts the ranks.
#include <filesystem>
#include <string>
#include <vector>

namespace tests {

/// The name of the hidden test case that a rank runs. On failure it prints "told after <s> s: <error>" with
/// the time since the start of the step. It reads these variables:
///  - DIR: a folder of the job. It contains checkpoints/, and at the end the trained weights as
///  weights.<rank>.
///  - JOB_STEPS: the number of steps.
///  - JOB_FAULTS: one fault per start of the job. "KILL forward 3 1; STOP backward 5 0" kills rank 1 in step
///  3 of the first start, and stops rank 0 in step 5 of the second start. KILL and STOP can happen within
///  "start" (before the rank joins the job), "forward", "backward" and "reduce" (during an all_reduce). KILL
///  can also happen within "save" (rank 0 has written half of the file). Other faults are bugs of a program:
///  "SKIP backward" leaves out a step; "CALL barrier", "CALL shape" and "CALL dtype" make a call that differs
///  from the other ranks' calls.
///  - JOB_SECRET_OF_1: rank 1's TAPESTRY_SECRET, if it differs from the other ranks'.
///  - JOB_STORE: tcp://host:port if there is no launcher. RankProcesses then sets rank and world size.
inline const std::string kTrainingRank = "a rank of a job that trains";

/// One entry of JOB_FAULTS.
struct Fault {
  std::string what, where;
  int step = 0, rank = 0;
};
std::string to_text(const std::vector<Fault>& faults);

/// Checks that every checkpoint in DIR/checkpoints is complete and loads, and that the folder contains
/// nothing else after the job was restarted. Throws otherwise. Returns the steps of the checkpoints.
std::vector<std::int64_t> check_checkpoints(const std::filesystem::path& dir);

/// Returns the weights, as bytes, that each rank of a job without faults writes at the end on this machine.
const std::vector<std::string>& undisturbed_weights(int ranks, int steps);

}  // namespace tests
