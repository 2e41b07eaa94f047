#pragma once
// A process group without peers, as PyTorch's "fake" backend: it runs the program of one rank of many in one
// process, for checks that need shapes and not values (distributed/placement/check.h).
#include <memory>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Rank `rank` of `size`. No data moves: every other rank is taken to pass what this rank passes. So
/// all_reduce() leaves the tensor as it is, all_gather() repeats the input, all_to_all() returns the parts in
/// their places, and recv() returns what this rank has sent with the same tag. So all messages that are sent
/// with a tag must have one receiver, and all that are received with it one sender: a second one is a
/// DistributedError. Sub-groups are fake too, and a Mesh may be made over them. Throws ValueError unless
/// 0 <= rank < size.
std::shared_ptr<ProcessGroup> fake_process_group(int rank, int size, const GroupOptions& options = {});

/// Backend::name() of such a group. No other backend has it.
inline constexpr const char* kFakeBackend = "no peers";

}  // namespace tapestry::distributed
