#pragma once
// Boxes of tensors (nn::Region): what two have in common, and whether several divide a tensor.
#include <string>
#include <vector>

#include "tapestry/nn/layout.h"

namespace tapestry::distributed::checkpoint {

/// The box of the elements that are in both boxes. If there are none, one of its sizes is 0.
nn::Region common(const nn::Region& a, const nn::Region& b);
/// Rows [first, first + count) of a box, counted from the box's first row.
nn::Region rows_of(const nn::Region& box, std::int64_t first, std::int64_t count);
/// The same box, counted from the first element of `outer`, which contains it.
nn::Region inside(const nn::Region& box, const nn::Region& outer);

/// What is wrong unless each element of `whole` is in one of the boxes and no other element is, or an empty
/// text. Takes boxes that come from cuts, in which some dimension separates the boxes, and again within each
/// part: as many as a job has ranks are checked in the time of sorting them. Others are refused, even if they
/// are disjoint.
std::string why_not_divided(const nn::Region& whole, const std::vector<nn::Region>& boxes);

}  // namespace tapestry::distributed::checkpoint
