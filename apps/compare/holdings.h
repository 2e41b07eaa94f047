#pragma once
// What each device holds of the model's state and of the batch.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/apps/compare/report.h"

namespace apps::compare {

struct Holding {
  int device = 0;
  tapestry::MemoryKind kind = tapestry::MemoryKind::parameters;
  int first_block = 0, last_block = 0;  ///< blocks of the model, from the first to before the last
  /// The part of these blocks' rows, or for activations of the batch's samples, from 0 to 1.
  double first = 0, last = 1;
  /// What the device keeps: parameters and optimizer state over the whole step, gradients to its end,
  /// activations until their backward. And what it has beyond that at some moment, such as gathered
  /// parameters.
  std::int64_t resident_bytes = 0, borrowed_bytes = 0;
};
/// Of a mode whose memory was recorded. Devices that hold parts hold them in the order of devices.
std::vector<Holding> holdings_of(const Report& report, const Result& result);

}  // namespace apps::compare
