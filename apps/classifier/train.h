#pragma once
// The classifier's training loop.
#include "tapestry/apps/classifier/options.h"

namespace apps {

/// Trains, evaluates after each epoch, and writes checkpoints, metrics and pictures to the run's folder.
/// Returns the exit status: 0, or 128 + N if signal N stopped the run after a checkpoint was saved, as shells
/// report it. Throws tapestry::Error for invalid options, missing data, a folder that cannot be written, a
/// checkpoint that does not belong to the run, or a loss that is not a number.
int train(Options options);

}  // namespace apps
