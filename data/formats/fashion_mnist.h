#pragma once
// Fashion-MNIST and MNIST: 60,000 training and 10,000 test images of 28x28 pixels in ten classes. The files
// of both have the same names and format.
#include <string>
#include <vector>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

/// Returns images u8 [N, 1, 28, 28] and labels i64 [N]. Reads train-images-idx3-ubyte and its three
/// companions, gzipped or not, from `data_dir`. If `data_dir` is empty, it reads them from the folder of the
/// Debian and Ubuntu package dataset-fashion-mnist. Throws IoError if files are missing or wrong; the message
/// says where to get them, or what is wrong.
TensorDataset fashion_mnist(bool train, const std::string& data_dir = "");
/// MNIST in the same form: digits, and their values as labels. `data_dir` has the four files, gzipped or not.
TensorDataset mnist(bool train, const std::string& data_dir);
/// The class names of Fashion-MNIST: "T-shirt/top", "Trouser", ...
const std::vector<std::string>& fashion_mnist_classes();

}  // namespace tapestry::data
