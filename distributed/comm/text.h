#pragma once
// Collectives of text and of numbers: for what is small and rare. All block; they throw as Work::wait() does.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Every rank's text, by rank, on all ranks. `name` goes into the record.
std::vector<std::string> all_gather_text(ProcessGroup& group, std::string_view text,
                                         std::string_view name = {});

/// Every rank's numbers, as many from each, one rank's behind the other's, on all ranks.
std::vector<std::int64_t> all_gather_numbers(ProcessGroup& group, std::span<const std::int64_t> numbers,
                                             std::string_view name = {});

/// The root's text, on all ranks.
std::string broadcast_text(ProcessGroup& group, std::string_view text, int root = 0,
                           std::string_view name = {});

/// Runs `task` on rank 0 while the others wait for it to end. What it throws is rethrown there, and all other
/// ranks throw a DistributedError with the same text: no rank goes on as if it had worked.
void on_rank_0(ProcessGroup& group, const char* op, const std::function<void()>& task);
/// Runs `task` on every rank. Where it throws on one, all others throw a DistributedError with that text.
void on_all_ranks(ProcessGroup& group, const char* op, const std::function<void()>& task);

}  // namespace tapestry::distributed
