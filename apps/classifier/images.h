#pragma once
// Loads the classifier's images as batches of normalized f32 values.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/classifier/models.h"
#include "tapestry/apps/classifier/options.h"
#include "tapestry/data/dataloader.h"

namespace apps {

struct Images {
  ImageSpec spec;
  std::vector<std::string> classes;
  std::unique_ptr<tapestry::data::DataLoader<>> train, test;
  std::int64_t most_test_batches = 0;  ///< the number of test batches of the rank that has the most
};

/// Loads the data set of --data for one rank. Training batches have batch_size / world_size images and are
/// distributed among the ranks anew in each epoch. Each rank gets every world_size-th test image. Throws
/// IoError if files are missing, with the package or download that provides them, and ValueError if
/// batch_size is not a multiple of world_size.
Images load_images(const Options& options, int rank, int world_size);

}  // namespace apps
