#pragma once
// Transforms of image batches [N, C, H, W], for DataLoaderOptions::transforms. Random transforms draw numbers
// by (seed, epoch, sample), so results do not depend on the number of workers. A transform replaces the
// batch's input and never changes it in place, because it may be a view of the dataset.
#include <cstdint>
#include <vector>

#include "tapestry/data/dataloader.h"

namespace tapestry::data {

/// Returns (x - mean) / std per channel as f32. Bytes are divided by 255 first. Give one value for all
/// channels, or one per channel. The results have the same bits as torchvision's ToTensor and Normalize.
BatchTransform<> normalize(std::vector<float> mean, std::vector<float> std);
/// Divides bytes by 255 and returns f32.
BatchTransform<> to_float();
/// Pads the image by `padding` zeros on every side, and returns a random window of height x width. It takes
/// any dtype. A padded zero is black if this runs before normalize, and the mean colour if it runs after.
BatchTransform<> random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);
/// Mirrors each image horizontally with probability p. It takes any dtype.
BatchTransform<> random_horizontal_flip(double p = 0.5);

}  // namespace tapestry::data
