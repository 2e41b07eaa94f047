#pragma once
// ImageFolder: a dataset of PNG and JPEG files, with one folder for each class.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/data/dataset.h"
#include "tapestry/data/formats/image.h"
#include "tapestry/data/image_transform.h"

namespace tapestry::data {

/// The images below `root`: root/cat/001.png, root/cat/more/002.jpg, root/dog/1.jpeg. Each folder in `root`
/// is a class; classes are numbered in the order of their names. The samples are in the order of
/// torchvision's ImageFolder. Sample i is the image u8 [C, H, W], transformed by `transform`, and its class,
/// an i64 without dimensions. Names of folders and files that begin with a dot are skipped. Files are decoded
/// when get() is called; give the DataLoader workers to do so in parallel.
class ImageFolder : public Dataset<Example> {
 public:
  struct Options {
    /// Applied to each image, for example compose({resize(256), center_crop(224), normalize(mean, std)}).
    std::optional<ImageTransform> transform = {};
    ImageMode mode = ImageMode::rgb;
    std::int64_t max_pixels = ImageOptions().max_pixels;
    /// Only files with these endings are samples, in lower or upper case.
    std::vector<std::string> extensions = {".png", ".jpg", ".jpeg"};
    bool allow_empty = false;  ///< allows classes without images
  };

  /// Throws IoError, which names the folder or file: if `root` cannot be read or has no folders, if a class
  /// has no images, or if a file has the ending of an image format that is not supported (.gif, .bmp, .webp,
  /// ...). The images themselves are not read here.
  explicit ImageFolder(const std::string& root);
  ImageFolder(const std::string& root, Options options);

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  /// Throws IoError, which names the file, if the image is missing or broken.
  Example get(std::int64_t index) const override;

  /// The names of the classes, in order. The label of class k is k.
  const std::vector<std::string>& classes() const { return classes_; }
  const std::map<std::string, std::int64_t>& class_to_idx() const { return class_to_idx_; }
  /// The path and the label of each sample.
  const std::vector<std::pair<std::string, std::int64_t>>& samples() const { return samples_; }

 private:
  Options options_;
  std::vector<std::string> classes_;
  std::map<std::string, std::int64_t> class_to_idx_;
  std::vector<std::pair<std::string, std::int64_t>> samples_;
};

}  // namespace tapestry::data
