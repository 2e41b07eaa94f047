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

/// Collective: copies rank 0's values to all ranks. Tensors of one dtype and device share messages.
void broadcast_values(ProcessGroup& group, const NamedTensors& tensors, std::string_view what);

/// "conv1.weight, conv1.bias and 12 more"
std::string listed(const std::vector<std::string>& names, std::size_t most);

}  // namespace tapestry::distributed
