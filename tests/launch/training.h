#pragma once
// A job that trains, and comes to harm when told to: a small model under DDP with dropout and batch norm, a
// checkpoint after every second step, resumed from where the last one was written. This program again, one
// process a rank, started by tapestry-run or by RankProcesses.
#include <filesystem>
#include <string>
#include <vector>

namespace tests {

/// The hidden test case that a rank runs. It prints "told after <s> s: <error>" when it fails, where the time
/// is counted from the start of the step. Its variables:
/// - DIR: a folder of the job's. checkpoints/ is in it, and what was trained ends there as weights.<rank>.
/// - JOB_STEPS: how many.
/// - JOB_FAULTS: "KILL forward 3 1; STOP backward 5 0": when first started rank 1 is killed in step 3, when
///   started again rank 0 is stopped in step 5. KILL and STOP come within "start" (before the job is joined),
///   "forward", "backward" or "reduce" (an all_reduce that waits for others), KILL within "save" too (half of
///   the file is written, by rank 0). Others are faults of a program: "SKIP backward" leaves a step out,
///   "CALL barrier", "CALL shape" and "CALL dtype" call what other ranks do not.
/// - JOB_SECRET_OF_1: rank 1's TAPESTRY_SECRET, if it has one of its own.
/// - JOB_STORE: tcp://host:port if there is no launcher; rank and size are then those of RankProcesses.
inline const std::string kTrainingRank = "a rank of a job that trains";

/// Of JOB_FAULTS.
struct Fault {
  std::string what, where;
  int step = 0, rank = 0;
};
std::string to_text(const std::vector<Fault>& faults);

/// Every checkpoint in DIR/checkpoints is whole and loads; nothing else is in it once a job has begun anew.
/// Throws otherwise, and returns the steps.
std::vector<std::int64_t> check_checkpoints(const std::filesystem::path& dir);

/// The bytes that each rank wrote at the end of an undisturbed job of `ranks` on this machine.
const std::vector<std::string>& undisturbed_weights(int ranks, int steps);

}  // namespace tests
