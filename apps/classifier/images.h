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

/// Loads what --data names. Throws IoError that says which package or download brings what is missing.
Images load_images(const Options& options);

}  // namespace apps
