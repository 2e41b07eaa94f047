#pragma once
// Ranks that train one model must have the same parameters. DistributedDataParallel and fully_shard compare
// them between the ranks, and begin with rank 0's values.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/nn/parameter.h"

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

/// False if ranks of the group may have different parts of the slot's tensor: they divide it, or a full
/// tensor of it exists in forward() alone (fully_shard). True for parameters that ranks of other groups
/// divide, such as those of a tensor axis: then describe_part() of all ranks must be equal.
bool may_have_equal_parts(const nn::TensorSlot& slot, const ProcessGroup& group);
/// True if ranks of the axis have different parts of what forward computes with.
bool is_divided_along(const nn::TensorSlot& slot, const Axis& axis);
/// "fc.weight has [2:4, 0:3] of [4, 3]" in a line, or an empty text if nothing is divided: for
/// check_same_model().
std::string describe_part(const std::string& name, const nn::TensorSlot& slot);

/// Collective: copies the values of the rank `root` to all ranks. Tensors of one dtype and device share
/// messages.
void broadcast_values(ProcessGroup& group, const NamedTensors& tensors, std::string_view what, int root = 0);

/// The ranks that train copies of a divided model. `group` has the ranks that divide this rank's copy, and
/// `replicas` those that have the same part of the other copies; null if there is one copy. The groups are
/// the rows and the columns of a grid.
struct RankGrid {
  std::shared_ptr<ProcessGroup> group, replicas = {};
};

/// Collective: calls compare(*grid.group), and then compare(*grid.replicas). If it throws ValueError on all
/// ranks of a row or of a column, all ranks of the grid throw ValueError with the text of one of them.
void compare_in_grid(const RankGrid& grid, const std::function<void(ProcessGroup&)>& compare);

/// Collective: broadcast_values() of the first rank of the grid. `own_part` has this rank's part of `values`,
/// which is all that it gets from another copy.
void broadcast_in_grid(const RankGrid& grid, const NamedTensors& values, const NamedTensors& own_part,
                       std::string_view what);

/// "conv1.weight, conv1.bias and 12 more"
std::string listed(const std::vector<std::string>& names, std::size_t most);

}  // namespace tapestry::distributed
