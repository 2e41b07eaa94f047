#pragma once
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// The base of optimizers whose ranks divide the state by elements, such as ZeroRedundancyOptimizer, and not
/// by rows, as fully_shard() does. A rank does not store rows of such a state. So checkpoints collect the
/// whole state on one rank, get it there from Optimizer::state_tensors(), and give whole tensors to
/// load_state_dict().
class ElementDivided {
 public:
  virtual ~ElementDivided() = default;
  /// Collective over process_group(): collects the whole state on the rank `to`.
  virtual void consolidate_state_dict(int to) = 0;
  virtual ProcessGroup& process_group() const = 0;
};

}  // namespace tapestry::distributed
