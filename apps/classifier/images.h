#pragma once
// The classifier's data: images as batches of normalised f32.
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
};

/// Loads what --data names, for one rank of several: the training images in batches of batch_size /
/// world_size, dealt anew each epoch; of the test images every world_size-th. Throws IoError that says which
/// package or download brings what is missing, ValueError if the batch cannot be divided.
Images load_images(const Options& options, int rank, int world_size);

}  // namespace apps
