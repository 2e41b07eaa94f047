#pragma once
// Fashion-MNIST (and MNIST, whose files have the same names): 60,000 and 10,000 images of 28x28 in ten
// classes.
#include <string>
#include <vector>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

/// Images u8 [N, 1, 28, 28], labels i64 [N]. Reads train-images-idx3-ubyte and its three companions, .gz or
/// not, in `data_dir`; where that is empty, in the folder of Debian's and Ubuntu's package
/// dataset-fashion-mnist. Throws IoError that says what brings the files if they are missing, and what is
/// wrong with them if they are not what they should be.
TensorDataset fashion_mnist(bool train, const std::string& data_dir = "");
/// "T-shirt/top", "Trouser", ...
const std::vector<std::string>& fashion_mnist_classes();

}  // namespace tapestry::data
