#pragma once
// Measures what a Profile holds.
#include <cstdint>
#include <vector>

#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

struct ProfileOptions {
  int warmup = 2;
  int passes = 7;  ///< with the whole batch, of which the medians count; with fewer samples more of them
};

/// The numbers of samples that a device sees at once in the modes: the whole batch, a device's share of it, a
/// micro-batch; and a share of each further number of devices. Rising, each once.
std::vector<std::int64_t> profile_sizes(const Workload& workload,
                                        const std::vector<int>& further_devices = {});

/// The workload's model, block after block, on the first of its devices alone, on that device's worker: so
/// with its share of the threads. Then, where there are several devices, a device's share of the batch on all
/// of them at once, for what they take from each other.
Profile measure_profile(const Workload& workload, const std::vector<std::int64_t>& sizes,
                        const ProfileOptions& options = {});

}  // namespace apps::compare
