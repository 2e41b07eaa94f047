#pragma once
// A mesh without peers, and tensors that are placed along its axis.
#include <functional>
#include <string>

#include "tapestry/distributed/comm/fake_group.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/tapestry.h"

namespace placement_test {

using namespace tapestry;
using namespace tapestry::distributed;

inline const Placement kInvariant = Placement::invariant(), kReplicated = Placement::replicated(),
                       kVarying = Placement::varying(), kPartial = Placement::partial();
inline Placement divided(int dim) { return Placement::sharded(dim); }

/// Rank `rank` of `ranks` along the axis "tensor".
inline Axis fake_axis(int rank = 0, int ranks = 2) {
  return Mesh(fake_process_group(rank, ranks), {{"tensor", ranks}})["tensor"];
}

/// The text of the PlacementError that fn throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const PlacementError& e) {
    return e.what();
  }
  return "";
}

}  // namespace placement_test
