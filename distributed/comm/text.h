#pragma once
// Collectives of text: for what is small, rare and of a different length on each rank.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Every rank's text, by rank, on all ranks. `name` goes into the record.
std::vector<std::string> all_gather_text(ProcessGroup& group, std::string_view text,
                                         std::string_view name = {});

/// The root's text, on all ranks.
std::string broadcast_text(ProcessGroup& group, std::string_view text, int root = 0,
                           std::string_view name = {});

/// Runs `task` on rank 0 while the others wait for it to end. What it throws is rethrown there, and all other
/// ranks throw a DistributedError with the same text: no rank goes on as if it had worked.
void on_rank_0(ProcessGroup& group, const char* op, const std::function<void()>& task);

}  // namespace tapestry::distributed
