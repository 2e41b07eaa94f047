#pragma once
// The classifier's own part of a checkpoint: its options, and how far the run has come.
#include <cstdint>
#include <optional>

#include "tapestry/apps/classifier/options.h"
#include "tapestry/apps/classifier/tally.h"
#include "tapestry/data/dataloader.h"
#include "tapestry/nn/checkpoint.h"

namespace apps {

struct Position {
  tapestry::data::LoaderState loader;  ///< the position in the training images
  Tally tally = {};                    ///< of the epoch in progress, summed over all ranks
  double seconds = 0;                  ///< training time since the start of the run
};

/// Returns the progress to save after `step` optimizer steps. `accuracy` is that of the test images, if they
/// were just evaluated.
tapestry::nn::Progress to_progress(const Position& position, std::int64_t step, const Options& options,
                                   std::optional<double> accuracy);

/// Returns the options that to_progress saved. Throws IoError if they are missing or invalid.
Options options_of(const tapestry::nn::Progress& saved);

/// The steps of the epoch in progress.
std::int64_t steps_in_epoch(const Position& position, const Options& options);

/// Returns the position that to_progress saved, and puts the loader there. Throws IoError if a value is
/// missing or invalid, or if the values contradict one another, the options of the run or its images.
Position position_of(const tapestry::nn::Progress& saved, const Options& options,
                     tapestry::data::DataLoader<>& images);

}  // namespace apps
