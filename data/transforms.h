#pragma once
// Transforms of batches of images [N, C, H, W], for DataLoaderOptions::transforms. Random ones draw from
// (seed, epoch, sample), so the number of workers changes nothing. They replace the batch's input and never
// change it in place: it may be a view of the dataset.
#include <cstdint>
#include <vector>

#include "tapestry/data/dataloader.h"

namespace tapestry::data {

/// (x - mean) / std by channel, to f32; bytes are divided by 255 first. One value for all channels, or one
/// each. The same bits as torchvision's ToTensor and Normalize.
BatchTransform<> normalize(std::vector<float> mean, std::vector<float> std);
/// Bytes divided by 255, to f32.
BatchTransform<> to_float();
/// A random window of height x width from the image with `padding` zeros on every side; any dtype. Before
/// normalize the zeros are black, after it the mean.
BatchTransform<> random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);
/// Mirrored left to right with probability p; any dtype.
BatchTransform<> random_horizontal_flip(double p = 0.5);

}  // namespace tapestry::data
