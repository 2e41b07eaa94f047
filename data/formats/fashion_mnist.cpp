#include "tapestry/data/formats/fashion_mnist.h"

#include <filesystem>

#include "tapestry/data/formats/idx.h"

namespace tapestry::data {
namespace {

constexpr const char* kPackageDir = "/usr/share/datasets/fashion-mnist";

std::string find(const std::string& op, const std::string& dir, const std::string& name) {
  for (const char* suffix : {".gz", ""}) {
    const std::filesystem::path path = std::filesystem::path(dir) / (name + suffix);
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  fail<IoError>("[", op, "] ", name, ".gz is not in ", dir,
                op == "mnist"
                    ? "; give the folder of MNIST's four files"
                    : "; install the package dataset-fashion-mnist (apt-get install "
                      "dataset-fashion-mnist), or download the four files from "
                      "github.com/zalandoresearch/fashion-mnist and give their folder (--data-dir)");
}

// Reads the four files, which have one format. Messages begin with the name `op`.
TensorDataset digits_or_clothes(const std::string& op, bool train, const std::string& dir) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string image_path = find(op, dir, prefix + "-images-idx3-ubyte");
  const std::string label_path = find(op, dir, prefix + "-labels-idx1-ubyte");
  const Tensor images = read_idx(image_path), bytes = read_idx(label_path);
  check<IoError>(
      images.dtype() == DType::u8 && images.dim() == 3 && images.size(1) == 28 && images.size(2) == 28, "[",
      op, "] ", image_path, ": holds ", images.dtype(), " ", images.sizes(), ", not images of 28x28 bytes");
  check<IoError>(bytes.dtype() == DType::u8 && bytes.sizes() == Shape{images.size(0)}, "[", op, "] ",
                 label_path, ": holds ", bytes.dtype(), " ", bytes.sizes(), ", not a byte for each of ",
                 images.size(0), " images");
  const std::int64_t n = images.size(0);
  Tensor labels = empty({n}, {DType::i64, kCPU});
  const std::uint8_t* from = bytes.data<std::uint8_t>();
  std::int64_t* to = labels.data<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    check<IoError>(from[i] < 10, "[", op, "] ", label_path, ": label ", static_cast<int>(from[i]),
                   " of image ", i, " is not in 0 to 9");
    to[i] = from[i];
  }
  return TensorDataset(
      tapestry::detail::raw_view(images, {n, 1, 28, 28}, contiguous_strides({n, 1, 28, 28}), 0), labels);
}

}  // namespace

TensorDataset fashion_mnist(bool train, const std::string& data_dir) {
  return digits_or_clothes("fashion_mnist", train, data_dir.empty() ? kPackageDir : data_dir);
}
TensorDataset mnist(bool train, const std::string& data_dir) {
  return digits_or_clothes("mnist", train, data_dir);
}

const std::vector<std::string>& fashion_mnist_classes() {
  static const std::vector<std::string> names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                                 "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return names;
}

}  // namespace tapestry::data
