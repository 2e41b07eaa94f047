#pragma once

namespace tapestry::distributed {

/// The base of optimizers whose ranks divide the state by elements, such as ZeroRedundancyOptimizer, and not
/// by rows, as fully_shard() does. A rank does not store rows of such a state. So checkpoints get the whole
/// state from Optimizer::state_tensors() of one rank, and give whole tensors to load_state_dict().
class ElementDivided {
 public:
  virtual ~ElementDivided() = default;
};

}  // namespace tapestry::distributed
