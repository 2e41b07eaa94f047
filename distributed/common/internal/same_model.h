#pragma once
// Ranks that train one model must have the same parameters. DistributedDataParallel and fully_shard compare
// them between the ranks, and begin with rank 0's values.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Describes tensors in one line each: "parameter fc.weight float32 [4, 3]", and "frozen" if the tensor does
/// not require a gradient.
std::string describe_tensors(const NamedTensors& tensors, const char* what);

/// Collective: throws ValueError that begins with [op] on every rank if the ranks' descriptions differ. The
/// text shows the lines that only one rank has. Ranks exchange hashes first, and the descriptions only if the
/// hashes differ.
void check_same_model(ProcessGroup& group, const char* op, const std::string& description);

/// Collective: throws ValueError that begins with [op] on every rank if the ranks' texts differ. The message
/// shows the first line in which rank 0 and another rank differ, and ends with `remedy`. `what` names the
/// lines in the plural.
void check_same_lines(ProcessGroup& group, const char* op, std::string_view what, const std::string& mine,
                      std::string_view remedy);

/// Collective: throws ValueError that begins with [op] on every rank if a rank's values differ from rank 0's,
/// with the names of the tensors and of the ranks. Reads all values and exchanges a hash of each tensor.
void check_same_values(ProcessGroup& group, const char* op, const NamedTensors& tensors);

/// Collective: copies the values of the rank `root` to all ranks. Tensors of one dtype and device share
/// messages.
void broadcast_values(ProcessGroup& group, const NamedTensors& tensors, std::string_view what, int root = 0);

/// "conv1.weight, conv1.bias and 12 more"
std::string listed(const std::vector<std::string>& names, std::size_t most);

}  // namespace tapestry::distributed
