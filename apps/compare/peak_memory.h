#pragma once
// How many bytes a device has to hold, followed through what it does in a step.
#include <vector>

#include "tapestry/apps/compare/case.h"
#include "tapestry/apps/compare/predict.h"
#include "tapestry/distributed/pipeline/schedule.h"

namespace apps::compare {

struct MemoryCase {
  Part part;
  double samples = 0;                                  ///< of a micro-batch
  std::vector<tapestry::distributed::Action> actions;  ///< of this device, in their order
  double data = 0;                                     ///< the batch
  bool has_loss = true, keeps_input = false, has_buckets = false;
  bool in_halves = false;  ///< backward is only the first one
};

/// At the moment when it holds most.
MemoryItems peak_of(const Case& c, const MemoryCase& m);

}  // namespace apps::compare
