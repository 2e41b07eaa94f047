#include "tapestry/data/formats/image_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 32;  // bounds the search if symbolic links form a loop
constexpr std::string_view kUnsupported[] = {".gif", ".bmp", ".webp", ".tif", ".tiff",
                                             ".ppm", ".pgm", ".avif", ".heic"};

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

struct Entries {
  std::vector<std::string> folders, files;  // sorted names
};

Entries list(const fs::path& folder) {
  Entries found;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(".")) continue;
    std::error_code unknown;  // a link to nothing has no type, and is skipped
    if (at->is_directory(unknown)) found.folders.push_back(name);
    else if (at->is_regular_file(unknown)) found.files.push_back(name);
  }
  check<IoError>(!error, "[ImageFolder] ", folder.string(), ": cannot be read: ", error.message());
  std::sort(found.folders.begin(), found.folders.end());
  std::sort(found.files.begin(), found.files.end());
  return found;
}

/// Appends the images below `folder` as (folder, file name).
void find_images(const fs::path& folder, const std::vector<std::string>& extensions, int depth,
                 std::vector<std::pair<std::string, std::string>>& out) {
  check<IoError>(depth < kDeepest, "[ImageFolder] ", folder.string(), ": is ", depth,
                 " folders deep; does a symbolic link point to a folder above it?");
  const Entries entries = list(folder);
  for (const std::string& name : entries.files) {
    const std::string lowered = lower(name);
    const auto ends = [&](std::string_view ending) { return lowered.ends_with(ending); };
    if (std::any_of(extensions.begin(), extensions.end(), ends)) {
      out.emplace_back(folder.string(), name);
      continue;
    }
    check<IoError>(std::none_of(std::begin(kUnsupported), std::end(kUnsupported), ends), "[ImageFolder] ",
                   (folder / name).string(),
                   ": images in this format are not supported; convert it to PNG or JPEG, or remove it");
  }
  for (const std::string& name : entries.folders) find_images(folder / name, extensions, depth + 1, out);
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root) : ImageFolder(root, Options()) {}

ImageFolder::ImageFolder(const std::string& root, Options options) : options_(std::move(options)) {
  check(!options_.extensions.empty(), "[ImageFolder] extensions is empty; give those of the images");
  for (std::string& extension : options_.extensions) extension = lower(extension);
  classes_ = list(root).folders;
  check<IoError>(!classes_.empty(), "[ImageFolder] ", root,
                 ": contains no folders; put the images of each class into a folder of its own");
  std::string empty_classes;
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    class_to_idx_[classes_[label]] = static_cast<std::int64_t>(label);
    std::vector<std::pair<std::string, std::string>> found;
    find_images(fs::path(root) / classes_[label], options_.extensions, 0, found);
    if (found.empty()) empty_classes += (empty_classes.empty() ? "" : ", ") + classes_[label];
    std::sort(found.begin(), found.end());
    for (const auto& [folder, name] : found)
      samples_.emplace_back((fs::path(folder) / name).string(), static_cast<std::int64_t>(label));
  }
  check<IoError>(options_.allow_empty || empty_classes.empty(), "[ImageFolder] ", root,
                 ": these classes have no images: ", empty_classes,
                 "; add some, remove the folders, or set allow_empty");
}

Example ImageFolder::get(std::int64_t index) const {
  detail::check_index("ImageFolder", index, size());
  const auto& [path, label] = samples_[static_cast<std::size_t>(index)];
  Tensor image = read_image(path, {.mode = options_.mode, .max_pixels = options_.max_pixels});
  if (options_.transform) {
    try {
      image = (*options_.transform)(image);
    } catch (Error& e) {
      e.add_place(path);
      throw;
    }
  }
  const Tensor target = empty(Shape{}, {DType::i64, kCPU});
  *target.data<std::int64_t>() = label;
  return {image, target};
}

}  // namespace tapestry::data
