#pragma once
// Blocking collectives of text and numbers, for small and rare data. They throw the errors of Work::wait().
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Returns the texts of all ranks, in order of rank, on all ranks. `name` appears in error messages.
std::vector<std::string> all_gather_text(ProcessGroup& group, std::string_view text,
                                         std::string_view name = {});

/// Returns the numbers of all ranks, concatenated in order of rank, on all ranks. All ranks pass equally
/// many.
std::vector<std::int64_t> all_gather_numbers(ProcessGroup& group, std::span<const std::int64_t> numbers,
                                             std::string_view name = {});

/// Returns the text of the rank `root` on all ranks.
std::string broadcast_text(ProcessGroup& group, std::string_view text, int root = 0,
                           std::string_view name = {});

/// Runs `task` on rank 0, while the other ranks wait for it. If it throws, rank 0 rethrows the exception, and
/// the other ranks throw DistributedError with the same text. `op` is the name in that text.
void on_rank_0(ProcessGroup& group, const char* op, const std::function<void()>& task);
/// Runs `task` on every rank. If it throws on some ranks, these rethrow the exception, and the others throw
/// DistributedError with its text.
void on_all_ranks(ProcessGroup& group, const char* op, const std::function<void()>& task);

}  // namespace tapestry::distributed
