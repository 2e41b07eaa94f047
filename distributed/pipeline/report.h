#pragma once
// The times, bytes and memory of one call of a pipeline.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/device.h"

namespace tapestry::distributed {

/// The times, bytes and memory of one stage. Seconds are times of its device; on a GPU they are measured with
/// events.
struct StageReport {
  std::string name;  ///< the type of its module
  Device device;
  double forward_s = 0;  ///< computing, without receive_s
  double backward_s = 0;
  double weights_s = 0;             ///< the part of backward_s for weights, under Schedule::zero_bubble
  double receive_s = 0;             ///< copying tensors from neighbouring stages or from the caller
  double idle_s = 0;                ///< time in which its device worked for no stage
  std::int64_t bytes_received = 0;  ///< from other devices
  int peak_micro_batches = 0;       ///< the largest number whose activations it held at the same time
};

struct PipelineReport {
  double wall_s = 0;  ///< the time of the whole call
  double bubble = 0;  ///< the idle fraction of all devices' time
  int micro_batches = 0;
  std::vector<StageReport> stages;
  /// A table with one line per stage.
  std::string str() const;
};

}  // namespace tapestry::distributed
