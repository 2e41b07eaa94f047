#pragma once
// How one pass through a pipeline went.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/device.h"

namespace tapestry::distributed {

/// One stage. Seconds are of its device: on a GPU from the first thing it was given to the end of the last.
struct StageReport {
  std::string name;  ///< the type of its module
  Device device;
  double forward_s = 0;  ///< computing
  double backward_s = 0;
  double weights_s = 0;             ///< of that, the second halves under Schedule::zero_bubble
  double receive_s = 0;             ///< copying what came from its neighbours, or from the caller
  double idle_s = 0;                ///< in which its device did nothing for this or any other stage
  std::int64_t bytes_received = 0;  ///< from other devices
  int peak_micro_batches = 0;       ///< whose activations it held at once
};

struct PipelineReport {
  double wall_s = 0;  ///< of the whole call
  double bubble = 0;  ///< the idle share of all devices' time
  int micro_batches = 0;
  std::vector<StageReport> stages;
  /// A table, a stage a line.
  std::string str() const;
};

}  // namespace tapestry::distributed
