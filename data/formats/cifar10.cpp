#include "tapestry/data/formats/cifar10.h"

#include <cstring>
#include <filesystem>

#include "tapestry/data/formats/internal/input_file.h"

namespace tapestry::data {
namespace {

constexpr std::int64_t kPixels = 3 * 32 * 32;

/// Reads `rows` rows into images[3072 * rows] and labels[rows].
void read_rows(const std::string& path, std::int64_t rows, std::uint8_t* images, std::int64_t* labels) {
  InputFile file("read_cifar10", path);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::uint8_t label;
    file.read(&label, 1, "rows");
    if (label > 9)
      file.broken(concat({"label ", static_cast<int>(label), " of row ", i,
                          " is not in 0 to 9; it is not CIFAR-10's binary version"}));
    file.read(images + i * kPixels, kPixels, "rows");
    labels[i] = label;
  }
  file.expect_end();
}

/// Throws before any allocation if the file cannot contain that many rows.
void check_rows(const std::string& path, std::int64_t rows) {
  check(rows >= 1 && rows < (std::int64_t{1} << 40), "[read_cifar10] rows is ", rows,
        "; it must be at least 1");
  InputFile file("read_cifar10", path);
  const std::uint64_t bytes = static_cast<std::uint64_t>(rows) * (kPixels + 1);
  if (!file.compressed() && file.remaining() != bytes)
    file.broken(
        concat({"has ", file.remaining(), " bytes, and ", rows, " rows of CIFAR-10's binary version have ",
                bytes, "; fetch cifar-10-binary.tar.gz again"}));
  file.expect_room(bytes, "rows");
}

}  // namespace

Example read_cifar10(const std::string& path, std::int64_t rows) {
  check_rows(path, rows);
  Example out{empty({rows, 3, 32, 32}, {DType::u8, kCPU}), empty({rows}, {DType::i64, kCPU})};
  read_rows(path, rows, out.input.data<std::uint8_t>(), out.target.data<std::int64_t>());
  return out;
}

TensorDataset cifar10(bool train, const std::string& data_dir, std::int64_t rows_per_file) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (train)
    names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"};
  std::error_code error;
  std::filesystem::path dir = data_dir;
  if (std::filesystem::is_directory(dir / "cifar-10-batches-bin", error)) dir /= "cifar-10-batches-bin";
  for (const std::string& name : names) {
    check<IoError>(std::filesystem::exists(dir / name, error), "[cifar10] ", name, " is not in ",
                   data_dir.empty() ? "the current folder (no --data-dir was given)" : dir.string(),
                   "; download and unpack cifar-10-binary.tar.gz (\"CIFAR-10 binary version\") from "
                   "www.cs.toronto.edu/~kriz/cifar.html and give its folder (--data-dir)");
    check_rows((dir / name).string(), rows_per_file);
  }
  const std::int64_t total = rows_per_file * static_cast<std::int64_t>(names.size());
  Tensor images = empty({total, 3, 32, 32}, {DType::u8, kCPU}), labels = empty({total}, {DType::i64, kCPU});
  for (std::size_t f = 0; f < names.size(); ++f) {
    const std::int64_t at = static_cast<std::int64_t>(f) * rows_per_file;
    read_rows((dir / names[f]).string(), rows_per_file, images.data<std::uint8_t>() + at * kPixels,
              labels.data<std::int64_t>() + at);
  }
  return TensorDataset(images, labels);
}

const std::vector<std::string>& cifar10_classes() {
  static const std::vector<std::string> names = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

}  // namespace tapestry::data
