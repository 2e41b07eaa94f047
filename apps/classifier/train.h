#pragma once
// The classifier's training loop.
#include "tapestry/apps/classifier/options.h"

namespace apps {

/// Trains, tests after each epoch, and leaves checkpoints, metrics and pictures in the run's folder. False
/// when Ctrl-C stopped it; what was done is then saved. Throws tapestry::Error: bad options, missing data, a
/// folder that cannot be written, a loss that is not a number.
bool train(Options options);

}  // namespace apps
