#pragma once
// The binary version of CIFAR-10: each row has 3073 bytes (label, then the planes R, G, B of 32x32), and each
// file has 10,000 rows.
#include <string>
#include <vector>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

inline constexpr std::int64_t kCifar10RowsPerFile = 10000;

/// Reads one file: images u8 [rows, 3, 32, 32], labels i64 [rows]. Throws IoError unless the file has exactly
/// `rows` rows with labels from 0 to 9.
Example read_cifar10(const std::string& path, std::int64_t rows = kCifar10RowsPerFile);
/// Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin, from `data_dir` or its subfolder
/// cifar-10-batches-bin. If files are missing, throws IoError that says where to get them.
TensorDataset cifar10(bool train, const std::string& data_dir,
                      std::int64_t rows_per_file = kCifar10RowsPerFile);
/// The class names: "airplane", "automobile", ...
const std::vector<std::string>& cifar10_classes();

}  // namespace tapestry::data
