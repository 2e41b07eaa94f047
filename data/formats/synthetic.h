#pragma once
// Images that need no file.
#include <cstdint>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

/// Normal noise as images f32 [size, channels, height, width], with labels i64 [size]: all zero (the default:
/// a model can learn to answer 0, and nothing else), or drawn from `num_classes` classes. A function of the
/// options alone.
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
