#pragma once
// Reading and writing NPY data, for files and for members of zip archives.
#include <cstdint>
#include <functional>
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// Where an array is read from.
struct NpySource {
  /// Reads exactly this number of bytes, or throws.
  std::function<void(void* out, std::size_t bytes, const char* what)> read;
  /// Throws if this number of bytes cannot follow.
  std::function<void(std::uint64_t bytes, const char* what)> expect_room;
  /// Throws IoError with the name of the file.
  std::function<void(const std::string& what)> broken;
};

/// Reads an array up to its last element.
Tensor read_npy(const NpySource& source);
/// Returns the magic bytes and the header of the array.
std::string npy_header(const Tensor& x, bool fortran_order);
/// Returns the tensor whose row-major elements are to be written after the header.
Tensor npy_elements(const char* op, const Tensor& x, bool fortran_order);

}  // namespace tapestry::data
