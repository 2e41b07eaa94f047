#pragma once
// Whether the ranks of an all_to_all expect what others send: part (i, j) goes from rank i to rank j, and
// both say how many elements of which dtype it has.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// Adds the parts that this rank sends and expects to the record: CollectiveRecord::list and ::parts. The sum
/// of `parts` over the ranks of the group is 0, modulo 2^64, if the ends of all parts are equal, and
/// otherwise a random number.
void describe_parts(int rank, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                    CollectiveRecord& record);

/// A call with its parts, for parts_mismatch().
std::string parts_text(const CollectiveRecord& record);
/// The error text for ranks whose parts differ. `ranks` are the ranks' numbers in the world, and `texts` has
/// the parts_text() of each.
std::string parts_mismatch(const std::string& group, const std::vector<int>& ranks,
                           const std::vector<std::string>& texts);

}  // namespace tapestry::distributed
