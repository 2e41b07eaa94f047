#pragma once
// One choice of kernels for all ranks of a job (core/kernel_policy.h).
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Collective. All ranks take over rank 0's choices of the policy `auto`. From now on rank 0 alone measures
/// new shapes, and every rank computes them by own kernels until the next call. So all ranks always compute a
/// shape by the same implementation, and what they compute redundantly stays equal bit for bit.
///
/// DistributedDataParallel and fully_shard() on GPUs call it when they take a model, and after 1, 2, 4, 8, ...
/// backward passes that reduce gradients. Ranks that are threads of one process share their choices anyway; if all are, nothing happens.
void share_kernel_choices(ProcessGroup& group);

}  // namespace tapestry::distributed
