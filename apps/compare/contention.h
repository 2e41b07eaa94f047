#pragma once
// Measures what devices take from each other, where they are cores of one CPU and share its memory: parts of
// a step alone and all at once, in turn, so that both see the same machine.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/apps/compare/buckets.h"
#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/watched_model.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

using Models = std::vector<std::unique_ptr<WatchedModel>>;

/// Steps with n samples of the first model, and of all of them by their devices' workers; the slowest is
/// waited for after each part of a step.
Contention measure_contention(const Models& models, std::int64_t n, int passes);

/// The same where the first device is the master: in steps of all, `send` is called before forward, `add`
/// after backward, and the first one updates alone.
Contention measure_contention(const Models& models, std::int64_t n, int passes,
                              const std::function<void()>& send, const std::function<void()>& add);

/// The same of the ranks of a group, whose gradients go to buckets. Collective, each rank with the model on
/// its device; the first rank's result counts.
Contention measure_contention(tapestry::distributed::ProcessGroup& group, WatchedModel& model,
                              Buckets& buckets, std::int64_t n, int passes);

/// Of each part of a split model on its own device: passes with a micro-batch of n samples alone, and while
/// every other part is at work with its own. `split` has as many parts as there are models.
std::vector<PartContention> measure_part_contention(const Models& models, const std::vector<int>& split,
                                                    std::int64_t n, int passes);

/// The same with backward passes in two halves, as zero bubble does them, and what those take alone.
std::vector<PartInHalves> measure_parts_in_halves(const Models& models, const std::vector<int>& split,
                                                  std::int64_t n, int passes);

}  // namespace apps::compare
