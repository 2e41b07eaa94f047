#pragma once
// The safetensors file format (huggingface/safetensors): named tensors in one file. The file has 8 bytes of
// header length, a JSON header, then the elements of all tensors, row-major and little-endian.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StringMap = std::map<std::string, std::string>;

/// An open safetensors file. The constructor checks the header: sizes against shapes, and offsets against
/// each other and the file's length. Throws IoError, which names the file, the tensor and the fault. Never
/// allocates more memory than the file's length justifies, whatever the header claims.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape sizes;
    std::uint64_t begin = 0, end = 0;  ///< byte offsets from the end of the header
  };
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// All tensors, in the order of their data in the file.
  const std::vector<Entry>& entries() const;
  /// Null if the file has no tensor of this name.
  const Entry* find(const std::string& name) const;
  const StringMap& metadata() const;
  /// Reads one tensor to the CPU. Throws IoError if the file has no tensor of this name.
  Tensor read(const std::string& name) const;
  Tensor read(const Entry& entry) const;
  /// Reads the rows [first, first + rows) of dimension 0 to the CPU, and no other part of the tensor's data.
  /// A tensor without dimensions has one row, and is returned without dimensions if it is read. Throws
  /// IoError if the file has no tensor of this name, and IndexError unless the tensor has these rows.
  Tensor read_rows(const std::string& name, std::int64_t first, std::int64_t rows) const;
  /// The length of the file in bytes.
  std::uint64_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The whole content of a file; all tensors are on the CPU.
struct Safetensors {
  std::map<std::string, Tensor> tensors;
  StringMap metadata;
};
Safetensors load_safetensors(const std::string& path);

/// Writes a file piece by piece, so that its tensors need not be in memory together. The constructor takes
/// names, dtypes and shapes; Entry::begin and Entry::end are ignored. Then write() appends the elements of
/// the tensors in the order of entries(). The file appears with commit() (AtomicFile). Throws the errors of
/// save_safetensors().
class SafetensorsWriter {
 public:
  using Entry = SafetensorsFile::Entry;
  SafetensorsWriter(const std::string& path, std::vector<Entry> tensors, const StringMap& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The tensors in the order of their data in the file.
  const std::vector<Entry>& entries() const;
  /// Appends the elements of a CPU tensor of any layout in row-major order: a whole tensor of the file, or
  /// its next rows. Throws ValueError if the dtype is not that of the tensor that is being written, or if
  /// that tensor has fewer elements left.
  void write(const Tensor& elements);
  /// Throws ValueError if elements are missing.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes tensors of any dtype and layout. The file is the same, byte for byte, as that of the reference
/// implementation, and it is replaced atomically (AtomicFile). Throws ValueError if a name occurs twice, is
/// "__metadata__" or is not UTF-8, DeviceError if a tensor is not on the CPU, and IoError if the file cannot
/// be written.
void save_safetensors(const std::string& path, const NamedTensors& tensors, const StringMap& metadata = {});

}  // namespace tapestry
