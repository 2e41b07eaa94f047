#pragma once
// Random images, for tests and benchmarks.
#include <cstdint>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

/// A dataset of normal noise: images f32 [size, channels, height, width] and i64 labels [size]. By default
/// all labels are 0, so a model learns to answer 0. Otherwise labels are drawn from `num_classes` classes.
/// The data depends only on the options.
class RandomDataset : public TensorDataset {
 public:
  struct Options {
    std::int64_t size = 100;
    std::int64_t channels = 3;
    std::int64_t height = 32;
    std::int64_t width = 32;
    std::int64_t num_classes = 1;
    std::uint64_t seed = 0;
  };
  RandomDataset() : RandomDataset(Options()) {}
  explicit RandomDataset(const Options& options);
};

}  // namespace tapestry::data
