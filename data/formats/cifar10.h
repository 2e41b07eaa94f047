#pragma once
// CIFAR-10, binary version: rows of 3073 bytes (label, then the planes R, G, B of 32x32), 10,000 rows a file.
#include <string>
#include <vector>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

inline constexpr std::int64_t kCifar10RowsPerFile = 10000;

/// One file: images u8 [rows, 3, 32, 32], labels i64 [rows]. Throws IoError unless it has exactly `rows` rows
/// with labels from 0 to 9.
Example read_cifar10(const std::string& path, std::int64_t rows = kCifar10RowsPerFile);
/// data_batch_1.bin to data_batch_5.bin, or test_batch.bin, in `data_dir` or its cifar-10-batches-bin. Throws
/// IoError that says what brings them if they are missing.
TensorDataset cifar10(bool train, const std::string& data_dir,
                      std::int64_t rows_per_file = kCifar10RowsPerFile);
/// "airplane", "automobile", ...
const std::vector<std::string>& cifar10_classes();

}  // namespace tapestry::data
