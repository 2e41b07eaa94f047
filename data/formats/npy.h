#pragma once
// NumPy's file formats: NPY holds one tensor, NPZ is a zip archive of NPY files.
#include <map>
#include <string>

#include "tapestry/core/safetensors.h"
#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// Reads the array of an NPY file (versions 1 to 3), gzipped or not, of either byte order and in C or Fortran
/// order, into a dense row-major tensor. All dtypes of Tapestry are read. bfloat16, which NumPy does not
/// have, is the type "V2", as ml_dtypes writes it. uint32 becomes i64. Throws IoError that names the file if
/// it is missing, broken, shorter or longer than its header says, or has another type, such as objects, text,
/// complex numbers or uint64. It checks that the file can hold all elements before it allocates memory for
/// them.
Tensor load_npy(const std::string& path);

struct SaveNpyOptions {
  bool fortran_order = false;  ///< store the first dimension fastest
};
/// Writes a tensor of any dtype and layout on the CPU, with the bytes that numpy.save would write. The file
/// is replaced atomically.
void save_npy(const std::string& path, const Tensor& x, SaveNpyOptions options = {});

/// Reads all arrays of an NPZ file, stored or deflated. The name of an array is that of its file in the
/// archive, without ".npy". Throws IoError for broken, encrypted or overlapping files, for wrong checksums,
/// for names that occur twice, and for other compression methods.
std::map<std::string, Tensor> load_npz(const std::string& path);

struct SaveNpzOptions {
  bool compressed = false;  ///< deflate the arrays, as numpy.savez_compressed does
};
/// Writes named tensors into an NPZ file, which is replaced atomically. Throws ValueError for a name that
/// occurs twice, is empty or contains a zero byte, and for files of 4 GiB and more; save_safetensors() has no
/// such limit.
void save_npz(const std::string& path, const NamedTensors& tensors, SaveNpzOptions options = {});

}  // namespace tapestry::data
