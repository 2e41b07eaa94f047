#pragma once
// Transforms of images: tensors [C, H, W] or [N, C, H, W], samples, and the batches of a DataLoader (see
// image_transform.h). Their results are those of torchvision.transforms.v2 on tensors, for the same random
// parameters. Transforms that only move pixels take any dtype. The others take bytes (u8) and f32.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tapestry/data/image_transform.h"

namespace tapestry::data {

/// Returns (x - mean) / std per channel as f32. Bytes are divided by 255 first. Give one value for all
/// channels, or one per channel. The results have the same bits as torchvision's ToTensor and Normalize.
ImageTransform normalize(std::vector<float> mean, std::vector<float> std);
/// Divides bytes by 255 and returns f32.
ImageTransform to_float();

/// Pads the image by `padding` zeros on every side, and returns a random window of height x width. It takes
/// any dtype. A padded zero is black if this runs before normalize, and the mean colour if it runs after.
ImageTransform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);
/// Returns the window of height x width whose first pixel is (top, left). What lies outside of the image is
/// zero. It takes any dtype.
ImageTransform crop(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width);
/// Returns the window of height x width in the middle. An image that is smaller is padded with zeros.
ImageTransform center_crop(std::int64_t height, std::int64_t width);
ImageTransform center_crop(std::int64_t size);
/// Mirrors each image horizontally with probability p. It takes any dtype.
ImageTransform random_horizontal_flip(double p = 0.5);
/// Mirrors each image vertically with probability p. It takes any dtype.
ImageTransform random_vertical_flip(double p = 0.5);

enum class Interpolation : std::uint8_t { nearest, bilinear, bicubic };

struct ResizeOptions {
  Interpolation interpolation = Interpolation::bilinear;
  /// Averages all pixels that an output pixel covers when an image shrinks, as PIL does. Nearest ignores it.
  bool antialias = true;
};
/// Scales images to height x width. Pixels of bytes are rounded to the nearest. Nearest takes any dtype.
ImageTransform resize(std::int64_t height, std::int64_t width, ResizeOptions options = {});
/// Scales images so that their shorter side is `shorter`. The longer side keeps the ratio, rounded down.
ImageTransform resize(std::int64_t shorter, ResizeOptions options = {});

struct RandomResizedCropOptions {
  std::pair<double, double> scale = {0.08, 1.0};         ///< limits of the crop's part of the area
  std::pair<double, double> ratio = {3.0 / 4, 4.0 / 3};  ///< limits of width / height before the resize
  Interpolation interpolation = Interpolation::bilinear;
  bool antialias = true;
};
/// Cuts out a random window and scales it to height x width (or size x size). The area is uniform in `scale`,
/// the logarithm of the ratio is uniform. After ten windows that do not fit, the largest one in the middle
/// with an allowed ratio is taken.
ImageTransform random_resized_crop(std::int64_t height, std::int64_t width,
                                   RandomResizedCropOptions options = {});
ImageTransform random_resized_crop(std::int64_t size, RandomResizedCropOptions options = {});

/// Scale the colors by a factor of at least 0: away from or towards black; away from or towards the mean of
/// the gray image; away from or towards gray. They take images with 1 or 3 channels. f32 images are in [0,
/// 1].
ImageTransform adjust_brightness(double factor);
ImageTransform adjust_contrast(double factor);
ImageTransform adjust_saturation(double factor);
/// Turns the hue by `shift` in [-0.5, 0.5] of the color circle. Images with one channel stay the same.
ImageTransform adjust_hue(double shift);

struct ColorJitterOptions {
  double brightness = 0;  ///< the factor is uniform in [max(0, 1 - x), 1 + x], also for the next two
  double contrast = 0;
  double saturation = 0;
  double hue = 0;  ///< the shift is uniform in [-x, x]; x is at most 0.5, which is half of the color circle
};
/// Changes brightness, contrast, saturation and hue of images with 1 or 3 channels, in a random order. f32
/// images must be in [0, 1], so this runs before normalize.
ImageTransform color_jitter(ColorJitterOptions options);

struct RotationOptions {
  Interpolation interpolation = Interpolation::nearest;  ///< nearest or bilinear
  std::optional<std::pair<double, double>> center = {};  ///< (x, y) in pixels; the middle by default
  /// The value outside of the image. Bilinear pixels on the edge mix it with the image by the covered part;
  /// torchvision weights them twice.
  float fill = 0;
};
/// Rotates images counter-clockwise. The size stays the same.
ImageTransform rotate(double degrees, RotationOptions options = {});
/// Rotates each image counter-clockwise by an angle that is uniform in [-degrees, degrees] or [low, high].
/// The size stays the same.
ImageTransform random_rotation(double degrees, RotationOptions options = {});
ImageTransform random_rotation(double low, double high, RotationOptions options = {});

struct RandomErasingOptions {
  double p = 0.5;
  std::pair<double, double> scale = {0.02, 0.33};  ///< limits of the rectangle's part of the area
  std::pair<double, double> ratio = {0.3, 3.3};    ///< limits of height / width
  float value = 0;
  bool random_values = false;  ///< fills with normal numbers instead of `value`; f32 images only
};
/// Overwrites a random rectangle with probability p (Zhong et al., "Random Erasing Data Augmentation", 2020).
ImageTransform random_erasing(RandomErasingOptions options = {});

}  // namespace tapestry::data
