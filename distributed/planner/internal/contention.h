#pragma once
// Measures contention between devices, such as cores of one CPU that share its memory bandwidth. Each phase
// is timed on one device alone and on all devices at once, in turn, so that both see the same state of the
// machine.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/planner/internal/buckets.h"
#include "tapestry/distributed/planner/internal/profiled_model.h"

namespace tapestry::distributed::planner {

/// One model per device.
using Models = std::vector<std::unique_ptr<ProfiledModel>>;

/// Compares steps with n samples on the first device with the same steps on all devices at once. The slowest
/// device counts.
Contention measure_contention(const Models& models, std::int64_t n, int passes);

/// Measures contention under DataParallelMode::master. In steps on all devices, `send` copies the first device's
/// parameters to the others before forward, `add` sums the gradients on the first device after backward, and
/// only the first device runs the optimizer. Steps on the first device alone call neither `send` nor `add`.
/// The results do not include the time of `send` and `add`.
Contention measure_contention(const Models& models, std::int64_t n, int passes,
                              const std::function<void()>& send, const std::function<void()>& add);

/// The contention between the ranks of a group in steps that copy gradients into buckets. Collective: every
/// rank passes its own model. Only the result on rank 0 is meaningful.
Contention measure_contention(ProcessGroup& group, ProfiledModel& model, Buckets& buckets, std::int64_t n,
                              int passes);

/// The contention of each stage of a split model: passes with a micro-batch of n samples, alone and while
/// every other stage computes. `split` has one entry per model.
std::vector<StageContention> measure_stage_contention(const Models& models, const std::vector<int>& split,
                                                      std::int64_t n, int passes);

/// Like measure_stage_contention(), but for zero-bubble schedules, in which backward is split in two passes.
/// The result also has the times of these passes without contention.
std::vector<ZeroBubbleStage> measure_zero_bubble_stages(const Models& models, const std::vector<int>& split,
                                                        std::int64_t n, int passes);

}  // namespace tapestry::distributed::planner
