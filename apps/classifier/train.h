#pragma once
// The classifier's training loop.
#include "tapestry/apps/classifier/options.h"

namespace apps {

/// Trains, evaluates after each epoch, and writes checkpoints, metrics and pictures to the run's folder.
/// Returns false if Ctrl-C stopped it, after saving a checkpoint. Throws tapestry::Error for invalid options,
/// missing data, a folder that cannot be written, or a loss that is not a number.
bool train(Options options);

}  // namespace apps
